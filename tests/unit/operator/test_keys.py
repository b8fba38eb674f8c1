"""The release's key, and what derives from it."""

from __future__ import annotations

import pytest

from pearl_api import names, tokens
from pearl_dev.virtual.clock import VirtualClock
from pearl_dev.virtual.kube import FakeKube
from pearl_operator import kinds
from pearl_operator.errors import Unavailable
from pearl_operator.keys import SecretKeys
from pearl_operator.ports import RolloutKey

pytestmark = pytest.mark.looptime

SWE = RolloutKey("rl", "swe")
UIDS = {SWE: "one", RolloutKey("rl", "other"): "two"}


def keys(kube: FakeKube, key: str, uids: dict[RolloutKey, str] | None = None) -> SecretKeys:
    return SecretKeys(kube, "rl", (UIDS if uids is None else uids).get, lambda: key)


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube(VirtualClock())


async def test_each_rollout_has_a_key_of_its_own_and_the_next_of_its_name_has_another(kube: FakeKube) -> None:
    first = keys(kube, "0" * 64)
    found = {await first.root_key(rollout) for rollout in UIDS}
    found.add(await keys(kube, "1" * 64, {SWE: "three"}).root_key(SWE))
    assert found == {tokens.root_key("0" * 64, uid) for uid in ("one", "two", "three")}
    assert len(found) == 3


async def test_the_key_of_the_release_is_made_once_and_survives_its_secret(kube: FakeKube) -> None:
    first = keys(kube, "0" * 64)
    before = await first.root_key(SWE)
    assert await keys(kube, "1" * 64).root_key(SWE) == before, "another process reads it"
    kube.remove(kinds.SECRET, names.RELEASE_SECRET, "rl")
    await first.keep()
    assert await keys(kube, "2" * 64).root_key(SWE) == before, "made again with the key that is in use"
    (secret,) = kube.of(kinds.SECRET)
    assert secret["immutable"] is True


async def test_of_a_rollout_that_is_not_there_nobody_gets_a_key(kube: FakeKube) -> None:
    with pytest.raises(Unavailable, match="rl/gone is not there"):
        await keys(kube, "0" * 64).root_key(RolloutKey("rl", "gone"))
    assert kube.writes == []
