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
_FACTORS: Final = {name: factor for series in SERIES.values() for name, factor in series}
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


def expression(pods: str) -> str:
    """PromQL for all series of pods whose names match `pods`; one value for each series and GPU.

    `max` joins the two servers of a pair, and the two series of a GPU whose other labels changed.
    """
    name = f'__name__=~"{"|".join(_FACTORS)}"'
    found = " or ".join(f'{{{name}, {label}=~"{pods}"}}' for label in LABELS["pod"])
    return f"max by (__name__, {_KEPT}) ({found})"


def samples(raw: bytes) -> list[GpuSample]:
    """One for each pod that any series knows; of several series for one field the best counts.

    Raises:
        Unavailable: The answer is none of Prometheus' query API.
    """
    by_pod: dict[_Pod, dict[str, list[float]]] = {}
    for metric, value in samples_in(raw):
        pod, series = _pod(metric), metric.get("__name__")
        if pod is not None and series in _FACTORS:
            by_pod.setdefault(pod, {}).setdefault(series, []).append(value * _FACTORS[series])
    return [GpuSample(path, uid, _use(found)) for (path, uid), found in by_pod.items()]


_Pod = tuple[str, str | None]


def _use(found: Mapping[str, list[float]]) -> GpuUse:
    """Of the values of a pod's GPUs by series."""
    busy, memory = (
        next((found[name] for name, _ in SERIES[field] if name in found), None) for field in ("busy", "memory_bytes")
    )
    return GpuUse(
        busy=None if busy is None else min(sum(busy) / len(busy), 1.0),
        memory_bytes=None if memory is None else sum(memory),
    )


def _pod(metric: Mapping[str, Any]) -> _Pod | None:
    namespace, pod, uid = (_first(metric, names) for names in LABELS.values())
    return (f"{namespace}/{pod}", uid) if namespace and pod else None


def _first(metric: Mapping[str, Any], names: Iterable[str]) -> str | None:
    return next((str(metric[name]) for name in names if metric.get(name)), None)


def of_pods(found: Iterable[GpuSample], uids: Mapping[str, str]) -> dict[str, GpuUse]:
    """By pod UID, of the living pods whose UIDs by `namespace/pod` are given; a former pod's are left out."""
    return {uids[each.path]: each.use for each in found if each.path in uids and each.uid in (None, uids[each.path])}
