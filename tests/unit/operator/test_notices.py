"""What announces the end of a node, and how long it still lives."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pearl_api import names
from pearl_operator.facts import NodeFact, PodFact, node_fact, pod_fact
from pearl_operator.notices import SIGNS, notice_seconds, signs_with
from pearl_operator.settings import from_env

NOW = 1_800_000_000.0


def pod() -> PodFact:
    """A worker pod on the node."""
    labels = {names.LABEL_ROLLOUT: "swe", names.LABEL_COMPONENT: "worker"}
    meta = {"name": "w", "namespace": "rl", "uid": "u", "resourceVersion": "1", "labels": labels}
    fact = pod_fact({"metadata": meta, "spec": {"nodeName": "n1"}, "status": {}})
    assert fact is not None
    return fact


def at(seconds: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(**parts: Any) -> NodeFact:
    """A node with these taints, labels, annotations and conditions."""
    meta = {"name": "n1", "labels": parts.get("labels", {}), "annotations": parts.get("annotations", {})}
    return node_fact(
        {"metadata": meta, "spec": {"taints": parts.get("taints")}, "status": {"conditions": parts.get("conditions")}}
    )


def left(found: NodeFact | None, more: str = "") -> float | None:
    """Seconds that a pod on this node has."""
    return notice_seconds(pod(), found, NOW, signs_with(more))


@pytest.mark.parametrize(
    ("taint", "seconds"),
    [
        ("cloud.google.com/impending-node-termination", 15),
        ("aws-node-termination-handler/spot-itn", 120),
        ("karpenter.sh/disrupted", 120),
        ("remediator.kubernetes.azure.com/unschedulable", 30),
        ("ToBeDeletedByClusterAutoscaler", 60),
        ("node.kubernetes.io/out-of-service", 0),
        ("nvidia.com/gpu", None),
        ("kubernetes.azure.com/scalesetpriority", None),
        ("aws-node-termination-handler/rebalance-recommendation", None),
        ("node.kubernetes.io/unschedulable", None),
    ],
)
def test_taints_of_clouds_and_autoscalers(taint: str, seconds: float | None) -> None:
    assert left(node(taints=[{"key": taint, "effect": "NoSchedule"}])) == seconds


def test_the_time_runs_from_when_the_taint_came() -> None:
    taint = {"key": "aws-node-termination-handler/spot-itn", "timeAdded": at(NOW - 20)}
    assert left(node(taints=[taint])) == 100
    assert left(node(taints=[{**taint, "timeAdded": at(NOW - 500)}])) == 0
    assert left(node(taints=[{**taint, "timeAdded": at(NOW + 500)}])) == 120, "clocks differ: not more than the window"


def test_an_annotation_may_hold_the_time_of_the_end() -> None:
    key = "karpenter.sh/nodeclaim-termination-timestamp"
    assert left(node(annotations={key: at(NOW + 45)})) == 45
    assert left(node(annotations={key: "soon"})) is None


def test_the_first_end_counts_and_a_pod_may_have_one_of_its_own() -> None:
    ending = node(taints=[{"key": "karpenter.sh/disrupted"}, {"key": "ToBeDeletedByClusterAutoscaler"}])
    assert left(ending) == 60
    evicted = replace(pod(), disruption="EvictionByEvictionAPI")
    assert notice_seconds(evicted, ending, NOW) == 30
    assert notice_seconds(evicted, None, NOW) == 30
    assert left(None) is None


def test_more_signs_come_from_the_chart() -> None:
    more = json.dumps(
        [
            {"condition": "VMEventScheduled", "reason": "TerminateScheduled", "seconds": 300},
            {"label": "example.com/phase", "value": "ending", "seconds": 90},
            {"taint": "karpenter.sh/disrupted", "ignore": True},
            {"taint": "ToBeDeletedByClusterAutoscaler", "seconds": 20},
        ]
    )
    condition = {"type": "VMEventScheduled", "status": "True", "reason": "TerminateScheduled"}
    scheduled = {**condition, "lastTransitionTime": at(NOW - 100)}
    assert left(node(conditions=[scheduled]), more) == 200
    assert left(node(conditions=[scheduled])) is None
    assert left(node(conditions=[{**scheduled, "status": "False"}]), more) is None
    assert left(node(conditions=[{**scheduled, "reason": "FreezeScheduled"}]), more) is None
    assert left(node(labels={"example.com/phase": "ending"}), more) == 90
    assert left(node(labels={"example.com/phase": "fine"}), more) is None
    assert left(node(taints=[{"key": "karpenter.sh/disrupted"}]), more) is None
    assert left(node(taints=[{"key": "ToBeDeletedByClusterAutoscaler"}]), more) == 20
    assert len(signs_with(more)) == len(SIGNS) + 1


SIGNS_OF_EACH_KIND = [
    {"taint": "t", "seconds": 1},
    {"condition": "c", "seconds": 2},
    {"label": "l", "seconds": 3},
    {"annotation": "a"},
]


@pytest.mark.parametrize(
    ("shown", "seconds"),
    [
        ({"taints": [{"key": "t"}]}, 1),
        ({"conditions": [{"type": "c", "status": "True"}]}, 2),
        ({"labels": {"l": ""}}, 3),
        ({"annotations": {"a": at(NOW + 4)}}, 4),
    ],
    ids=str,
)
def test_a_sign_is_found_among_much_else_and_only_where_it_belongs(shown: dict[str, Any], seconds: float) -> None:
    more = json.dumps(SIGNS_OF_EACH_KIND)
    names_of_others = [f"example.com/{number}" for number in range(100)]
    elsewhere = {
        "taints": [{"key": key} for key in (*names_of_others, "c", "l", "a")],
        "conditions": [{"type": key, "status": "True"} for key in (*names_of_others, "t", "l", "a")],
        "labels": dict.fromkeys((*names_of_others, "t", "c", "a"), ""),
        "annotations": dict.fromkeys((*names_of_others, "t", "c", "l"), at(NOW)),
    }
    assert left(node(**elsewhere), more) is None
    ((kind, parts),) = shown.items()
    both = {**elsewhere[kind], **parts} if isinstance(parts, dict) else [*elsewhere[kind], *parts]
    assert left(node(**{**elsewhere, kind: both}), more) == seconds
    assert left(node(**shown), more) == seconds


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[{"taint": "a"}]', "0: set seconds: how long a node lives once it has this"),
        (
            '[{"taint": "a", "label": "b", "seconds": 1}]',
            "0: set exactly one of taint, condition, label and annotation",
        ),
        ('[{"taint": "a", "seconds": -1}]', "0.seconds: Input should be greater than or equal to 0"),
        ('[{"taint": "a", "seconds": 1, "reason": "x"}]', "0: reason is for a condition only"),
        ('[{"tain": "a", "seconds": 1}]', "0.tain: Extra inputs are not permitted"),
        ("{}", "the list: Input should be a valid"),
    ],
)
def test_a_wrong_entry_is_named(text: str, sentence: str) -> None:
    env = {"PEARL_NAMESPACE": "pearl", "PEARL_GATEWAY_IMAGE": "i", "PEARL_NODE_NOTICES": text}
    with pytest.raises(ValueError, match=r"PEARL_NODE_NOTICES \(operator.nodeNotices of the chart\), ") as failed:
        from_env(env)
    assert sentence in str(failed.value)
    assert from_env({**env, "PEARL_NODE_NOTICES": ""}).node_notices == SIGNS
