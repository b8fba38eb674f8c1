"""A borrower runs an engine only under a live grant, and gives the device back in time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pearl_api.names import Activity
from pearl_api.wire.worker import WorkerPhase
from pearl_worker.engine import VacateReport
from pearl_worker.fence import Fence, FencedError
from pearl_worker.loan import DeviceBusyError, Loan
from pearl_worker.settings import OnUpdate, from_env

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.looptime


@dataclass
class PlayedDevice:
    used: tuple[int, ...]
    problem: str = ""

    def used_bytes(self) -> tuple[int, ...]:
        return self.used


def grant(world: Any, epoch: int, ttl_seconds: float = 1000.0) -> None:
    absent = not world.worker.engine.facts.running
    world.worker.loan.grant(epoch, ttl_seconds, world.now(), engine_absent=absent)
    world.worker.loan_changed()


async def test_stays_cold_without_a_grant(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    await asyncio.sleep(100)
    assert (world.phase(), world.engines) == (WorkerPhase.COLD, [])


async def test_reclaim_with_requests_inside_and_kv_pinned_ends_asleep_within_its_deadline(
    make_world: Any, run: Any
) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    world.engine.in_flight, world.engine.pinned_until = 3, world.now() + 3.0
    answer = await world.worker.reclaim(1, 10.0)
    assert (answer.free, answer.killed, answer.aborted_requests) == (True, False, 3)
    assert answer.total_seconds == pytest.approx(3.0, abs=0.3)
    assert world.phase() is WorkerPhase.ASLEEP
    assert not any(call.startswith("pause") for call in world.engine.calls)


async def test_an_engine_that_will_not_sleep_is_killed_before_the_deadline(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    world.hanging = {"sleep 2"}
    answer = await world.worker.reclaim(1, 10.0)
    assert (answer.free, answer.killed) == (True, True)
    assert answer.total_seconds == pytest.approx(8.1, abs=0.3)  # the deadline less the 2 s kept for a kill
    assert world.phase() is WorkerPhase.STOPPED


async def test_a_reclaim_during_the_engine_start_kills_it_at_once(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1)
    await asyncio.sleep(5)
    answer = await world.worker.reclaim(1, 10.0)
    assert (answer.free, answer.killed) == (True, True)
    assert answer.total_seconds < 0.5


async def test_never_says_free_when_memory_does_not_come_back(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    world.trainer_bytes = 7  # somebody else's, so that not even a kill brings the baseline back
    answer = await world.worker.reclaim(1, 6.0)
    assert (answer.free, answer.killed) == (False, True)
    assert answer.total_seconds == pytest.approx(6.0, abs=0.2)
    assert "7 bytes of the device are in use, 0 at the grant" in answer.message


async def test_an_unreadable_device_is_never_lent_and_never_free(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    world.device_readable = False
    assert (await world.worker.reclaim(1, 4.0)).free is False
    with pytest.raises(DeviceBusyError, match="cannot be read"):
        grant(world, 2)


async def test_where_nothing_was_granted_nothing_has_to_come_back(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    world.device_readable = False
    with pytest.raises(DeviceBusyError, match="cannot be read"):
        grant(world, 1)
    assert (await world.worker.reclaim(1, 1.0)).free is True
    world.device_readable = True
    with pytest.raises(FencedError):
        grant(world, 1)
    grant(world, 2)
    await world.until(WorkerPhase.READY)
    await world.worker.reclaim(2, 10.0)
    world.trainer_bytes = 5000  # the trainer could not empty its device, so epoch 3 is refused
    with pytest.raises(DeviceBusyError, match="5000 bytes"):
        grant(world, 3)
    assert (await world.worker.reclaim(3, 1.0)).free is True


async def test_a_repeated_reclaim_is_answered_alike_after_the_trainer_took_the_device(
    make_world: Any, run: Any
) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    first = await world.worker.reclaim(1, 10.0)
    world.trainer_bytes = 5000
    assert await world.worker.reclaim(1, 10.0) == first


async def test_no_grant_while_the_trainer_is_still_on_the_device(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    await world.worker.reclaim(1, 10.0)
    world.trainer_bytes = 5000
    with pytest.raises(DeviceBusyError, match="5000 bytes"):
        grant(world, 2)
    world.trainer_bytes = 0
    grant(world, 2)
    assert await world.until(WorkerPhase.READY) < 1.0  # woken, not started
    assert len(world.engines) == 1


async def test_without_heartbeats_the_device_is_given_back_by_the_agent_alone(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1, ttl_seconds=30.0)
    for _ in range(40):
        await asyncio.sleep(1)
        world.worker.loan.renew(1, world.now())
    assert world.worker.ready
    await asyncio.sleep(29)
    assert world.worker.ready
    await asyncio.sleep(3)
    assert world.phase() is WorkerPhase.ASLEEP
    assert world.worker.loan_state().memory_free
    with pytest.raises(FencedError):
        world.worker.loan.renew(1, world.now())


async def test_a_trainer_that_took_its_device_after_the_lease_ran_out_is_told_that_it_was_free(
    make_world: Any, run: Any
) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1, ttl_seconds=30.0)
    await world.until(WorkerPhase.READY)
    await asyncio.sleep(20)  # nobody renewed
    world.trainer_bytes = 5000
    answer = await world.worker.reclaim(1, 5.0)
    assert (answer.free, answer.killed, len(world.engines), world.engine.ended.done()) == (True, False, 1, False)


async def test_a_restarted_agent_is_fenced_until_a_higher_epoch(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    first = run(world.worker)
    grant(world, 4)
    await world.until(WorkerPhase.READY)
    first.cancel()
    world.engine.die(-9)  # the container's processes end with it
    run(world.new_worker())
    await asyncio.sleep(60)
    assert (world.phase(), len(world.engines)) == (WorkerPhase.COLD, 1)
    with pytest.raises(FencedError):
        grant(world, 4)
    grant(world, 5)
    await world.until(WorkerPhase.READY)


async def test_an_engine_that_dies_during_the_reclaim_is_free(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    world.engine.pinned_until = world.now() + 3
    reclaim = asyncio.create_task(world.worker.reclaim(1, 10.0))
    await asyncio.sleep(1)
    world.engine.die(-11)
    answer = await reclaim
    assert (answer.free, answer.killed) == (True, True)
    assert answer.total_seconds < 1.5


def test_a_fence_opens_only_for_higher_epochs() -> None:
    fence = Fence().grant(3, 10.0, now=0.0)
    assert fence.remaining_seconds(4.0) == 6.0
    assert fence.renew(3, now=4.0).remaining_seconds(4.0) == 10.0
    assert fence.grant(3, 10.0, now=4.0).granted  # the operator's retry
    closed = fence.expire(10.0)
    assert (closed.epoch, closed.granted) == (3, False)
    for epoch in (2, 3):
        with pytest.raises(FencedError):
            closed.grant(epoch, 10.0, now=11.0)
    assert closed.grant(4, 10.0, now=11.0).granted
    with pytest.raises(FencedError, match="epoch 4 followed"):
        closed.grant(4, 10.0, now=11.0).reclaim(3)
    ahead = Fence().reclaim(9)  # a reclaim may overtake its grant
    with pytest.raises(FencedError):
        ahead.grant(9, 10.0, now=0.0)


async def test_a_reclaim_in_the_middle_of_a_weight_update_kills_the_half_loaded_engine(
    make_world: Any, run: Any
) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    world.hanging = {"load"}
    world.publish(1)
    await world.wait_for(lambda: "load" in world.engine.calls)
    answer = await world.worker.reclaim(1, 10.0)
    assert (answer.free, answer.killed) == (True, True)
    assert answer.total_seconds < 0.5


async def reclaimed_during(world: Any, step: str) -> Any:
    """Reclaim as soon as the newest engine was asked to do `step`."""
    before = world.engine.calls.count(step)
    await world.wait_for(lambda: world.engine.calls.count(step) > before, step=0.001)
    return await world.worker.reclaim(world.worker.loan_state().epoch, 10.0)


async def test_a_reclaim_while_the_engine_wakes_never_believes_that_it_stays_asleep(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    await world.worker.reclaim(1, 10.0)
    world.wake_seconds = 2.0  # for so long it holds no memory yet, although it is on its way
    grant(world, 2)
    answer = await reclaimed_during(world, "wake weights")
    assert (answer.free, answer.killed) == (True, True)
    await asyncio.sleep(5)
    assert world.used_bytes() == (0,)
    grant(world, 3)
    await world.until(WorkerPhase.READY)
    assert len(world.engines) == 2


@pytest.mark.parametrize("moment", range(12))
async def test_a_reclaim_at_the_very_moment_at_which_waking_begins_gets_the_device_back(
    make_world: Any, run: Any, moment: int
) -> None:
    world = make_world(borrowed=True)
    world.wake_seconds = 1.0
    run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    assert (await world.worker.reclaim(1, 10.0)).free
    grant(world, 2)
    for _ in range(moment):
        await asyncio.sleep(0)
    await world.worker.reclaim(2, 10.0)
    await asyncio.sleep(5.0)
    assert world.used_bytes() == (0,)


async def test_a_borrower_that_is_stopped_holds_the_device_no_longer_than_its_lease(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True, drain_seconds=5000.0)
    running = run(world.worker)
    grant(world, 1, ttl_seconds=200.0)
    await world.until(WorkerPhase.READY)
    world.engine.in_flight = 3
    stopped_at = world.now()
    world.worker.stop()
    await running
    assert world.now() - stopped_at < 210.0


async def test_a_reclaim_during_a_drain_aborts_at_once(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    world.engine.in_flight = 2
    world.worker.set_activity(Activity.DRAINING, 60.0)
    await asyncio.sleep(1)
    answer = await world.worker.reclaim(1, 10.0)
    assert (answer.free, answer.killed, answer.aborted_requests) == (True, False, 2)
    assert answer.total_seconds < 0.5


async def test_a_reclaim_while_requests_finish_before_an_update_aborts_at_once(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True, on_update=OnUpdate.FINISH_TURN)
    run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    world.engine.in_flight = 2
    world.publish(1)
    await asyncio.sleep(5)
    answer = await world.worker.reclaim(1, 10.0)
    assert (answer.free, answer.killed, answer.aborted_requests) == (True, False, 2)
    grant(world, 2)
    await world.until(WorkerPhase.READY)
    assert (world.engine.version, len(world.engines)) == ("1", 1)


async def test_an_engine_that_says_it_sleeps_and_keeps_its_memory_is_killed(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    world.asleep_bytes = 900
    answer = await world.worker.reclaim(1, 10.0)
    assert (answer.free, answer.killed) == (True, True)
    assert answer.total_seconds == pytest.approx(8.1, abs=0.3)


async def test_a_kill_that_took_long_is_begun_earlier_the_next_time(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    world.kill_seconds, world.hanging = 4.0, {"sleep 2"}
    for epoch, until_killed in ((1, 8.0), (2, 5.0)):
        grant(world, epoch)
        await world.until(WorkerPhase.READY)
        answer = await world.worker.reclaim(epoch, 10.0)
        # The first time 2 s are kept for a kill that takes 4 s: too late, and said so.
        assert answer.free is (epoch == 2)
        assert answer.total_seconds == pytest.approx(min(10.0, until_killed + 4.0), abs=0.3)
        await asyncio.sleep(5)


async def test_an_engine_that_even_sigkill_does_not_end_is_not_free_and_said_so(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    world.kill_seconds, world.hanging = 1e6, {"sleep 2"}
    answer = await world.worker.reclaim(1, 5.0)
    assert answer.free is False
    assert answer.total_seconds == pytest.approx(5.0, abs=0.1)
    assert answer.message == "the engine has not ended yet; 1000 bytes of the device are in use, 0 at the grant"
    assert (await world.worker.reclaim(1, 2.0)).free is False


async def test_memory_that_stayed_is_still_known_after_the_agent_restarted(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    first = run(world.worker)
    world.trainer_bytes = 50  # what the trainer keeps
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    first.cancel()
    world.engine.ended.set_result(-9)  # dead with the container, and its memory stays
    run(world.new_worker())
    answer = await world.worker.reclaim(1, 2.0)
    assert answer.free is False
    assert answer.message == "1050 bytes of the device are in use, 50 at the grant"
    world.engine_bytes.clear()
    assert (await world.worker.reclaim(1, 2.0)).free is True


async def test_a_repeated_reclaim_is_answered_alike_by_a_restarted_agent(make_world: Any, run: Any) -> None:
    world = make_world(borrowed=True)
    first = run(world.worker)
    grant(world, 1)
    await world.until(WorkerPhase.READY)
    assert (await world.worker.reclaim(1, 10.0)).free
    first.cancel()
    world.engine.die(-9)
    world.trainer_bytes = 5000  # back at work
    run(world.new_worker())
    assert (await world.worker.reclaim(1, 2.0)).free


async def test_the_allowance_of_a_sleeping_engine_is_for_each_gpu(tmp_path: Path) -> None:
    device = PlayedDevice((100, 200))
    loan = Loan(device, tmp_path / "loan.json", allowance_bytes=10)
    loan.grant(1, 60.0, now=0.0, engine_absent=True)
    for used, free in (((110, 210), True), ((100, 211), False), ((120, 190), False), ((100,), False)):
        device.used = used
        assert loan.memory_free() is free
    device.used = (100, 260)
    answer = loan.answer(1, VacateReport(), free=False, ended=True, total_seconds=1.0)
    assert answer.message == "260 bytes of GPU 1 are in use, 200 at the grant"


def test_what_a_trainer_keeps_may_grow_as_long_as_the_engine_fits(tmp_path: Path) -> None:
    device = PlayedDevice((5,))
    loan = Loan(device, tmp_path / "loan.json", allowance_bytes=10, total_bytes=(100,))
    loan.grant(1, 60.0, now=0.0, engine_absent=True)
    device.used = (75,)
    loan.awake()  # the engine takes 70
    loan.reclaim(1, 0.0)
    device.used = (9,)
    loan.given_back(VacateReport(), asleep=True)  # and 4 while it sleeps
    device.used = (31,)  # after its first step the trainer keeps 27 of its own, more than was ever allowed for
    loan.grant(2, 60.0, now=0.0, engine_absent=False)
    loan.reclaim(2, 0.0)
    for used, free in ((27, True), (31, True), (37, True), (38, False)):
        device.used = (used,)
        assert loan.memory_free() is free
    device.used = (35,)  # 66 more would not fit
    with pytest.raises(DeviceBusyError, match="35 bytes of the device are in use, and the engine needs 66 of 100"):
        loan.grant(3, 60.0, now=0.0, engine_absent=False)
    again = Loan(device, tmp_path / "loan.json", allowance_bytes=10, total_bytes=(100,))
    device.used = (29,)  # the engine ended with the agent; all that it takes is 70
    again.grant(3, 60.0, now=0.0, engine_absent=True)
    device.used = (31,)
    with pytest.raises(DeviceBusyError, match="needs 70 of 100"):
        Loan(device, tmp_path / "loan.json", 10, (100,)).grant(4, 60.0, now=0.0, engine_absent=True)


def test_a_damaged_loan_file_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "loan.json").write_text('{"epo')
    with pytest.raises(ValueError, match=r"loan.json is damaged, so no engine may start here: delete the pod"):
        Loan(PlayedDevice((0,)), tmp_path / "loan.json", 0)


def test_a_borrower_may_not_pin_kv_for_longer_than_its_trainer_waits() -> None:
    borrowed = {"PEARL_LOAN_NAME": "job-0", "PEARL_LOAN_NAMESPACE": "train"}
    base = {"PEARL_MODEL_URI": "/m", "PEARL_MODEL_NAME": "m", "PEARL_KV_LEASE_SECONDS": "10"}
    assert from_env(base).lease_seconds == 10
    with pytest.raises(ValueError, match=r"PEARL_KV_LEASE_SECONDS=10 is too long for a borrowed GPU.*set it to 3"):
        from_env(base | borrowed)
    assert from_env(base | borrowed | {"PEARL_KV_LEASE_SECONDS": ""}).lease_seconds == 3
