"""From pods, samples and notices to the planner's snapshot; unknown stays None."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pearl_api import names
from pearl_api.rollout import Parallelism, PearlRolloutSpec
from pearl_api.wire.gateway import (
    BatchProgress,
    ConsumerView,
    Counters,
    GatewayStats,
    LiveStates,
    TrajectoryProgress,
    WorkerView,
)
from pearl_api.wire.worker import WorkerPhase, WorkerState
from pearl_operator.facts import NodeFact, PodFact, pod_fact
from pearl_operator.observe import Facts, snapshot_of, worker_state
from pearl_operator.policy import budget_of, engine_choice, gpu_products
from pearl_operator.ports import EngineSamples
from pearl_operator.resources.worker import shape_hash
from pearl_operator.sources import Samples, in_transition
from pearl_planner import types
from pearl_planner.types import WorkerMetrics

NOW = 1_800_000_000.0
SPEC = PearlRolloutSpec.model_validate(
    {
        "model": {"name": "Qwen/Qwen3-8B", "uri": "/models/x"},
        "engine": {"image": "example/worker:1", "tensorParallel": 2},
        "capacity": {"reserved": {"gpus": 4}, "borrowed": {"maxGpus": 8}},
    }
)


def body(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "swe-w1-4",
            "namespace": "rl",
            "uid": "uid-1",
            "resourceVersion": "17",
            "creationTimestamp": "2027-01-15T07:59:00Z",
            "labels": {
                names.LABEL_ROLLOUT: "swe",
                names.LABEL_COMPONENT: "worker",
                names.LABEL_ZONE: "reserved",
                names.LABEL_SLOT: "1",
                names.LABEL_ROLE: "decode",
                names.LABEL_ROLE_EPOCH: "6",
                names.LABEL_ACTIVITY: "draining",
                names.LABEL_SHAPE: shape_hash(SPEC, names.Zone.RESERVED, 2),
            },
            "managedFields": [
                {"manager": "pearl-role", "time": "2027-01-15T07:59:50Z"},
                {"manager": "kubelet", "time": "2027-01-15T07:59:59Z"},
            ],
        },
        "spec": {"nodeName": "n1", "containers": [{"resources": {"requests": {"nvidia.com/gpu": "2", "cpu": "4"}}}]},
        "status": status,
    }


RUNNING = {
    "phase": "Running",
    "podIP": "10.0.0.7",
    "containerStatuses": [{"restartCount": 1, "state": {"running": {}}}],
    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2027-01-15T07:59:30Z"}],
}


def ready_pod() -> PodFact:
    fact = pod_fact(body(**RUNNING))
    assert fact is not None
    return fact


def agent(phase: WorkerPhase, starts: int = 1) -> WorkerState:
    return WorkerState(pod_uid="uid-1", phase=phase, activity=names.Activity.ACTIVE, engine_starts=starts)


def snapshot(pod: PodFact, samples: Samples, spec: PearlRolloutSpec = SPEC) -> types.Snapshot:
    return snapshot_of(
        Facts(
            spec=spec,
            pods=(pod,),
            nodes={},
            loans=(),
            samples=samples,
            budget=budget_of(spec, loans_enabled=True),
            target=None,
            memory=types.Memory(),
            now=NOW,
        )
    )


def test_pod_becomes_a_worker() -> None:
    view = WorkerView(
        uid="uid-1",
        pod="swe-w1-4",
        role=names.Role.DECODE,
        acked_epoch=5,
        activity=names.Activity.ACTIVE,
        ready=True,
        in_flight=3,
        resident_tokens=4096,
    )
    stats = GatewayStats(
        rollout="swe",
        uptime_seconds=9,
        profile=None,
        profile_age_seconds=None,
        batch=BatchProgress(
            step=7,
            groups=4,
            group_size=8,
            need_groups=3,
            min_version=0,
            started=20,
            finished=10,
            aborted=1,
            complete_groups=1,
            open_seconds=33.0,
            closed=False,
        ),
        unfinished=[TrajectoryProgress(group="g", turns_done=2, context_tokens=900, idle_seconds=None)],
        live=LiveStates(queued=1, prefilling=2, decoding=3, environment=4),
        workers=[view],
        counters=Counters(),
        window=None,
        local_append_tokens=0,
        weights_wanted=None,
        weights_min=None,
        weights_max=None,
        refill=True,
        consumer=ConsumerView(update_seconds=160.0, waiting_seconds=3.0, ready_trajectories=12),
    )
    seen = snapshot(ready_pod(), Samples(stats=stats, stats_age=1.5))
    assert seen.trainer == types.Trainer(160.0, 3.0, 12)
    assert seen.feeding is types.Feeding.REFILL
    worker = seen.workers[0]
    assert (worker.slot, worker.incarnation, worker.gpus) == (1, 4, 2)
    assert (worker.role, worker.role_epoch, worker.acked_epoch) == (types.Role.DECODE, 6, 5)
    assert (worker.in_flight, worker.resident_tokens) == (3, 4096)
    assert worker.activity is types.Activity.DRAINING
    assert worker.acked_activity is types.Activity.ACTIVE
    assert worker.draining_seconds == 10.0
    assert worker.state is types.WorkerState.READY
    assert worker.shape_current
    assert seen.measurements.gateway_age_seconds == 1.5
    assert seen.measurements.live_trajectories == 10
    assert seen.batch is not None
    assert (seen.batch.need_groups, seen.batch.elapsed_seconds) == (3, 33.0)
    assert seen.batch.unfinished == (types.Trajectory("g", 2, 900, None),)


def test_what_nobody_measured_is_unknown() -> None:
    seen = snapshot(ready_pod(), Samples())
    worker = seen.workers[0]
    assert (worker.acked_epoch, worker.in_flight, worker.resident_tokens, worker.acked_activity) == (None,) * 4
    assert seen.measurements.gateway_age_seconds is None
    assert seen.measurements.prometheus_age_seconds is None
    assert seen.measurements.live_trajectories is None
    assert (seen.profile, seen.batch) == (None, None)


def test_series_of_the_dead_and_of_strangers_are_left_out() -> None:
    mine, other = WorkerMetrics(running=2.0), WorkerMetrics(running=9.0)
    by_pod = {"rl/swe-w1-4": mine, "rl/swe-w1-3": other, "elsewhere/swe-w1-4": other}
    seen = snapshot(ready_pod(), Samples(engines=EngineSamples(by_pod, dict.fromkeys(by_pod, NOW)), engines_age=0.0))
    assert seen.measurements.engines == {"uid-1": mine}


def test_a_pod_from_an_older_template_is_not_current() -> None:
    seen = snapshot(replace(ready_pod(), shape="older"), Samples())
    assert not seen.workers[0].shape_current


@pytest.mark.parametrize(
    ("change", "phase", "served", "expected"),
    [
        ({"running": False, "ready": False, "phase": "Pending"}, None, False, "pending"),
        ({"ready": False}, None, False, "starting"),
        ({"ready": False}, WorkerPhase.STARTING, False, "starting"),
        ({"ready": False}, WorkerPhase.READY, False, "starting"),
        ({"ready": False}, WorkerPhase.STARTING, True, "unready"),
        ({"ready": False}, WorkerPhase.WEIGHTS_FAILED, False, "unready"),
        ({}, None, True, "ready"),
        ({}, WorkerPhase.DRAINING, True, "ready"),
        ({}, WorkerPhase.ASLEEP, True, "asleep"),
        ({"ready": False, "loan": "trainer-0"}, WorkerPhase.COLD, False, "cold"),
        ({"ready": False, "loan": "trainer-0"}, WorkerPhase.STOPPED, True, "cold"),
        ({"deleting": True}, None, True, "terminating"),
        ({"phase": "Failed", "running": False, "ready": False}, None, True, "failed"),
    ],
)
def test_state_of_a_worker(
    change: dict[str, Any],
    phase: WorkerPhase | None,
    served: bool,
    expected: str,
) -> None:
    told = agent(phase) if phase is not None else None
    assert worker_state(replace(ready_pod(), **change), told, served=served).value == expected


def test_an_engine_that_was_restarted_is_not_starting_for_the_first_time() -> None:
    pod = replace(ready_pod(), ready=False)
    assert worker_state(pod, agent(WorkerPhase.STARTING, starts=2), served=False) is types.WorkerState.UNREADY


def test_only_pods_in_transition_are_asked_directly() -> None:
    active = replace(ready_pod(), activity="active")
    assert not in_transition(active)
    assert in_transition(replace(active, ready=False))
    assert in_transition(ready_pod()), "it drains"
    assert in_transition(replace(active, zone="borrowed"))
    assert not in_transition(replace(active, ready=False, deleting=True))


def test_a_pod_without_our_labels_is_no_fact() -> None:
    stranger = body(**RUNNING)
    stranger["metadata"]["labels"] = {"app": "x"}
    assert pod_fact(stranger) is None


def test_the_engine_table_follows_the_gpus_of_the_cluster() -> None:
    product = ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3")
    nodes = [NodeFact(name="n1", labels=(product,)), NodeFact(name="n2")]
    assert gpu_products(nodes) == ("NVIDIA-H100-80GB-HBM3",)
    assert engine_choice(SPEC, gpu_products(nodes)).table.name == "Qwen/Qwen3-8B/H100-TP2"
    assert engine_choice(SPEC).problem is None
    other = SPEC.model_copy(update={"model": SPEC.model.model_copy(update={"name": "someone/else"})})
    problem = engine_choice(other).problem
    assert problem is not None
    assert "set spec.engine.table" in problem


def test_each_stage_is_planned_with_the_table_of_its_size() -> None:
    def choice(table: str | None, **sizes: int) -> list[str]:
        engine = SPEC.engine.model_copy(update={"table": table, "parallelism": Parallelism(**sizes)})
        found = engine_choice(SPEC.model_copy(update={"engine": engine}))
        split = found.split_table
        return [found.table.name, *([] if split is None else [split.prefilling.name, split.name])]

    named = "Qwen/Qwen3-8B/H200-TP2"
    sizes = ["Qwen/Qwen3-8B/H200-TP2", "Qwen/Qwen3-8B/H200-TP1", "Qwen/Qwen3-8B/H200-TP4"]
    assert choice(named, prefill=1, decode=4) == sizes
    assert choice(named, prefill=2, decode=8)[2] == f"{named} x4", "nobody measured one of eight"
    assert choice(named, prefill=2, decode=2) == [named]


def test_a_pod_is_current_if_it_is_of_a_size_that_the_spec_still_has() -> None:
    def seen(**sizes: int) -> tuple[bool, int]:
        engine = SPEC.engine.model_copy(update={"parallelism": Parallelism(**sizes)})
        spec = SPEC.model_copy(update={"engine": engine})
        pod = body(**RUNNING)
        pod["metadata"]["labels"][names.LABEL_SHAPE] = shape_hash(SPEC, names.Zone.RESERVED, 1)
        fact = pod_fact(pod)
        assert fact is not None
        [worker] = snapshot(fact, Samples(), spec).workers
        return worker.shape_current, worker.gpus

    assert seen(prefill=1, decode=4) == (True, 1)
    assert seen(prefill=2, decode=4)[0] is False


def test_a_worker_that_holds_its_gpus_by_a_claim_counts_as_one_engines_gpus() -> None:
    stranger = body(**RUNNING)
    stranger["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    fact = pod_fact(stranger)
    assert fact is not None
    assert snapshot(fact, Samples()).workers[0].gpus == SPEC.engine.tensor_parallel == 2
