"""What DCGM's exporter tells of the workers' GPUs, by all its names; nothing depends on it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import generate_latest

from pearl_operator import kinds
from pearl_operator.dcgm import GpuSample, GpuUse, expression, of_pods, samples
from pearl_operator.errors import Unavailable

if TYPE_CHECKING:
    from fake_cluster import World

pytestmark = pytest.mark.looptime

PODS = "swe-w[0-9]+-[0-9]+"
ACTIVE, UTIL, USED = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"
PROMETHEUS = {"prometheus": {"url": "http://prometheus:9090"}}


def answer(*series: tuple[dict[str, str], float | str]) -> bytes:
    """Of the query API: labels and value of each series."""
    result = [{"metric": metric, "value": [1.0, str(value)]} for metric, value in series]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


@pytest.mark.parametrize(
    "labels",
    [
        {"namespace": "rl", "pod": "swe-w0-0", "UUID": "GPU-1", "Hostname": "n"},
        {"namespace": "rl", "pod": "swe-w0-0", "uuid": "GPU-1", "hostname": "n"},
        # The scrape does not honour labels: `namespace` and `pod` are the exporter's.
        {
            "namespace": "monitoring",
            "pod": "dcgm-exporter-x7k2p",
            "exported_namespace": "rl",
            "exported_pod": "swe-w0-0",
            "gpu": "0",
        },
        # The same where the target has a namespace label and no pod label.
        {"namespace": "monitoring", "exported_namespace": "rl", "pod": "swe-w0-0", "gpu": "0"},
        {"namespace": "monitoring", "pod": "dcgm-x", "pod_namespace": "rl", "pod_name": "swe-w0-0", "gpu": "0"},
    ],
    ids=str,
)
def test_the_pod_that_has_the_gpu_is_found_by_old_and_new_labels(labels: dict[str, str]) -> None:
    assert samples(answer(({"__name__": ACTIVE, **labels}, 0.75))) == [
        GpuSample("rl/swe-w0-0", None, GpuUse(busy=0.75))
    ]


def gpu(series: str, number: int) -> dict[str, str]:
    return {"__name__": series, "namespace": "rl", "pod": "swe-w0-0", "gpu": str(number)}


def test_a_pods_gpus_are_joined_and_the_better_series_counts() -> None:
    active = [(gpu(ACTIVE, 0), 0.5), (gpu(ACTIVE, 1), 1.0)]
    others = [(gpu(UTIL, 0), 100), (gpu(UTIL, 1), 100), (gpu(USED, 0), 1024), (gpu(USED, 1), 3072)]
    (found,) = samples(answer(*others, *active))
    assert found.use == GpuUse(busy=0.75, memory_bytes=4 << 30)
    (found,) = samples(answer(*others))  # profiling counters are off: percent, and coarser
    assert found.use.busy == 1.0


def test_what_is_missing_is_unknown_and_never_0() -> None:
    assert samples(answer()) == []
    (found,) = samples(answer((gpu(ACTIVE, 0), "NaN"), (gpu(USED, 0), 0)))
    assert found.use == GpuUse(busy=None, memory_bytes=0)
    assert samples(answer(({"__name__": UTIL, "gpu": "0", "Hostname": "n"}, 50))) == []  # attributed to no pod
    assert samples(answer((gpu("DCGM_FI_DEV_GPU_TEMP", 0), 50))) == []


def test_an_answer_of_somebody_else_is_no_sample() -> None:
    for raw in (b"<html>", b"{}", b'{"data": {"result": [{"metric": 1}]}}'):
        with pytest.raises(Unavailable, match="Prometheus: unexpected answer"):
            samples(raw)


def test_pods_are_joined_by_name_and_where_it_is_told_by_uid() -> None:
    use = GpuUse(busy=0.5)
    found = [
        GpuSample("rl/a", None, use),
        GpuSample("ml/t-borrower-0", "former", GpuUse(busy=0.9)),
        GpuSample("ml/t-borrower-0", "living", use),
        GpuSample("rl/gone", None, use),
    ]
    assert of_pods(found, {"rl/a": "uid-a", "ml/t-borrower-0": "living"}) == {"uid-a": use, "living": use}


def test_every_name_is_asked_for_in_one_query() -> None:
    asked = expression(PODS)
    series = f"{ACTIVE}|{UTIL}|dcgm_gpu_utilization|{USED}|dcgm_fb_used"
    for label in ("exported_pod", "pod_name", "pod"):
        assert f'{{__name__=~"{series}", {label}=~"{PODS}"}}' in asked


async def test_gpu_series_come_by_role_and_go_and_change_no_look(world: World) -> None:
    world.apply(metrics=PROMETHEUS)
    await world.start()
    await world.until(world.is_ready)
    pods = world.pods
    name, body = min(pods.items())

    def told() -> list[str]:
        assert world.core is not None
        lines = generate_latest(world.core.metrics.registry).decode().splitlines()
        return [line for line in lines if line.startswith("pearl_worker_gpu_")]

    assert told() == []
    namespace, uid = body["metadata"]["namespace"], body["metadata"]["uid"]
    world.prometheus.gpu_samples = [GpuSample(f"{namespace}/{name}", uid, GpuUse(busy=0.25, memory_bytes=2048))]
    await world.rest(40)
    labels = f'role="colocated",rollout="{body["metadata"]["labels"]["pearl.dev/rollout"]}"'
    assert len(told()) == 2
    assert told()[0].startswith(f"pearl_worker_gpu_busy{{{labels}")
    assert told()[0].endswith('zone="reserved"} 0.25')
    assert told()[1].endswith(" 2048.0")
    before: Any = world.condition("MetricsAvailable")
    world.prometheus.gpu_samples = None  # the queries fail
    await world.rest(30)
    assert len(told()) == 2, "as it was known last"
    await world.rest(60)
    assert told() == []
    assert world.condition("MetricsAvailable") == before
    assert world.uids == {each: pod["metadata"]["uid"] for each, pod in pods.items()}
    await world.stop()


async def test_a_prometheus_that_hangs_holds_up_no_look_and_is_left_with_the_rollout(world: World) -> None:
    asked = 0

    async def gpus(*_: object) -> list[GpuSample]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(3600)
        return []

    world.prometheus.gpus = gpus  # type: ignore[method-assign]
    world.apply(metrics=PROMETHEUS)
    await world.start()
    await world.until(world.is_ready)
    assert asked == 1
    world.kube.vanish(kinds.ROLLOUT, "swe", "rl")
    await world.rest(5)
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("GPU use")] == []
    await world.stop()
