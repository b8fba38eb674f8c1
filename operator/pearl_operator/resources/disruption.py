"""The PodDisruptionBudget of a rollout's workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_api import names
from pearl_operator.resources import common

if TYPE_CHECKING:
    from pearl_operator.facts import RolloutFact
    from pearl_operator.ports import Object


def worker_budget(rollout: RolloutFact, workers: int) -> Object:
    """Lets a drain take one worker at a time.

    Bare pods have no controller with a scale, so only `minAvailable` as a number works. Evictions alone obey it;
    the operator's own deletions do not ask.
    """
    selector = {names.LABEL_ROLLOUT: rollout.key.name, names.LABEL_COMPONENT: names.COMPONENT_WORKER}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": common.metadata(rollout, f"{rollout.key.name}-workers", names.COMPONENT_WORKER),
        "spec": {
            "minAvailable": max(workers - 1, 0),
            "selector": {"matchLabels": selector},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
