"""The asynchronous client: `client.py` with `await`. Hooks may be coroutine functions."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pearl_trainer import settings as settings_module
from pearl_trainer.aio import Background, Driver
from pearl_trainer.gpus import MemoryProbe
from pearl_trainer.ranks import Hook, Hooks, LoanFacts, RankedLoan
from pearl_trainer.session import Enrolment, Session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
    from types import TracebackType

    import httpx2
    from typing_extensions import Self

    from pearl_trainer.core import LendResult
    from pearl_trainer.gateway import GatewayApi, Generated, Turn
    from pearl_trainer.messages import BatchProgress, PermitAnswer, Trajectory
    from pearl_trainer.reclaim import Free
    from pearl_trainer.sansio import Flow
    from pearl_trainer.settings import Settings
    from pearl_trainer.weights import Files, Published


class AsyncPearlClient:
    """A trainer's view of PEARL, for one event loop. See `PearlClient` for the arguments."""

    def __init__(
        self,
        settings: Settings,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        probe: MemoryProbe | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: seconds that never go back; pass the loop's own where a test fast-forwards it."""
        self._driver = Driver(transport)
        self._session = Session(settings, clock=clock, new_id=lambda: uuid.uuid4().hex, probe=probe or MemoryProbe())
        self.batches = AsyncBatches(self._session.gateway, self._driver.run)

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> AsyncPearlClient:
        """As `PearlClient.from_env`."""
        return cls(settings_module.from_env(environment))

    async def register(  # noqa: PLR0913 - keyword arguments of the one call that sets everything up
        self,
        *,
        rollout: str,
        gpus: Sequence[str] | None = None,
        group: str | None = None,
        members: int | None = None,
        rollout_namespace: str | None = None,
        offload: Hook | None = None,
        onload: Hook | None = None,
        barrier: Hook | None = None,
        lend: bool = True,
        cap_seconds: float | None = None,
    ) -> AsyncLoan:
        """As `PearlClient.register`."""
        enrolment = Enrolment(rollout, gpus, rollout_namespace, group, members)
        ranked = self._session.join(enrolment, Hooks(offload, onload, barrier))
        await self._driver.run(ranked.begin(lend=lend, cap_seconds=cap_seconds))
        return AsyncLoan(self, ranked, self._driver)

    async def register_group(  # noqa: PLR0913 - as `register`
        self,
        *,
        rollout: str,
        group: str,
        members: int,
        rollout_namespace: str | None = None,
        offload: Hook | None = None,
        onload: Hook | None = None,
        lend: bool = True,
        cap_seconds: float | None = None,
    ) -> AsyncLoan:
        """As `PearlClient.register_group`."""
        enrolment = Enrolment(rollout, None, rollout_namespace, group, members)
        ranked = self._session.drive(enrolment, Hooks(offload, onload))
        await self._driver.run(ranked.begin(lend=lend, cap_seconds=cap_seconds))
        return AsyncLoan(self, ranked, self._driver)

    async def publish_weights(
        self, version: int, files: Files, *, source: str | None = None, move: bool = False, keep: int = 3
    ) -> Published | None:
        """As `PearlClient.publish_weights`, on a thread."""
        loop = asyncio.get_running_loop()
        options = {"move": move, "keep": keep}
        return await loop.run_in_executor(None, self._session.publish, version, files, source, options)

    def published_version(self) -> int | None:
        """As `PearlClient.published_version`."""
        return self._session.published()

    async def trajectory(self, name: str) -> Trajectory:
        """As `PearlClient.trajectory`."""
        return await self._driver.run(self._session.gateway.trajectory(name))

    def gateway_address(self) -> tuple[str, str | None]:
        """As `PearlClient.gateway_address`."""
        return self._session.where()

    def use_gateway(self, url: str, token: str | None) -> None:
        """As `PearlClient.use_gateway`."""
        self._session.tell_gateway(url, token)

    async def recommended_in_flight(self) -> int | None:
        """As `PearlClient.recommended_in_flight`."""
        return await self._driver.run(self._session.gateway.window())

    async def idle_fractions(self) -> dict[str, float]:
        """As `PearlClient.idle_fractions`."""
        return await self._driver.run(self._session.gateway.idle_fractions())

    async def generate(self, token_ids: Sequence[int], turn: Turn, **sampling: Any) -> Generated:
        """As `PearlClient.generate`."""
        return await self._driver.run(self._session.gateway.generate(token_ids, turn, sampling))

    async def close(self) -> None:
        """Closes all connections; close loans first."""
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncLoan(LoanFacts):
    """As `Loan`."""

    def __init__(self, client: AsyncPearlClient, ranked: RankedLoan, driver: Driver) -> None:
        super().__init__(ranked)
        self._client = client
        self._driver = driver
        self._beside: list[Background] | None = [driver.start(flow) for flow in ranked.beside()]

    @asynccontextmanager
    async def training(self, *, within: float | None = None, cap_seconds: float | None = None) -> AsyncIterator[None]:
        """As `Loan.training`."""
        await self.begin_training(within)
        yield
        await self.end_training(cap_seconds)

    async def begin_training(self, within: float | None = None) -> None:
        """As `Loan.begin_training`."""
        await self._driver.run(self._ranked.before_training(within))

    async def end_training(self, cap_seconds: float | None = None) -> None:
        """As `Loan.end_training`."""
        await self._driver.run(self._ranked.after_training(cap_seconds))

    async def lend(self, cap_seconds: float | None = None) -> LendResult:
        """As `Loan.lend`."""
        return await self._driver.run(self._ranked.lend(cap_seconds))

    async def reclaim(self, within: float | None = None) -> Free:
        """As `Loan.reclaim`."""
        return await self._driver.run(self._ranked.reclaim(within))

    async def publish_weights(
        self, version: int, files: Files, *, move: bool = False, keep: int = 3
    ) -> Published | None:
        """As the client's."""
        return await self._client.publish_weights(version, files, move=move, keep=keep)

    def published_version(self) -> int | None:
        """As the client's."""
        return self._client.published_version()

    async def close(self) -> None:
        """Takes the GPUs back and ends the enrolment."""
        if self._beside is not None:
            await self._driver.run(self._ranked.end())
            for background in self._beside:
                await background.stop()
            self._beside = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncBatches:
    """As `Batches`."""

    def __init__(self, api: GatewayApi, run: Callable[[Flow[Any]], Coroutine[Any, Any, Any]]) -> None:
        self._api = api
        self._run = run

    async def open(
        self, step: int, *, groups: int, group_size: int, need_groups: int | None = None, min_version: int = 0
    ) -> BatchProgress:
        """As `Batches.open`."""
        progress: BatchProgress = await self._run(self._api.open(step, groups, group_size, need_groups, min_version))
        return progress

    async def progress(self, step: int) -> BatchProgress:
        """As `Batches.progress`."""
        progress: BatchProgress = await self._run(self._api.progress(step))
        return progress

    async def finish(
        self, step: int, trajectory: str, *, group: str | None = None, reward: float | None = None
    ) -> BatchProgress:
        """As `Batches.finish`."""
        progress: BatchProgress = await self._run(self._api.finish(step, trajectory, group, reward))
        return progress

    async def abort(
        self, step: int, trajectory: str, *, group: str | None = None, cause: str = "aborted"
    ) -> BatchProgress:
        """As `Batches.abort`."""
        progress: BatchProgress = await self._run(self._api.abort(step, trajectory, group, cause))
        return progress

    async def consume(self, step: int) -> tuple[Trajectory, ...]:
        """As `Batches.consume`."""
        trajectories: tuple[Trajectory, ...] = await self._run(self._api.consume(step))
        return trajectories

    async def close(self, step: int) -> BatchProgress:
        """As `Batches.close`."""
        progress: BatchProgress = await self._run(self._api.close(step))
        return progress

    async def permit(
        self, group: str, size: int, *, step: int | None = None, wait_seconds: float | None = None
    ) -> PermitAnswer:
        """As `Batches.permit`."""
        answer: PermitAnswer = await self._run(self._api.permit(group, size, step, wait_seconds))
        return answer
