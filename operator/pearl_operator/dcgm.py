"""What DCGM's exporter tells of the workers' GPUs, read from Prometheus: for people, never for a decision; pure.

The exporter and those who scrape it have named series and labels differently over the years; `SERIES` and `LABELS` are
all the names that are known. Whatever is missing is unknown (None), never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pearl_operator.vector import samples_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MIB: Final = 1 << 20
_PERCENT: Final = 0.01
SERIES: Final = {
    "busy": (
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0),
        ("DCGM_FI_DEV_GPU_UTIL", _PERCENT),
        ("dcgm_gpu_utilization", _PERCENT),
    ),
    "memory_bytes": (("DCGM_FI_DEV_FB_USED", _MIB), ("dcgm_fb_used", _MIB)),
}
"""By field of `GpuUse`: series and what makes the field's unit of it, the best first."""
LABELS: Final = {
    "namespace": ("exported_namespace", "pod_namespace", "namespace"),
    "pod": ("exported_pod", "pod_name", "pod"),
    "uid": ("exported_pod_uid", "pod_uid"),
}
"""Of the pod that has the GPU, the first that is there. Where the scrape does not honour the exporter's labels,
`namespace` and `pod` are the exporter's own and the other pod's begin with `exported_`; `pod_…` is the oldest form."""
_GPU: Final = ("UUID", "uuid", "gpu", "Hostname", "hostname")
"""By which the GPUs of one pod are told apart; `Hostname` became `hostname` in 2026."""
_KEPT: Final = ", ".join((*(name for names in LABELS.values() for name in names), *_GPU))


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Of one pod."""

    busy: float | None = None
    """Share of the time in which its GPUs computed, their mean, 0..1."""
    memory_bytes: float | None = None
    """Of all its GPUs."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """Uses of a pod as the exporter names it; `uid` None = it does not tell."""

    path: str
    uid: str | None
    use: GpuUse


def expressions(pods: str) -> dict[tuple[str, float], str]:
    """PromQL by series and factor, for pods whose names match `pods`; one value for each GPU.

    `max` joins the two servers of a pair, and the two series of a GPU whose other labels changed.
    """
    return {
        (name, factor): f"max by ({_KEPT}) ("
        + " or ".join(f'{name}{{{label}=~"{pods}"}}' for label in LABELS["pod"])
        + ")"
        for series in SERIES.values()
        for name, factor in series
    }


def samples(answers: Mapping[tuple[str, float], bytes]) -> list[GpuSample]:
    """One for each pod that any series knows; of several series for one field the best counts.

    Raises:
        Unavailable: an answer is none of Prometheus' query API.
    """
    by_series = {series: _by_pod(raw, series[1]) for series, raw in answers.items()}
    pods = dict.fromkeys(pod for found in by_series.values() for pod in found)
    return [GpuSample(path, uid, _use((path, uid), by_series)) for path, uid in pods]


_Pod = tuple[str, str | None]


def _use(pod: _Pod, by_series: Mapping[tuple[str, float], Mapping[_Pod, list[float]]]) -> GpuUse:
    busy, memory = (
        next((found for each in SERIES[field] if (found := by_series.get(each, {}).get(pod))), None)
        for field in ("busy", "memory_bytes")
    )
    return GpuUse(
        busy=None if busy is None else min(sum(busy) / len(busy), 1.0),
        memory_bytes=None if memory is None else sum(memory),
    )


def _by_pod(raw: bytes, factor: float) -> dict[_Pod, list[float]]:
    """The values of a pod's GPUs."""
    values: dict[_Pod, list[float]] = {}
    for metric, value in samples_in(raw):
        pod = _pod(metric)
        if pod is not None:
            values.setdefault(pod, []).append(value * factor)
    return values


def _pod(metric: Mapping[str, Any]) -> _Pod | None:
    namespace, pod, uid = (_first(metric, names) for names in LABELS.values())
    return (f"{namespace}/{pod}", uid) if namespace and pod else None


def _first(metric: Mapping[str, Any], names: Iterable[str]) -> str | None:
    return next((str(metric[name]) for name in names if metric.get(name)), None)


def of_pods(found: Iterable[GpuSample], uids: Mapping[str, str]) -> dict[str, GpuUse]:
    """By pod UID, of the living pods whose UIDs by `namespace/pod` are given; a former pod's are left out."""
    return {uids[each.path]: each.use for each in found if each.path in uids and each.uid in (None, uids[each.path])}
