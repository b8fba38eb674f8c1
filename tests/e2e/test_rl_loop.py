"""The RL loop of the examples, shorter: a policy learns from tokens of real vLLM, its GPU is lent in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from by_transformers import logprobs
from examples.rl_loop import loop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.rl_loop.loop import Run

    from pearl_dev.fleet import Api
    from pearl_dev.product import Installation

pytestmark = pytest.mark.cluster

STEPS = 16


@pytest.fixture(scope="module")
def run(installation: Installation, api: Api) -> Iterator[Run]:
    """A run to its end."""
    started = loop.start(installation, api)
    loop.follow(started, installation, steps=STEPS, arguments=["--frozen", "6"], say=print)
    yield started
    api.delete(started.fleet.path)
    started.fleet.close()


def test_every_promise_of_the_rl_loop_is_kept(run: Run) -> None:
    assert [one for one in run.promises if not one.kept] == []


def test_exported_logprobs_are_those_of_the_weights_that_the_export_names(run: Run, installation: Installation) -> None:
    version, step = run.steps[-1].version, len(run.frozen) + STEPS - 1
    names = [f"s{step}-n{hidden}-{index}" for hidden in range(1, 8) for index in range(4)]
    exports = [one for one in map(run.fleet.trajectory, names) if one.state == "finished"]
    assert len(exports) > len(names) / 2
    weights = installation.weights_of(run.fleet.name) / str(version) / "model.safetensors"
    own = logprobs(installation, weights, [one.token_ids for one in exports])
    for export, expected in zip(exports, own, strict=True):
        wrote = [index for index, mask in enumerate(export.loss_mask) if mask]
        assert {export.versions[index] for index in wrote} == {version}
        assert [export.logprobs[i] for i in wrote] == pytest.approx([expected[i - 1] for i in wrote], abs=1e-4)
        assert all(export.logprobs[i] is None for i in range(len(export.token_ids)) if i not in wrote)
