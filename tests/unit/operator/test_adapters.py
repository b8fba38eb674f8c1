"""The adapters at their edges: answers of API server and Prometheus, settings from the environment."""

from __future__ import annotations

import asyncio
import json

import kopf
import pytest
from kopf._cogs.structs.references import Resource
from kopf._core.engines.indexing import OperatorIndexers
from kopf._core.reactor.inventory import ResourceMemories
from kopf._core.reactor.processing import process_resource_event

from pearl_dev.virtual.clock import VirtualClock
from pearl_operator import errors, kinds, settings
from pearl_operator.calls import Calls
from pearl_operator.index import Index
from pearl_operator.kube import error_from, path_of
from pearl_operator.prometheus import QUERIES, by_pod
from pearl_operator.watch import build_registry, kopf_settings


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (409, "AlreadyExists", errors.AlreadyExists),
        (409, "Conflict", errors.Conflict),
        (404, "NotFound", errors.NotFound),
        (422, "Invalid", errors.Refused),
        (403, "Forbidden", errors.Refused),
        (429, "TooManyRequests", errors.Unavailable),
        (503, "ServiceUnavailable", errors.Unavailable),
    ],
)
def test_answers_of_the_api_server_become_the_error_tree(status: int, reason: str, expected: type) -> None:
    error = error_from(status, {"reason": reason, "message": "its own sentence"}, "POST /x", None)
    assert type(error) is expected
    assert str(error) == "POST /x: its own sentence"


def test_retry_after_is_obeyed() -> None:
    error = error_from(429, {}, "GET /x", "7")
    assert isinstance(error, errors.RetryAfter)
    assert error.seconds == 7.0


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (path_of(kinds.POD, "rl", "a"), "/api/v1/namespaces/rl/pods/a"),
        (path_of(kinds.POD, None), "/api/v1/pods"),
        (path_of(kinds.NODE, None, "n"), "/api/v1/nodes/n"),
        (
            path_of(kinds.ROLLOUT, "rl", "swe", subresource="status"),
            "/apis/pearl.dev/v1alpha1/namespaces/rl/pearlrollouts/swe/status",
        ),
    ],
)
def test_paths(path: str, expected: str) -> None:
    assert path == expected


def test_prometheus_values_that_are_no_numbers_are_no_samples() -> None:
    def sample(pod: str | None, value: str) -> dict[str, object]:
        metric = {"namespace": "rl", "pod": pod} if pod else {"instance": "x"}
        return {"metric": metric, "value": [1.0, value]}

    result = [sample("a", "2.5"), sample("b", "NaN"), sample("c", "+Inf"), sample(None, "1"), sample("d", "0")]
    raw = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
    assert by_pod(raw) == {"rl/a": 2.5, "rl/d": 0.0}


@pytest.mark.parametrize("raw", [b"<html>", b"{}", b'{"data": {"result": [{"metric": {}}]}}'])
def test_another_answer_than_prometheus_is_an_error_and_not_zero(raw: bytes) -> None:
    with pytest.raises(errors.Unavailable):
        by_pod(raw)


def test_settings_name_the_variable_and_the_fix() -> None:
    with pytest.raises(ValueError, match="PEARL_NAMESPACE is not set"):
        settings.from_env({})
    enough = {"PEARL_NAMESPACE": "rl", "PEARL_GATEWAY_IMAGE": "x"}
    with pytest.raises(ValueError, match="PEARL_LOOK_SECONDS is 'soon': set it to a number"):
        settings.from_env({**enough, "PEARL_LOOK_SECONDS": "soon"})
    with pytest.raises(ValueError, match="PEARL_LOG_LEVEL is 'loud': set it to debug, info, warning or error"):
        settings.from_env({**enough, "PEARL_LOG_LEVEL": "loud"})
    with pytest.raises(ValueError, match="must be below PEARL_LEASE_SECONDS"):
        settings.from_env({**enough, "PEARL_CALL_TIMEOUT_SECONDS": "15"})
    found = settings.from_env({**enough, "PEARL_TRAINER_NAMESPACES": "train, rl,,train"})
    assert found.namespaces == ("rl", "train")


def test_an_engine_series_that_was_renamed_is_asked_for_by_both_names() -> None:
    assert "vllm:kv_cache_usage_perc" in QUERIES["kv_usage"]
    assert " or vllm:gpu_cache_usage_perc" in QUERIES["kv_usage"]


def test_only_pods_of_rollouts_are_watched() -> None:
    tuned = kopf_settings(settings.Settings(namespace="rl", gateway_image="x"))
    assert tuned.watching.label_selectors["v1", "pods"] == "pearl.dev/rollout"


async def test_kopf_hands_an_event_on_without_taking_its_object_apart() -> None:
    """Three deep copies of each pod, for a difference that nobody asks for, took half of the operator's time."""
    chosen = settings.Settings(namespace="rl", gateway_image="x")
    index = Index(clock=VirtualClock())
    resource = Resource("", "v1", "pods", kind="Pod", namespaced=True, verbs=frozenset({"list", "watch"}))
    labels = {"pearl.dev/rollout": "swe", "pearl.dev/component": "worker"}
    meta = {"name": "swe-w0-0", "namespace": "rl", "uid": "u", "resourceVersion": "1", "labels": labels}
    pod = {"metadata": meta, "spec": NotCopied(), "status": NotCopied()}
    written = await process_resource_event(
        lifecycle=kopf.lifecycles.all_at_once,
        indexers=OperatorIndexers(),
        registry=build_registry(index, chosen, Calls(VirtualClock())),
        settings=kopf_settings(chosen),
        memories=ResourceMemories(),
        memobase=kopf.Memo(),
        resource=resource,
        raw_event={"type": "MODIFIED", "object": pod},  # type: ignore[typeddict-item]
        event_queue=asyncio.Queue(),
    )
    assert written is None
    assert index.pods["rl", "swe-w0-0"].address.uid == "u"


class NotCopied(dict[str, object]):
    def __deepcopy__(self, memo: object) -> object:
        raise AssertionError("copied")
