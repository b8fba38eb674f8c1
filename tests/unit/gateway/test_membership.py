"""What the watch says becomes facts; what the CR says becomes routing parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pearl_api.names import Activity, Role
from pearl_gateway.cluster import apply_rollout, pod_facts
from pearl_gateway.fleet import Fleet, WorkerFacts
from pearl_gateway.gateway import Routing
from pearl_gateway.membership import read_workers
from pearl_gateway.settings import Limits, read_settings

if TYPE_CHECKING:
    from pathlib import Path


def pod(**more: Any) -> dict[str, Any]:
    labels = {"pearl.dev/role": "decode", "pearl.dev/role-epoch": "7", "pearl.dev/activity": "active"}
    return {
        "metadata": {"uid": "u1", "name": "r-w0-0", "labels": labels, **more},
        "status": {"podIP": "10.1.0.4", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def test_pod_becomes_facts() -> None:
    assert pod_facts(pod()) == WorkerFacts(
        uid="u1",
        pod="r-w0-0",
        url="http://10.1.0.4:8000",
        agent_url="http://10.1.0.4:8001",
        role=Role.DECODE,
        role_epoch=7,
        activity=Activity.ACTIVE,
        ready=True,
    )


def test_mistyped_labels_do_not_stop_the_watch() -> None:
    labels = {"pearl.dev/role": "decoder", "pearl.dev/role-epoch": "x", "pearl.dev/activity": "busy"}
    facts = pod_facts(pod(labels=labels))
    assert (facts.role, facts.role_epoch, facts.activity) == (Role.COLOCATED, 0, Activity.ACTIVE)


def test_pod_that_is_deleted_drains() -> None:
    assert pod_facts(pod(deletionTimestamp="2026-01-01T00:00:00Z")).activity is Activity.DRAINING


def test_pod_without_address_or_conditions_is_not_ready() -> None:
    facts = pod_facts({"metadata": {"uid": "u", "name": "p"}})
    assert (facts.url, facts.ready, facts.role) == (None, False, Role.COLOCATED)


def test_static_file_needs_urls() -> None:
    assert read_workers('[{"url": "http://h:1/", "role": "prefill"}]')[0].url == "http://h:1"
    with pytest.raises(ValueError, match="list of objects with `url`"):
        read_workers('[{"role": "prefill"}]')
    with pytest.raises(ValueError, match="'h:1' must begin with http://"):
        read_workers('[{"url": "h:1"}]')


def test_routing_follows_the_rollout() -> None:
    routing = Routing(local_append_tokens=64, window=None, max_staleness=1)
    status = {"routing": {"localAppendTokens": 200, "inFlightWindow": 12}}
    apply_rollout({"spec": {"weights": {"maxStaleness": 3}}, "status": status}, routing)
    assert routing == Routing(local_append_tokens=200, window=12, max_staleness=3)
    apply_rollout({"spec": {}, "status": {}}, routing)
    assert routing == Routing(local_append_tokens=200, window=12, max_staleness=3)


async def test_worker_that_comes_back_is_loaded_slowly() -> None:
    now = [0.0]
    fleet = Fleet(lambda: now[0])
    for uid in ("a", "b"):
        fleet.upsert(WorkerFacts(uid, uid, "http://x", None, Role.COLOCATED, 0, Activity.ACTIVE, ready=True))
    fleet.workers["b"].in_flight = 3
    fleet.eject(fleet.workers["a"])
    assert [one.uid for one in fleet.candidates()] == ["b"]
    fleet.restore(fleet.workers["a"])
    # Idle, it weighs 1 + 4 at first, and nothing any more after ten seconds.
    assert [one.load for one in fleet.candidates()] == [5.0, 3.0]
    now[0] = 10.0
    assert [one.load for one in fleet.candidates()] == [0.0, 3.0]


def test_settings_name_the_variable_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "client").write_text("c\n")
    base = {"PEARL_ROLLOUT": "r", "PEARL_TOKENS": str(tmp_path)}
    assert read_settings(base).tokens.client == "c"
    for wrong in ({"PEARL_ROLLOUT": ""}, {"PEARL_STALL_SECONDS": "x"}, {"PEARL_AUTH": "Yes"}, {"PEARL_TOKENS": "/no"}):
        with pytest.raises(ValueError, match=next(iter(wrong)) if "no" not in wrong.values() else "PEARL"):
            read_settings({**base, **wrong})
    with pytest.raises(ValueError, match="PEARL_KV_AGE_LIMIT_PERCENT"):
        Limits(kv_age_share=0.95)
