"""What the real API server makes of our custom resources: defaults, refusals with a sentence, columns."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pearl_api.rollout import PearlRollout
from pearl_dev.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pearl_dev.handle import Cluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "api-validation-test"


def example(name: str = "quickstart") -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / f"examples/{name}.yaml").read_text())
    loaded["metadata"]["namespace"] = NAMESPACE
    return loaded


def loan() -> dict[str, Any]:
    return {
        "apiVersion": "pearl.dev/v1alpha1",
        "kind": "GPULoan",
        "metadata": {"name": "trainer-0", "namespace": NAMESPACE},
        "spec": {
            "trainer": {"name": "trainer-0", "uid": "0c1f4a8e-0000-4000-8000-000000000001"},
            "node": "node-a",
            "gpus": ["GPU-1", "GPU-2"],
            "rolloutRef": {"name": "quickstart", "namespace": NAMESPACE},
        },
    }


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Iterator[Cluster]:
    for name in ("pearlrollouts", "gpuloans"):
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / f"crds/{name}.yaml"))
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}.pearl.dev", "--timeout=30s")
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    yield cluster
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s")


@pytest.fixture(autouse=True)
def empty(api: Cluster) -> Iterator[None]:
    yield
    api.kubectl("-n", NAMESPACE, "delete", "pearlrollouts,gpuloans", "--all")


def replace(api: Cluster, manifest: dict[str, Any]) -> None:
    api.kubectl("replace", "-f", "-", stdin=json.dumps(manifest))


def create(api: Cluster, manifest: dict[str, Any], *words: str) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(
        api.kubectl("create", "-o", "json", *words, "-f", "-", stdin=json.dumps(manifest))
    )
    return stored


def refusal(api: Cluster, manifest: dict[str, Any]) -> str:
    with pytest.raises(CommandError) as refused:
        create(api, manifest, "--dry-run=server")
    return refused.value.output


@pytest.mark.parametrize("name", ["quickstart", "h100-qwen3-8b"])
def test_an_example_is_accepted_and_gets_the_defaults_of_the_models(api: Cluster, name: str) -> None:
    written = example(name)
    stored = create(api, written, "--dry-run=server", "--validate=strict")
    assert stored["spec"]["policy"]["hysteresis"] == {"ratioPercent": 3, "modePercent": 8, "minDwellSeconds": 30}
    assert stored["spec"]["capacity"]["elastic"]["minGpus"] == 0
    assert PearlRollout.model_validate({"spec": stored["spec"]}) == PearlRollout.model_validate(
        {"spec": written["spec"]}
    )


def capacity(**zones: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    def change(spec: dict[str, Any]) -> None:
        for zone, numbers in zones.items():
            spec["capacity"].setdefault(zone, {}).update(numbers)

    return change


def at(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(spec: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for name in parents:
            spec = spec.setdefault(name, {})
        spec[last] = value

    return change


IMPOSSIBLE = {
    "half a worker": (
        [at("engine.tensorParallel", 2)],
        "spec.capacity.reserved.gpus (3) must be a multiple of spec.engine.tensorParallel (2): use 2 or 4",
    ),
    "elastic bounds crossed": (
        [capacity(elastic={"minGpus": 4, "maxGpus": 2})],
        "spec.capacity.elastic.minGpus (4) must not exceed maxGpus (2): lower minGpus or raise maxGpus",
    ),
    "no worker at all": (
        [capacity(reserved={"gpus": 0}, borrowed={"maxGpus": 0})],
        "spec.capacity allows 0 GPUs in all, and one worker needs 1",
    ),
    "borrowing from anybody": (
        [at("capacity.borrowed.trainerSelector", {})],
        "spec.capacity.borrowed.trainerSelector is required when borrowed.maxGpus > 0",
    ),
    "ratio of one mode": (
        [at("mode", "Colocated"), at("ratio", {"prefill": 1, "decode": 2})],
        "spec.ratio means nothing with spec.mode Colocated: remove it",
    ),
    "disaggregated with one worker": (
        [at("mode", "Disaggregated"), capacity(reserved={"gpus": 1}, borrowed={"maxGpus": 0})],
        "needs a prefill and a decode worker, that is 2 GPUs, but spec.capacity allows 1 in all",
    ),
    "prefill wider than decode": (
        [at("engine.parallelism", {"prefill": 2, "decode": 1})],
        "spec.engine.parallelism.prefill (2) must not exceed decode (1)",
    ),
    "decode that is no multiple of prefill": (
        [at("engine.tensorParallel", 2), at("engine.parallelism", {"prefill": 2, "decode": 3})],
        "spec.engine.parallelism.decode (3) must be a multiple of prefill (2)",
    ),
    "colocated workers that fit neither stage": (
        [at("engine.parallelism", {"prefill": 2, "decode": 4})],
        "it must be a multiple of parallelism.prefill (2) and divide parallelism.decode (4); use one of the two",
    ),
    "half a prefill worker": (
        [at("engine.tensorParallel", 2), at("engine.parallelism", {"prefill": 2, "decode": 2})],
        "spec.capacity.reserved.gpus (3) must be a multiple of spec.engine.parallelism.prefill (2): use 2 or 4",
    ),
    "rolling without staleness": (
        [at("weights", {"rollout": "Rolling", "maxStaleness": 0})],
        "set rollout to AllAtOnce (or leave it out), or maxStaleness to 1 or more",
    ),
    "weights from nowhere": (
        [at("weights.source", "/weights")],
        "spec.weights.source must begin with file://, pvc://, http:// or https://",
    ),
    "model from a bucket": ([at("model.uri", "s3://bucket/model")], "spec.model.uri must be an absolute path"),
    "an owned flag": ([at("engine.args", ["--port=80"])], "contains a flag that the operator sets: remove it"),
    "an owned flag, underscored": (
        [at("engine.args", ["--seed", "1", "--tensor_parallel_size", "2"])],
        "contains a flag that the operator sets: remove it",
    ),
    "an unsupported flag": (
        [at("engine.args", ["--pipeline-parallel-size", "2"])],
        "contains a flag that v1alpha1 does not support: remove it",
    ),
    "an owned variable": (
        [at("engine.env", {"PEARL_TOKENS_DIR": "/mine"})],
        "spec.engine.env sets PEARL_TOKENS_DIR, which the operator sets: remove it",
    ),
    "a GPU slice": ([at("engine.gpuResource", "nvidia.com/mig-1g.10gb")], "MIG slice, which v1alpha1 does not support"),
    "a GPU without domain": ([at("engine.gpuResource", "gpu")], "for example nvidia.com/gpu"),
    "a window of nothing": ([at("policy.inFlight", 0)], "must be Auto, Disabled or a whole number of at least 1"),
    "a window called on": ([at("policy.inFlight", "On")], "must be Auto, Disabled or a whole number of at least 1"),
    "hysteresis upside down": (
        [at("policy.hysteresis", {"ratioPercent": 9})],
        "spec.policy.hysteresis.ratioPercent must not exceed modePercent",
    ),
    "a misspelt field": ([at("capacity.reserved", {"gpu": 3})], 'unknown field "spec.capacity.reserved.gpu"'),
    "an unknown mode": ([at("mode", "Split")], 'supported values: "Auto", "Colocated", "Disaggregated"'),
    "nothing for a number": ([at("capacity.reserved.gpus", None)], "spec.capacity.reserved.gpus"),
    "prometheus without scheme": ([at("metrics.prometheus.url", "prometheus:9090")], "spec.metrics.prometheus.url"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_spec_is_refused_with_what_to_change(api: Cluster, case: str) -> None:
    changes, sentence = IMPOSSIBLE[case]
    manifest = example()
    for change in changes:
        change(manifest["spec"])
    assert sentence in refusal(api, manifest)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("a" * 41, "metadata.name has 41 characters: use at most 40"),
        ("a.b", "begin with a-z, then use a-z, 0-9 and '-', no dot"),
        ("1st", "begin with a-z"),
    ],
)
def test_a_name_from_which_no_pod_name_can_be_made_is_refused(api: Cluster, name: str, sentence: str) -> None:
    manifest = example()
    manifest["metadata"]["name"] = name
    assert sentence in refusal(api, manifest)


@pytest.mark.parametrize("window", ["Auto", "Disabled", 1, 512])
def test_a_window_may_be_a_word_or_a_number(api: Cluster, window: str | int) -> None:
    manifest = example()
    at("policy.inFlight", window)(manifest["spec"])
    assert create(api, manifest, "--dry-run=server")["spec"]["policy"]["inFlight"] == window


def status(**fields: Any) -> dict[str, Any]:
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "AllServing",
        "message": "3 of 3",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    return {"conditions": [condition], **fields}


def apply_status(api: Cluster, manifest: dict[str, Any], fields: dict[str, Any], manager: str) -> None:
    body = {key: manifest[key] for key in ("apiVersion", "kind", "metadata")} | {"status": fields}
    words = ["apply", "--server-side", "--subresource=status", f"--field-manager={manager}", "-f", "-"]
    api.kubectl(*words, stdin=json.dumps(body))


def row(api: Cluster, *words: str) -> dict[str, str]:
    head, line = api.kubectl("-n", NAMESPACE, "get", *words).splitlines()
    columns = list(re.finditer(r"\S+", head))
    ends = [column.start() for column in columns[1:]] + [None]
    return {name.group(): line[name.start() : end].strip() for name, end in zip(columns, ends, strict=True)}


def test_columns_show_the_fleet_and_say_nothing_before_anything_is_known(api: Cluster) -> None:
    manifest = example()
    create(api, manifest)
    assert {cell for name, cell in row(api, "pr", "quickstart").items() if name not in {"NAME", "AGE"}} == {""}
    decision = {"time": "2026-01-02T03:04:05Z", "reason": "Applied", "message": "m", "shape": "disaggregated:1P2D"}
    workers = {"prefill": 1, "decode": 2, "colocated": 0, "borrowed": 1, "elastic": 0}
    fields = status(mode="Disaggregated", workers=workers, gpus=3, ready="3/3", lastDecision=decision)
    apply_status(api, manifest, fields, "pearl")
    shown = row(api, "pr", "quickstart")
    del shown["AGE"]
    assert shown == {
        "NAME": "quickstart",
        "MODE": "Disaggregated",
        "P": "1",
        "D": "2",
        "C": "0",
        "GPUS": "3",
        "BORROWED": "1",
        "ELASTIC": "0",
        "READY": "3/3",
        "REASON": "Applied",
    }
    wait = ("wait", "--for=condition=Ready", "pr/quickstart", "--timeout=5s")
    assert "condition met" in api.kubectl("-n", NAMESPACE, *wait)


def test_the_model_of_a_rollout_cannot_change_but_its_size_can(api: Cluster) -> None:
    manifest = example()
    create(api, manifest)
    renamed, grown = copy.deepcopy(manifest), copy.deepcopy(manifest)
    renamed["spec"]["model"]["name"] = "other"
    grown["spec"]["capacity"]["reserved"]["gpus"] = 5
    with pytest.raises(CommandError, match="create a second PearlRollout"):
        replace(api, renamed)
    replace(api, grown)
    assert api.get("pr", "quickstart", "-n", NAMESPACE)["metadata"]["generation"] == 2


def test_a_loan_keeps_what_was_enrolled_and_shows_its_state(api: Cluster) -> None:
    manifest = loan()
    create(api, manifest)
    apply_status(api, manifest, {"epoch": 4, "phase": "Serving", "gpus": 2}, "pearl")
    shown = row(api, "gpuloans", "trainer-0")
    del shown["AGE"]
    assert shown == {"NAME": "trainer-0", "PHASE": "Serving", "EPOCH": "4", "GPUS": "2", "ROLLOUT": "quickstart"}
    moved = copy.deepcopy(manifest)
    moved["spec"]["gpus"] = ["GPU-3"]
    with pytest.raises(CommandError, match="deregister the trainer"):
        replace(api, moved)


def test_two_writers_of_conditions_do_not_remove_each_others(api: Cluster) -> None:
    manifest = example()
    create(api, manifest)
    ready = status()["conditions"][0]
    apply_status(api, manifest, {"conditions": [ready]}, "one")
    apply_status(api, manifest, {"conditions": [{**ready, "type": "Degraded", "reason": "Healthy"}]}, "two")
    stored = api.get("pr", "quickstart", "-n", NAMESPACE)["status"]["conditions"]
    assert sorted(condition["type"] for condition in stored) == ["Degraded", "Ready"]
