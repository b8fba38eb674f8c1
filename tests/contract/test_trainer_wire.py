"""The SDK carries its own copies of the wire messages; each must mean what the API's model of that name means."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

import pytest

from pearl_api.wire import gateway as api_gateway
from pearl_api.wire import loans as api_loans
from pearl_api.wire import worker as api_worker
from pearl_trainer import messages

if TYPE_CHECKING:
    from pydantic import BaseModel

RENAMED = {messages.Trajectory: api_gateway.TrajectoryExport}
MESSAGES = [
    item
    for item in vars(messages).values()
    if isinstance(item, type) and issubclass(item, messages.Message) and item is not messages.Message
]
SENT = [
    messages.RegisterRequest("swe", ("GPU-1",), "pearl", "job"),
    messages.AccessRequest("swe", "pearl"),
    messages.LendRequest("request-1", 90.0, after_epoch=3),
    messages.ReclaimingNotice(4, 10.0),
    messages.ReclaimedNotice(4, free=True, total_seconds=0.4, killed=True),
    messages.HeartbeatRequest(4),
    messages.ReclaimRequest(4, 9.9),
    messages.OpenBatch(1, 4, 16, 3, 2),
    messages.FinishTrajectory("t", "g", 0.5),
    messages.AbortTrajectory("t", "g", "tooLong"),
    messages.PermitRequest("g", 16, 1, 30.0),
]


def model_of(message: type[messages.Message]) -> type[BaseModel]:
    found: Any = RENAMED.get(message)
    for module in (api_loans, api_worker, api_gateway):
        found = found or getattr(module, message.__name__, None)
    assert found is not None, f"the API has no {message.__name__}"
    model: type[BaseModel] = found
    return model


@pytest.mark.parametrize("message", MESSAGES, ids=lambda item: item.__name__)
def test_every_message_has_the_fields_of_its_model(message: type[messages.Message]) -> None:
    model = model_of(message)
    ours = {messages.camel(field.name): field for field in fields(message)}  # type: ignore[arg-type]
    theirs = {str(info.alias or info.serialization_alias): info for info in model.model_fields.values()}
    assert set(ours) == set(theirs)
    for name, field in ours.items():
        optional = field.default is not MISSING or field.default_factory is not MISSING
        if optional and not theirs[name].is_required():
            default = theirs[name].get_default(call_default_factory=True, validated_data={})
            assert field.default == (default if default is None else type(field.default)(default)), name


@pytest.mark.parametrize("message", SENT, ids=lambda item: type(item).__name__)
def test_what_the_sdk_sends_is_what_the_receiver_reads(message: messages.Message) -> None:
    read = model_of(type(message)).model_validate(message.to_wire())
    assert read.model_dump(mode="json", by_alias=True, exclude_none=True) == message.to_wire()


def test_fields_that_are_left_out_get_the_receivers_defaults() -> None:
    request = api_loans.RegisterRequest.model_validate(messages.RegisterRequest("swe", ("GPU-1",)).to_wire())
    assert (request.rollout_namespace, request.group) == (None, None)


def received() -> list[tuple[type[messages.Message], BaseModel]]:
    agent = api_loans.AgentEndpoint(pod="b", uid="u", url=None)
    option = api_loans.AccessOption(access="SharedClaim", possible=True, chosen=True, reason="Chosen", message="Both.")
    segment = api_gateway.Segment(turn=0, worker="w", version=1, start=2, end=3, reason="complete")
    return [
        (
            messages.RegisterAnswer,
            api_loans.RegisterAnswer(
                namespace="ml",
                name="t",
                token="x",  # noqa: S106 - no secret
                slots=1,
                agents=[agent],
                gateway_url="http://g",
                gateway_token="y",  # noqa: S106 - no secret
                weights_source=None,
                reclaim_seconds=10,
                heartbeat_seconds=1,
                ttl_seconds=8,
                epoch=5,
                access=[option],
            ),
        ),
        (messages.AccessAnswer, api_loans.AccessAnswer(wanted="Auto", options=[option])),
        (messages.LendAnswer, api_loans.LendAnswer(epoch=6, granted=True, reason="Applied", agents=[agent])),
        (messages.LoanView, api_loans.LoanView(namespace="ml", name="t", epoch=6, phase="Serving", agents=[agent])),
        (messages.LoanState, api_worker.LoanState(epoch=6, fenced=False, granted=True)),
        (
            messages.ReclaimAnswer,
            api_worker.ReclaimAnswer(
                epoch=6, free=True, killed=False, drain_seconds=0.1, sleep_seconds=0.2, total_seconds=0.3
            ),
        ),
        (
            messages.PermitAnswer,
            api_gateway.PermitAnswer(granted=True, reason="Free", in_flight=3, window=None, weight_version=2),
        ),
        (
            messages.Trajectory,
            api_gateway.TrajectoryExport(
                trajectory="t",
                group=None,
                state="finished",
                reward=1.0,
                cause=None,
                turns=1,
                token_ids=[1, 2, 3],
                loss_mask=[0, 0, 1],
                logprobs=[None, None, -0.5],
                versions=[None, None, 1],
                segments=[segment],
            ),
        ),
    ]


@pytest.mark.parametrize(("message", "sent"), received(), ids=lambda item: getattr(item, "__name__", ""))
def test_what_the_sender_writes_is_what_the_sdk_reads(message: type[messages.Message], sent: BaseModel) -> None:
    wire = sent.model_dump(mode="json", by_alias=True)
    ours = message.from_wire({**wire, "aFieldOfTomorrow": 1})
    assert model_of(message).model_validate(ours.to_wire()) == sent
