"""The loan API over HTTP: its description, its errors, and how often it may be called."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from fastapi.routing import APIRoute

from pearl_api import openapi, tokens
from pearl_api.openapi_page import html_page
from pearl_operator.loans.limits import Calls, Limits

if TYPE_CHECKING:
    from loan_cluster import LoanCluster

pytestmark = pytest.mark.looptime

LENDING = "/v1/loans/ml/trainer-0/lend"
PROJECTED = "token of trainer-0"
OFFER = {"requestId": "request-1"}


async def begun(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    await client.close()


async def call(
    cluster: LoanCluster, method: str, path: str, body: Any = None, *, token: str = PROJECTED, **options: Any
) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(transport=cluster.network, trust_env=False) as client:
        return await client.request(method, f"http://operator{path}", json=body, headers=headers, **options)


async def registered(cluster: LoanCluster, **extra: Any) -> Any:
    await begun(cluster)
    answer = await call(cluster, "POST", "/v1/loans/register", {"rollout": "swe", "gpus": ["GPU-a"], **extra})
    assert answer.status_code == 200, answer.text
    await cluster.borrowers_run(1)
    return answer.json()


def said(answer: httpx2.Response) -> tuple[int, str, str]:
    body = answer.json()
    return answer.status_code, body["error"], body["message"]


async def test_the_document_names_every_route_with_its_body_and_answer(cluster: LoanCluster) -> None:
    await begun(cluster)
    described = {
        (path, method.upper()): (
            _name(operation.get("requestBody")),
            _name(operation["responses"]["200"]),
        )
        for path, operations in openapi.loan_api()["paths"].items()
        for method, operation in operations.items()
    }
    served = {
        (route.path, next(iter(route.methods))): (
            route.body_field.field_info.annotation.__name__ if route.body_field else None,
            route.response_model.__name__,
        )
        for route in cluster.service.router().routes
        if isinstance(route, APIRoute) and route.response_model is not None
    }
    unserved = {("/v1/loans/access", "POST")} - served.keys()
    assert served == {key: value for key, value in described.items() if key not in unserved}


def _name(content: Any) -> str | None:
    return content["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[-1] if content else None


async def test_the_document_and_its_page_are_served_to_everybody(cluster: LoanCluster) -> None:
    await begun(cluster)
    answer = await call(cluster, "GET", "/v1/loans/openapi.json", token="")
    assert answer.json() == openapi.loan_api()
    page = (await call(cluster, "GET", "/v1/loans")).text
    assert page == html_page(openapi.loan_api())
    assert "/v1/groups/{namespace}/{name}/lend" in page
    assert "http://" not in page  # nothing from elsewhere


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body.requestId: Field required"),
        ({"requestId": "short"}, "body.requestId: String should have at least 8 characters (got short)"),
        ({**OFFER, "capSeconds": 0}, "body.capSeconds: Input should be greater than 0 (got 0)"),
        ({**OFFER, "afterEpoch": -1}, "body.afterEpoch: Input should be greater than or equal to 0"),
        ({**OFFER, "afterEpoch": 1 << 62}, "body.afterEpoch: Input should be less than or equal to"),
        (["not", "an", "object"], "body: "),
    ],
)
async def test_a_wrong_body_is_told_by_its_field(cluster: LoanCluster, body: Any, field: str) -> None:
    loan = await registered(cluster)
    status, error, message = said(await call(cluster, "POST", LENDING, body, token=loan["token"]))
    assert (status, error) == (422, "InvalidBody")
    assert message.startswith(field)


@pytest.mark.parametrize("sent", ['{"requestId": ', '{"requestId": "request-1", "capSeconds": Infinity}', "\x00"])
async def test_what_is_no_json_is_refused(cluster: LoanCluster, sent: str) -> None:
    loan = await registered(cluster)
    headers = {"Authorization": f"Bearer {loan['token']}", "Content-Type": "application/json"}
    async with httpx2.AsyncClient(transport=cluster.network, trust_env=False) as client:
        answer = await client.post(f"http://operator{LENDING}", content=sent, headers=headers)
    assert said(answer)[:2] == (422, "InvalidBody")


async def test_a_foreign_token_opens_nothing(cluster: LoanCluster) -> None:
    await registered(cluster)
    foreign = {
        "another pod's": tokens.loan_token("f" * 64, "ml", "trainer-1", "trainer-0-uid"),
        "an earlier pod's of that name": tokens.loan_token("f" * 64, "ml", "trainer-0", "earlier-uid"),
        "an agent's": tokens.derive("f" * 64, "agent"),
        "a group's": tokens.group_token("f" * 64, "ml", "trainer-0"),
        "the projected": PROJECTED,
        "none": "",
    }
    for whose, token in foreign.items():
        assert said(await call(cluster, "POST", LENDING, OFFER, token=token))[:2] == (401, "WrongToken"), whose
        assert said(await call(cluster, "DELETE", "/v1/loans/ml/trainer-0", token=token))[0] == 401, whose
    assert said(await call(cluster, "GET", "/v1/loans/ml/trainer-9"))[:2] == (404, "LoanNotFound")


@pytest.mark.parametrize(
    ("body", "reason", "message"),
    [
        ({"gpus": ["all"]}, "UnknownGpu", "'all', which is no GPU's UUID"),
        ({"gpus": ["GPU-a,GPU-b"]}, "UnknownGpu", "nvidia-smi"),
        ({"gpus": ["0"]}, "UnknownGpu", "not indices"),
        ({"gpus": []}, "InvalidBody", "body.gpus"),
        ({"gpus": ["GPU-a", "GPU-a"]}, "TooManyGpus", "twice"),
        ({"rollout": "absent"}, "RolloutNotFound", "absent"),
        ({"group": "a group"}, "InvalidBody", "body.group"),
    ],
)
async def test_a_wrong_enrolment_is_refused(cluster: LoanCluster, body: Any, reason: str, message: str) -> None:
    await begun(cluster)
    answer = await call(cluster, "POST", "/v1/loans/register", {"rollout": "swe", "gpus": ["GPU-a"], **body})
    assert said(answer)[1] == reason
    assert message in said(answer)[2]


async def test_a_caller_in_a_loop_is_told_when_to_try_again(cluster: LoanCluster) -> None:
    loan = await registered(cluster)
    cluster.planner = lambda: (False, "BorrowNotWorthwhile")
    answers = [
        await call(cluster, "POST", LENDING, {"requestId": f"request-{number}"}, token=loan["token"])
        for number in range(int(Calls.CHANGE.value.burst) + 1)
    ]
    assert {answer.status_code for answer in answers[:-1]} == {200}
    status, error, message = said(answers[-1])
    assert (status, error, answers[-1].headers["Retry-After"]) == (429, "TooManyCalls", "1")
    assert "in a loop" in message
    metrics = cluster.service.metrics
    assert metrics.get_sample_value("pearl_loan_calls_refused_total", {"reason": "TooManyCalls"}) == 1
    # The trainer may still see and end things.
    assert (await call(cluster, "GET", "/v1/loans/ml/trainer-0", token=loan["token"])).status_code == 200


def test_a_bucket_fills_again_and_others_have_their_own() -> None:
    limits = Limits()
    assert [limits.wait_seconds(Calls.REGISTER, "a", 0.0) for _ in range(10)] == [0.0] * 10
    assert limits.wait_seconds(Calls.REGISTER, "a", 0.0) == pytest.approx(1.0)
    assert limits.wait_seconds(Calls.REGISTER, "b", 0.0) == 0.0
    assert limits.wait_seconds(Calls.CHANGE, "a", 0.0) == 0.0
    assert limits.wait_seconds(Calls.REGISTER, "a", 1.0) == 0.0
    assert limits.wait_seconds(Calls.REGISTER, "a", 1.0) == pytest.approx(1.0)


async def test_a_repeated_request_is_answered_alike_and_makes_no_epoch(cluster: LoanCluster) -> None:
    loan = await registered(cluster)
    first = (await call(cluster, "POST", LENDING, OFFER, token=loan["token"])).json()
    again = (await call(cluster, "POST", LENDING, OFFER, token=loan["token"])).json()
    assert first["granted"], first
    assert again == first
    assert json.dumps(cluster.loan()).count('"epoch"') == 1


async def test_a_late_duplicate_of_a_refused_offer_is_no_new_offer(cluster: LoanCluster) -> None:
    loan = await registered(cluster)
    cluster.planner = lambda: (False, "BorrowNotWorthwhile")
    refused = (await call(cluster, "POST", LENDING, OFFER, token=loan["token"])).json()
    await call(cluster, "POST", LENDING, {"requestId": "request-2"}, token=loan["token"])
    cluster.planner = lambda: (True, "Granted")
    assert (await call(cluster, "POST", LENDING, OFFER, token=loan["token"])).json() == refused


async def test_an_offer_made_before_a_grant_is_refused_after_it_also_by_another_process(cluster: LoanCluster) -> None:
    loan = await registered(cluster)
    granted = (await call(cluster, "POST", LENDING, OFFER, token=loan["token"])).json()
    await cluster.kill()
    await cluster.start()
    await asyncio.sleep(0.1)
    body = {"requestId": "request-0", "afterEpoch": granted["epoch"] - 1}
    late = (await call(cluster, "POST", LENDING, body, token=loan["token"])).json()
    assert (late["granted"], late["reason"], late["epoch"]) == (False, "Superseded", granted["epoch"])
    assert "offer anew with afterEpoch" in late["message"]


async def test_a_restarted_operator_answers_a_repeated_request_with_the_same_epoch(cluster: LoanCluster) -> None:
    loan = await registered(cluster)
    first = (await call(cluster, "POST", LENDING, OFFER, token=loan["token"])).json()
    await cluster.kill()
    await cluster.start()
    await asyncio.sleep(0.1)
    again = (await call(cluster, "POST", LENDING, OFFER, token=loan["token"])).json()
    assert (first["granted"], first["epoch"]) == (again["granted"], again["epoch"]) == (True, 1)
    await call(cluster, "POST", f"{loan['path']}/reclaiming", {"epoch": 1, "withinSeconds": 5}, token=loan["token"])
    await cluster.kill()
    await cluster.start()
    await asyncio.sleep(0.1)
    over = (await call(cluster, "POST", LENDING, OFFER, token=loan["token"])).json()
    assert (over["granted"], over["reason"], over["epoch"]) == (False, "Withdrawn", 1)
