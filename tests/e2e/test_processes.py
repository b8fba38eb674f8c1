"""A gateway of several processes before real vLLM in pods: answers, a flip, and the death of one process."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx
import pytest
from loans_chaos import processes as pod_processes
from prometheus_client.parser import text_string_to_metric_families
from traffic import Traffic, identity, prompt, undisturbed

from pearl_api import names
from pearl_dev.fleet import Fleet, generate_body, turn, wait_for
from pearl_gateway.processes.homes import home_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster

PROCESSES = 2
PROMPTS = [prompt(700 + number, 120) for number in range(6)]


@pytest.fixture(scope="module")
def several(quickstart: Fleet) -> Iterator[Fleet]:
    """The quickstart fleet, one prefill and two decode workers, behind a gateway of two processes."""
    spec = {"mode": "Disaggregated", "ratio": {"prefill": 1, "decode": 2}, "capacity": {"reserved": {"gpus": 3}}}
    quickstart.patch({**spec, "gateway": {"processes": PROCESSES}})
    quickstart.wait_ready(3)
    wait_for(
        lambda: up(quickstart) == PROCESSES,
        seconds=90,
        what=f"{PROCESSES} processes are up",
        last=lambda: gateway_pod(quickstart),
    )
    quickstart.wait_roles({"prefill": 1, "decode": 2})
    yield quickstart
    quickstart.patch({"gateway": {"processes": None}})
    wait_for(lambda: up(quickstart) == 0, seconds=90, what="one process again")
    quickstart.wait_ready(3)


def up(fleet: Fleet) -> int:
    """Processes that are up, as a gateway of several tells; 0 where there is but one, -1 where nobody answers."""
    try:
        return measured(fleet, "pearl_gateway_processes", state="up")
    except httpx.TransportError:  # its pod is replaced
        return -1


def restarted(fleet: Fleet) -> int:
    """Processes that were started again."""
    return measured(fleet, "pearl_gateway_process_restarts_total")


def measured(fleet: Fleet, name: str, **labels: str) -> int:
    """A metric of the gateway; 0 where it has none of that name."""
    headers = {"Authorization": f"Bearer {fleet.client_token()}"}
    page = fleet.http.get(f"{fleet.gateway_url()}/metrics", headers=headers)
    found = [
        sample.value
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return int(sum(found))


def gateway_pod(fleet: Fleet) -> str:
    """UID of the gateway's pod that is not being deleted."""
    selector = f"{names.LABEL_ROLLOUT}={fleet.name},{names.LABEL_COMPONENT}={names.COMPONENT_GATEWAY}"
    pods = fleet.api.items(f"/api/v1/namespaces/{fleet.namespace}/pods", labelSelector=selector)
    (uid,) = (pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" not in pod["metadata"])
    return str(uid)


def kill_process(fleet: Fleet, number: int) -> None:
    """SIGKILL for one process of the gateway's pod, not for its supervisor."""
    pids = pod_processes.with_arguments(gateway_pod(fleet), "--process", str(number))
    assert len(pids) == 1, pids
    pod_processes.send(pids, signal.SIGKILL)


def test_a_flip_behind_several_processes_loses_nothing(several: Fleet) -> None:
    traffic, lost = Traffic(several), several.stats().counters.lost_turns
    trajectories = [f"several-{number}" for number in range(len(PROMPTS))]
    assert {home_of(name, PROCESSES) for name in trajectories} == set(range(PROCESSES))
    running = [traffic.start(name, tokens, 300) for name, tokens in zip(trajectories, PROMPTS, strict=True)]
    for ratio in ({"prefill": 2, "decode": 1}, {"prefill": 1, "decode": 2}):
        several.patch({"ratio": ratio})
        several.wait_roles(ratio)
    answers = [future.result(timeout=180).token_ids for future in running]
    traffic.close()
    assert answers == [undisturbed(several, tokens, 300) for tokens in PROMPTS]
    assert several.stats().counters.lost_turns == lost
    for name, tokens, answer in zip(trajectories, PROMPTS, answers, strict=True):
        assert several.trajectory(name).token_ids == [*tokens, *answer]


@pytest.mark.parametrize("number", range(PROCESSES))
def test_a_process_dies_and_whoever_repeats_its_keys_gets_every_answer_once(several: Fleet, number: int) -> None:
    pod, lost, restarts = gateway_pod(several), several.stats().counters.lost_turns, restarted(several)
    names_of_turns = [f"dies-{number}-{one}" for one in range(len(PROMPTS))]
    assert {home_of(name, PROCESSES) for name in names_of_turns} == set(range(PROCESSES))
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        running = [pool.submit(insist, several, *each, 240) for each in zip(names_of_turns, PROMPTS, strict=True)]
        wait_for(lambda: several.stats().live.decoding, seconds=20, what="turns are decoding")
        kill_process(several, number)
        answers = [future.result(timeout=180) for future in running]
    assert answers == [undisturbed(several, tokens, 240) for tokens in PROMPTS]
    for name, tokens, answer in zip(names_of_turns, PROMPTS, answers, strict=True):
        assert several.trajectory(name).token_ids == [*tokens, *answer]
    wait_for(lambda: up(several) == PROCESSES, seconds=60, what=f"process {number} is up again")
    assert restarted(several) == restarts + 1
    assert gateway_pod(several) == pod, "the pod did not restart"
    assert several.stats().counters.lost_turns == lost


def insist(fleet: Fleet, trajectory: str, tokens: list[int], count: int) -> list[int]:
    """The answer to a key, asked for until it comes."""
    headers = {"Authorization": f"Bearer {fleet.client_token()}", **identity(trajectory)}
    url, body = f"{fleet.gateway_url()}/inference/v1/generate", generate_body(tokens, count)
    deadline = time.monotonic() + 150
    while True:
        with suppress(httpx.TransportError):
            answer = fleet.http.post(url, json=body, headers=headers)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                assert answer.status_code == httpx.codes.OK, answer.text
                return turn(answer.json()).token_ids
        assert time.monotonic() < deadline, f"no answer to {trajectory}"
        time.sleep(0.2)
