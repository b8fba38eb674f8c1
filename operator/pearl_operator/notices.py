"""Notice of a node's end, from taints that clouds and autoscalers set, and from a pod's DisruptionTarget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pearl_operator.facts import NodeFact, PodFact

TAINT_SECONDS: Final = {
    "cloud.google.com/impending-node-termination": 15.0,  # of 30 s, kubelet keeps half for critical pods
    "aws-node-termination-handler/spot-itn": 120.0,
    "aws-node-termination-handler/asg-lifecycle-termination": 120.0,
    "aws-node-termination-handler/scheduled-maintenance": 600.0,
    "karpenter.sh/disrupted": 120.0,
    "ToBeDeletedByClusterAutoscaler": 60.0,
    "node.kubernetes.io/out-of-service": 0.0,
    "pearl.dev/termination-notice": 120.0,
}
"""Remaining life in seconds when the taint appears; `pearl.dev/termination-notice` is for anything else to set."""
DISRUPTION_SECONDS: Final = 30.0
"""A pod that is being evicted or preempted."""


def notice_seconds(pod: PodFact, node: NodeFact | None, now: float) -> float | None:
    """Remaining life of a pod in seconds (≥ 0), or None where nothing was announced."""
    remaining = [DISRUPTION_SECONDS] if pod.disruption is not None else []
    for taint in node.taints if node is not None else ():
        window = TAINT_SECONDS.get(taint.key)
        if window is not None:
            elapsed = now - taint.since if taint.since is not None else 0.0
            remaining.append(max(window - max(elapsed, 0.0), 0.0))
    return min(remaining, default=None)
