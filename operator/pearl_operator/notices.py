"""Notice of a node's end, by what clouds and autoscalers write on nodes, and by a pod's DisruptionTarget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from pearl_operator.clock import from_rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_operator.facts import NodeFact, PodFact


class Sign(BaseModel):
    """Something on a node that announces its end. Exactly one of taint, condition, label, annotation is its key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    taint: str | None = None
    condition: str | None = None
    label: str | None = None
    annotation: str | None = None
    value: str | None = None
    """Only with this value (of a condition: its status, `True` by default); None = whatever it is."""
    reason: str | None = None
    """Only a condition with this reason."""
    seconds: Annotated[float, Field(ge=0)] | None = None
    """Remaining life from when it appears; left out with an annotation, whose value is the time of the end then."""
    ignore: bool = False
    """It announces nothing: takes a sign that is known by default out."""

    @model_validator(mode="after")
    def _is_whole(self) -> Sign:
        if sum(one is not None for one in (self.taint, self.condition, self.label, self.annotation)) != 1:
            raise ValueError("set exactly one of taint, condition, label and annotation")
        if self.reason is not None and self.condition is None:
            raise ValueError("reason is for a condition only: leave it out, or set condition")
        if self.seconds is None and self.annotation is None and not self.ignore:
            raise ValueError("set seconds: how long a node lives once it has this")
        return self

    @property
    def key(self) -> tuple[str | None, ...]:
        """What makes two signs the same one."""
        return (self.taint, self.condition, self.label, self.annotation)


SIGNS: Final = (
    # 30 s in all, of which the kubelet keeps half for critical pods.
    Sign(taint="cloud.google.com/impending-node-termination", seconds=15.0),
    Sign(taint="aws-node-termination-handler/spot-itn", seconds=120.0),
    Sign(taint="aws-node-termination-handler/asg-lifecycle-termination", seconds=120.0),
    Sign(taint="aws-node-termination-handler/scheduled-maintenance", seconds=600.0),
    Sign(taint="karpenter.sh/disrupted", seconds=120.0),
    Sign(annotation="karpenter.sh/nodeclaim-termination-timestamp"),
    Sign(taint="remediator.kubernetes.azure.com/unschedulable", seconds=30.0),
    Sign(taint="ToBeDeletedByClusterAutoscaler", seconds=60.0),
    Sign(taint="node.kubernetes.io/out-of-service", seconds=0.0),
    Sign(taint="pearl.dev/termination-notice", seconds=120.0),
)
"""Of GKE, EKS with its termination handler, Karpenter, AKS and cluster-autoscaler; the last is for anybody to set."""
DISRUPTION_SECONDS: Final = 30.0
"""A pod that is being evicted or preempted."""
_SIGNS: Final = TypeAdapter(list[Sign])


def signs_with(text: str) -> tuple[Sign, ...]:
    """The known signs and those of a JSON list; one with a known key takes its place.

    Raises:
        ValueError: It is not such a list; the message names the entry and the field.
    """
    try:
        more = _SIGNS.validate_json(text or "[]")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the list"
        raise ValueError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None
    replaced = {one.key for one in more}
    kept = [one for one in SIGNS if one.key not in replaced]
    return tuple(one for one in [*kept, *more] if not one.ignore)


def notice_seconds(pod: PodFact, node: NodeFact | None, now: float, signs: tuple[Sign, ...] = SIGNS) -> float | None:
    """Remaining life of a pod in seconds (≥ 0), or None where nothing was announced."""
    remaining = [DISRUPTION_SECONDS] if pod.disruption is not None else []
    if node is not None:
        present = _keys(node)
        shown = (sign for sign in signs if not present.isdisjoint(sign.key))
        remaining += [max(end - now, 0.0) for sign in shown for end in _ends(sign, node, now)]
    return min(remaining, default=None)


def _keys(node: NodeFact) -> set[str | None]:
    """Of everything on it that may be a sign; a look asks for each of its pods, and hardly any node has one."""
    named = {key for key, _ in (*node.labels, *node.annotations)}
    return {*named, *(one.key for one in node.taints), *(one.kind for one in node.conditions)}


def _ends(sign: Sign, node: NodeFact, now: float) -> Iterator[float]:
    """When the node ends by this sign; `now` stands for a start that nobody wrote down."""
    for value, since in _found(sign, node):
        if sign.seconds is not None:
            yield min(since if since is not None else now, now) + sign.seconds
        elif (end := from_rfc3339(value)) is not None:
            yield end


def _found(sign: Sign, node: NodeFact) -> Iterator[tuple[str, float | None]]:
    """Value and start of what the node has of this sign."""
    if sign.condition is not None:
        wanted = sign.value or "True"
        for one in node.conditions:
            if one.kind == sign.condition and one.status == wanted and sign.reason in (None, one.reason):
                yield one.status, one.since
        return
    if sign.taint is not None:
        taints = ((one.key, one.value, one.since) for one in node.taints)
        yield from ((value, since) for key, value, since in taints if key == sign.taint and _fits(sign, value))
        return
    pairs = node.labels if sign.label is not None else node.annotations
    yield from ((value, None) for key, value in pairs if key in sign.key and _fits(sign, value))


def _fits(sign: Sign, value: str) -> bool:
    return sign.value in (None, value)
