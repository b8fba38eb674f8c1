"""The loan protocol from the trainer's side, on virtual time."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pearl_trainer import ConfigurationError, NotReturned, Rejected
from pearl_trainer.async_client import AsyncPearlClient
from pearl_trainer.settings import Settings

if TYPE_CHECKING:
    from conftest import Agent, Device, Pearl

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_registering_lends_at_once_and_heartbeats_keep_the_lease(client: AsyncPearlClient, pearl: Pearl) -> None:
    async with await client.register(rollout="swe", rollout_namespace="pearl") as loan:
        assert loan.lent
        assert loan.epoch == 1
        await asyncio.sleep(300)
        assert loan.lent
        for agent in pearl.agents:
            assert agent.now_fence().granted
            assert 290 <= len(agent.heartbeats) <= 301
    authorization, body = pearl.registered[0]
    assert authorization == "Bearer projected-token"
    assert body == {
        "rollout": "swe",
        "gpus": ["GPU-a", "GPU-b"],
        "rolloutNamespace": "pearl",
        "audience": "pearl",
    }
    assert [name for name, _ in pearl.notices] == ["/reclaiming", "/reclaimed", "deregister"]
    assert not any(agent.now_fence().granted for agent in pearl.agents)


async def test_training_reclaims_before_onload_and_lends_after_offload(client: AsyncPearlClient, pearl: Pearl) -> None:
    order: list[str] = []

    def note(what: str) -> Any:
        async def hook() -> None:
            order.append(f"{what} {'lent' if any(agent.now_fence().granted for agent in pearl.agents) else 'mine'}")

        return hook

    async with await client.register(rollout="swe", offload=note("offload"), onload=note("onload")) as loan:
        async with loan.training(cap_seconds=90):
            await note("train")()
        assert loan.lent
        assert loan.epoch == 2
    assert order == ["offload mine", "onload mine", "train mine", "offload mine"]
    assert pearl.lends[1]["capSeconds"] == 90


async def test_usage_tells_training_lent_and_idle_time_apart(client: AsyncPearlClient, pearl: Pearl) -> None:
    pearl.grants = False
    async with await client.register(rollout="swe") as loan:
        await asyncio.sleep(9.5)  # refused: idle
        pearl.grants = True
        await asyncio.sleep(60.5)  # granted at the next offer, after at most 2 s
        async with loan.training():
            await asyncio.sleep(30)
        usage = loan.usage
    assert usage.training_seconds == pytest.approx(30, abs=0.1)
    assert usage.idle_seconds == pytest.approx(10.5, abs=1.5)
    assert usage.lent_seconds == pytest.approx(59.5, abs=1.5)
    assert usage.idle_fraction == pytest.approx(0.105, abs=0.02)


async def test_an_error_while_training_lends_nothing(client: AsyncPearlClient, pearl: Pearl) -> None:
    loan = await client.register(rollout="swe")
    with pytest.raises(ZeroDivisionError):
        async with loan.training():
            raise ZeroDivisionError
    assert not loan.lent
    await asyncio.sleep(30)
    assert len(pearl.lends) == 1
    await loan.close()


async def test_reclaim_needs_the_agents_alone(client: AsyncPearlClient, pearl: Pearl) -> None:
    loan = await client.register(rollout="swe")
    pearl.operator_up = False
    await asyncio.sleep(120)  # renewals never pass the operator
    assert loan.lent
    started = now()
    free = await loan.reclaim()
    assert free.via == "agents"
    assert now() - started < 0.3 + 0.2  # what the agents needed, and next to nothing
    result = await loan.lend()
    assert not result.granted
    assert result.reason == "OperatorUnreachable"
    assert (await loan.reclaim()).epoch > free.epoch  # the lost offer might have been granted, so it is fenced too
    await loan.close()


async def test_an_offer_whose_answer_was_lost_is_fenced_and_the_next_is_above_it(
    client: AsyncPearlClient, pearl: Pearl
) -> None:
    loan = await client.register(rollout="swe", lend=False)
    pearl.lose_lend_answers = True
    assert not (await loan.lend()).granted
    assert pearl.agents[0].fence.granted  # the operator did grant epoch 1
    free = await loan.reclaim()
    assert free.via == "agents"
    assert not any(agent.fence.granted for agent in pearl.agents)
    pearl.lose_lend_answers = False
    assert (await loan.lend()).epoch == 2
    await loan.close()


async def test_an_unanswered_offer_may_have_been_granted_at_borrowers_that_the_trainer_never_heard_of(
    client: AsyncPearlClient, pearl: Pearl
) -> None:
    agents, pearl.agents = pearl.agents, []  # the borrower pods are not there yet
    loan = await client.register(rollout="swe", lend=False)
    pearl.agents, pearl.lose_lend_answers = agents, True
    assert not (await loan.lend()).granted
    assert all(agent.fence.granted for agent in agents)
    pearl.operator_up = False
    with pytest.raises(NotReturned, match="an offer was not answered"):
        await loan.reclaim(within=3)
    pearl.operator_up = True
    assert (await loan.reclaim()).via == "agents"
    assert not any(agent.fence.granted for agent in agents)
    await loan.close()


async def test_an_unanswered_offer_may_have_been_granted_at_borrowers_that_had_no_address_when_the_trainer_enrolled(
    client: AsyncPearlClient, pearl: Pearl
) -> None:
    for agent in pearl.agents:
        agent.has_address = False
    loan = await client.register(rollout="swe", lend=False)
    for agent in pearl.agents:
        agent.has_address = True
    pearl.lose_lend_answers = True
    assert not (await loan.lend()).granted
    assert all(agent.fence.granted for agent in pearl.agents)
    pearl.operator_up = False
    with pytest.raises(NotReturned, match="its address is not known"):
        await loan.reclaim(within=3)
    pearl.operator_up = True
    started = now()
    assert (await loan.reclaim()).via == "agents"
    assert now() - started < 1
    assert not any(agent.fence.granted for agent in pearl.agents)
    await loan.close()


async def test_a_grant_that_comes_after_the_reclaim_is_refused_by_the_agent(
    client: AsyncPearlClient, pearl: Pearl
) -> None:
    loan = await client.register(rollout="swe", lend=False)
    pearl.operator_up = False
    await loan.lend()
    await loan.reclaim()
    late = pearl.epoch + 1  # what the operator would make of the offer that it got late
    for agent in pearl.agents:
        assert agent.fence.epoch >= late
    pearl.operator_up = True
    assert (await loan.lend()).granted
    await loan.close()


async def test_an_unreachable_agent_is_never_called_free(client: AsyncPearlClient, pearl: Pearl) -> None:
    loan = await client.register(rollout="swe")
    pearl.agents[1].reachable = False
    started = now()
    with pytest.raises(NotReturned, match="trainer-0-borrower-1: ConnectError connection refused") as caught:
        await loan.reclaim()
    assert now() - started == pytest.approx(10, abs=0.2)
    assert list(caught.value.agents) == ["trainer-0-borrower-1"]
    await asyncio.sleep(0.1)
    assert pearl.notices[-1][1]["free"] is False
    pearl.agents[1].reachable = True
    assert (await loan.reclaim(within=5)).via == "agents"
    await loan.close()


async def test_memory_that_does_not_come_back_is_not_returned(client: AsyncPearlClient, pearl: Pearl) -> None:
    loan = await client.register(rollout="swe")
    pearl.agents[0].memory_comes_back = False
    with pytest.raises(NotReturned, match="1073741824 bytes of the device are in use"):
        await loan.reclaim(within=4)
    pearl.agents[0].memory_comes_back = True
    await loan.close()


async def test_a_cut_link_is_free_by_the_lease_once_the_gpu_itself_shows_it(
    client: AsyncPearlClient, pearl: Pearl, device: Device
) -> None:
    device.used = (1 << 30, 1 << 30)
    loan = await client.register(rollout="swe")
    await asyncio.sleep(0.5)
    device.used = (70 << 30, 70 << 30)
    for agent in pearl.agents:
        agent.reachable = False
    with pytest.raises(NotReturned):
        await loan.reclaim(within=5)  # the lease still runs, and the memory is in use
    device.used = (1 << 30, 2 << 30)
    started = now()
    free = await loan.reclaim(within=20)
    assert free.via == "lease"
    # Last renewal at about 0.5 s, lease 8 s and 2 s to kill: not before 10.5 s, of which some 5.5 s have passed.
    assert now() - started > 4
    for agent in pearl.agents:
        assert not agent.now_fence().granted
        agent.reachable = True
    await loan.close()


async def test_an_agent_that_restarts_meanwhile_answers_in_time(client: AsyncPearlClient, pearl: Pearl) -> None:
    loan = await client.register(rollout="swe")
    agent = pearl.agents[0]
    agent.reachable = False
    agent.restart()
    pearl.operator_up = False
    reclaiming = asyncio.ensure_future(loan.reclaim())
    await asyncio.sleep(3)
    agent.reachable = True
    assert (await reclaiming).via == "agents"
    await loan.close()


async def test_a_borrower_pod_that_no_longer_exists_holds_no_gpu(client: AsyncPearlClient, pearl: Pearl) -> None:
    loan = await client.register(rollout="swe")
    pearl.agents[1].reachable = False
    pearl.gone = {1}
    started = now()
    await loan.reclaim()
    assert now() - started < 1
    await loan.close()


async def test_agents_that_cannot_be_reached_cost_the_operator_a_few_questions(
    client: AsyncPearlClient, pearl: Pearl
) -> None:
    pearl.agents += [replace(pearl.agents[0], number=number, heartbeats=[]) for number in range(2, 40)]
    loan = await client.register(rollout="swe")
    for agent in pearl.agents:
        agent.reachable = False
    reclaiming = asyncio.ensure_future(loan.reclaim())
    await asyncio.sleep(7)
    assert 5 <= pearl.views <= 8  # of all forty together: 0.1 + 0.2 + … + 1.6 s apart
    assert max(agent.tries for agent in pearl.agents) <= 22
    for agent in pearl.agents:
        agent.reachable = True
    started = now()
    assert (await reclaiming).via == "agents"
    assert now() - started < 0.4 + 0.3 + 0.1  # the longest pause, and what the agents take
    await loan.close()


async def test_refused_offers_are_repeated_until_the_trainer_wants_its_gpus(
    client: AsyncPearlClient, pearl: Pearl, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pearl.grants, pearl.reason = False, "BorrowNotWorthwhile"
    loan = await client.register(rollout="swe")
    assert not loan.lent
    await asyncio.sleep(20)
    assert 9 <= len(pearl.lends) <= 12
    assert len({body["requestId"] for body in pearl.lends}) == len(pearl.lends)
    assert [record.message for record in caplog.records if "not lent" in record.message] == [
        "not lent: BorrowNotWorthwhile. "
    ]
    pearl.grants = True
    await asyncio.sleep(3)
    assert loan.lent
    await loan.reclaim()
    offers = len(pearl.lends)
    await asyncio.sleep(20)
    assert len(pearl.lends) == offers
    await loan.close()


async def test_offers_that_are_repeated_tell_how_much_of_the_announced_time_is_left(
    client: AsyncPearlClient, pearl: Pearl
) -> None:
    pearl.grants, pearl.reason = False, "ColdStartTooLong"
    async with await client.register(rollout="swe", cap_seconds=10):
        await asyncio.sleep(13)
    assert [round(body["capSeconds"]) for body in pearl.lends] == [10, 8, 6, 4, 2, 1, 1]


async def test_a_cool_down_is_waited_for_by_the_heartbeat_and_no_longer(client: AsyncPearlClient, pearl: Pearl) -> None:
    pearl.grants, pearl.reason = False, "CoolingDown"
    loan = await client.register(rollout="swe")
    pearl.grants = True
    await asyncio.sleep(1.1)
    assert loan.lent
    await loan.close()


async def test_a_lease_that_lapsed_is_offered_again(client: AsyncPearlClient, pearl: Pearl) -> None:
    loan = await client.register(rollout="swe")
    for agent in pearl.agents:
        agent.restart()
    await asyncio.sleep(5)
    assert loan.lent
    assert loan.epoch == 2
    await loan.close()


async def test_an_operator_that_is_away_at_the_start_is_found_later(client: AsyncPearlClient, pearl: Pearl) -> None:
    pearl.operator_up = False
    loan = await client.register(rollout="swe")
    assert loan.registration is None
    with pytest.raises(NotReturned, match="a process that ran in this pod before may have lent"):
        await loan.reclaim(within=5)
    assert (await loan.reclaim()).via == "lease"
    assert now() >= 30  # whatever an earlier process has lent is over by then
    assert (await loan.reclaim(within=5)).via == "notLent"
    await loan.lend()
    pearl.operator_up = True
    await asyncio.sleep(5)
    assert loan.lent
    await loan.close()


async def test_an_operator_that_is_away_at_the_start_delays_training_and_never_stops_it(
    client: AsyncPearlClient, pearl: Pearl
) -> None:
    pearl.operator_up = False
    async with await client.register(rollout="swe") as loan:
        async with loan.training(within=5):
            assert 30 <= now() <= 31
        async with loan.training(within=5):
            assert now() <= 32


async def test_an_operator_that_comes_back_tells_at_once_what_an_earlier_process_has_lent(
    client: AsyncPearlClient, pearl: Pearl
) -> None:
    pearl.operator_up, pearl.epoch = False, 3
    loan = await client.register(rollout="swe", lend=False)
    reclaiming = asyncio.ensure_future(loan.reclaim())
    await asyncio.sleep(5)
    for agent in pearl.agents:
        agent.fence = agent.now_fence().grant(3, 8.0, now())
    pearl.operator_up = True
    free = await reclaiming
    assert (free.via, free.epoch) == ("agents", 3)
    assert now() < 8
    assert not any(agent.fence.granted for agent in pearl.agents)
    await loan.close()


async def test_who_leaves_waits_for_no_earlier_process(client: AsyncPearlClient, pearl: Pearl) -> None:
    pearl.operator_up = False
    async with await client.register(rollout="swe"):
        pass
    assert now() < 1


async def test_without_pearl_training_goes_on_and_models_stay_where_they_are() -> None:
    calls: list[str] = []
    client = AsyncPearlClient(Settings(visible_devices="GPU-a"), clock=now)
    async with await client.register(rollout="swe", offload=lambda: calls.append("offload")) as loan:
        async with loan.training():
            calls.append("train")
        result = await loan.lend()
        assert result.reason == "NotEnrolled"
        assert "PEARL_OPERATOR_URL is not set" in result.message
        assert await loan.publish_weights(1, ["unused"]) is None
    assert calls == ["train"]
    await client.close()


NONSENSE: list[tuple[int, Any]] = [
    (200, {}),
    (200, []),
    (200, None),
    (200, "<html>proxy</html>"),
    (200, {"epoch": "one", "granted": "yes", "agents": "none", "reason": 7, "namespace": 1, "name": [], "token": {}}),
    (500, {"error": {"message": 5}}),
    (302, {}),
]


@pytest.mark.parametrize("answer", NONSENSE)
async def test_an_operator_that_talks_nonsense_never_stops_training(
    client: AsyncPearlClient, pearl: Pearl, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, Any]
) -> None:
    loan = await client.register(rollout="swe")
    monkeypatch.setattr(pearl, "_operator", lambda *_: answer)
    async with loan.training():
        pass  # the agents alone gave the GPUs back
    assert not loan.lent
    await asyncio.sleep(10)
    async with loan.training():
        pass
    await loan.close()


@pytest.mark.parametrize("answer", [nonsense for nonsense in NONSENSE if nonsense[0] != 302])
async def test_enrolment_waits_for_an_operator_that_makes_sense(
    client: AsyncPearlClient, pearl: Pearl, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, Any]
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(pearl, "_operator", lambda *_: answer)
        loan = await client.register(rollout="swe")
        async with loan.training():
            pass
    await asyncio.sleep(5)
    assert loan.lent
    await loan.close()


async def test_an_address_that_is_none_counts_as_no_answer(client: AsyncPearlClient, pearl: Pearl) -> None:
    loan = await client.register(rollout="swe")
    good = pearl.agents[1].endpoint()
    loan._ranked.core._lease._agents = tuple(
        replace(agent, url="http://agent:port:8001") if agent.uid == good["uid"] else agent
        for agent in loan._ranked.core._lease.agents
    )
    with pytest.raises(NotReturned, match="InvalidURL"):
        await loan.reclaim(within=1)


async def test_a_refused_registration_says_what_to_change(
    pearl: Pearl, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = {"error": "RolloutNotFound", "message": "there is no PearlRollout swee in pearl: check `rollout`"}
    monkeypatch.setattr(pearl, "_operator", lambda *_: (404, problem))
    client = AsyncPearlClient(settings, transport=pearl, clock=now)
    with pytest.raises(Rejected, match="no PearlRollout swee") as caught:
        await client.register(rollout="swee")
    assert caught.value.reason == "RolloutNotFound"
    await client.close()


async def test_ranks_meet_before_lending_and_after_reclaiming(pearl: Pearl, settings: Settings) -> None:
    barrier = asyncio.Barrier(2)
    order: list[str] = []

    async def rank(number: int) -> None:
        mine = Settings(
            operator_url=settings.operator_url,
            token_file=settings.token_file,
            visible_devices="GPU-a,GPU-b",
            local_rank=number,
            local_world_size=2,
        )
        client = AsyncPearlClient(mine, transport=pearl, clock=now)

        async def offload() -> None:
            await asyncio.sleep(number)  # rank 1 is slower
            order.append(f"offload {number} {_lent(pearl.agents)}")

        async with await client.register(
            rollout="swe",
            offload=offload,
            onload=lambda: order.append(f"onload {_lent(pearl.agents)}"),
            barrier=barrier.wait,
        ) as loan:
            await barrier.wait()
            async with loan.training():
                await asyncio.sleep(1)
            await barrier.wait()
            if number == 1:
                with pytest.raises(ConfigurationError, match="call it on rank 0 only"):
                    await loan.reclaim()

    await asyncio.gather(rank(0), rank(1))
    assert order == [
        "offload 0 False",
        "offload 1 False",
        "onload False",
        "onload False",
        "offload 0 False",
        "offload 1 False",
    ]
    assert len(pearl.registered) == 1
    assert len(pearl.lends) == 2


def _lent(agents: list[Agent]) -> bool:
    return any(agent.now_fence().granted for agent in agents)


async def test_several_ranks_without_a_barrier_are_refused(settings: Settings) -> None:
    mine = Settings(operator_url=settings.operator_url, visible_devices="GPU-a", local_world_size=8)
    client = AsyncPearlClient(mine, clock=now)
    with pytest.raises(ConfigurationError, match="pass barrier="):
        await client.register(rollout="swe")
    await client.close()


@pytest.mark.parametrize("bad", [0, -1.0, float("nan")])
async def test_a_deadline_must_be_above_zero(client: AsyncPearlClient, bad: float) -> None:
    loan = await client.register(rollout="swe")
    with pytest.raises(ConfigurationError, match="within is"):
        await loan.reclaim(within=bad)
    with pytest.raises(ConfigurationError, match="cap_seconds is"):
        await loan.lend(cap_seconds=bad)
    await loan.close()
