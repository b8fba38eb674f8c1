"""The blocking client. `async_client.py` is the same with `await`; what they do is in the sans-I/O modules."""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pearl_trainer import settings as settings_module
from pearl_trainer.blocking import Background, Driver
from pearl_trainer.gpus import MemoryProbe
from pearl_trainer.ranks import Hook, Hooks, LoanFacts, RankedLoan
from pearl_trainer.session import Enrolment, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
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

T = TypeVar("T")


class PearlClient:
    """A trainer's view of PEARL. Thread-safe; make one per process.

    Args:
        settings: See `pearl_trainer.settings`; `from_env` reads them.
        transport: Replaces the network, for tests.
        probe: Reads the GPUs' memory; the default uses torch where the trainer has started CUDA.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        transport: httpx2.BaseTransport | None = None,
        probe: MemoryProbe | None = None,
    ) -> None:
        self._driver = Driver(transport)
        self._session = Session(
            settings, clock=time.monotonic, new_id=lambda: uuid.uuid4().hex, probe=probe or MemoryProbe()
        )
        self.batches = Batches(self._session.gateway, self._driver.run)

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> PearlClient:
        """A client of what the environment says; without `PEARL_OPERATOR_URL` it lends nothing.

        Raises:
            ConfigurationError: a variable is wrong.
        """
        return cls(settings_module.from_env(environment))

    def register(  # noqa: PLR0913 - keyword arguments of the one call that sets everything up
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
    ) -> Loan:
        """Enrols this pod's GPUs with a rollout and, unless `lend` is False, lends them at once.

        Args:
            rollout: Name of the PearlRollout that may borrow.
            gpus: UUIDs; None = all of this pod.
            group: Name that the pods of one trainer share. They are lent and reclaimed together, by the driver.
            members: How many pods; for scripts that run on every rank of every pod (torchrun), where rank 0 of all
                drives. Elsewhere the driver calls `register_group`.
            rollout_namespace: Where the PearlRollout is; None = the operator's.
            offload: Empties this rank's GPU; called before every lend.
            onload: Fills it again; called after every reclaim.
            barrier: Returns when every process that uses the lent GPUs has called it; needed where there are several.
            lend: Offer the GPUs before the first update.
            cap_seconds: The trainer wants them back by then; None = unknown.

        Raises:
            ConfigurationError: an argument or variable must be changed.
            Rejected: the operator says what is wrong, for example that there is no such rollout.
        """
        enrolment = Enrolment(rollout, gpus, rollout_namespace, group, members)
        ranked = self._session.join(enrolment, Hooks(offload, onload, barrier))
        self._driver.run(ranked.begin(lend=lend, cap_seconds=cap_seconds))
        return Loan(self, ranked, self._driver)

    def register_group(  # noqa: PLR0913 - as `register`
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
    ) -> Loan:
        """Takes the handle of all pods of a group: the driver, which need not be a GPU pod, lends and reclaims them.

        Args:
            rollout: Name of the PearlRollout that may borrow.
            group: What the GPU pods pass to `register(group=…, lend=False)`.
            members: How many pods they are; nothing is lent before all have registered.
            rollout_namespace: Where the PearlRollout is; None = the operator's.
            offload: Empties the GPUs of all pods, for example by a call to each Ray actor.
            onload: Fills them again.
            lend: Offer the GPUs before the first update.
            cap_seconds: The trainer wants them back by then; None = unknown.

        Raises:
            ConfigurationError, Rejected: as `register`.
        """
        enrolment = Enrolment(rollout, None, rollout_namespace, group, members)
        ranked = self._session.drive(enrolment, Hooks(offload, onload))
        self._driver.run(ranked.begin(lend=lend, cap_seconds=cap_seconds))
        return Loan(self, ranked, self._driver)

    def publish_weights(
        self, version: int, files: Files, *, source: str | None = None, move: bool = False, keep: int = 3
    ) -> Published | None:
        """Publishes weights for the workers; see `pearl_trainer.weights.publish`. None while PEARL is absent."""
        return self._session.publish(version, files, source, {"move": move, "keep": keep})

    def published_version(self) -> int | None:
        """Version that the manifest names now, 0 before the first; None where nobody has said where weights go."""
        return self._session.published()

    def trajectory(self, name: str) -> Trajectory:
        """One trajectory: token ids, loss mask, behaviour logprobs and weight version per token, segments."""
        return self._driver.run(self._session.gateway.trajectory(name))

    def gateway_address(self) -> tuple[str, str | None]:
        """URL and bearer token of the gateway, for ranks that have not registered themselves.

        Raises:
            ConfigurationError: nobody has said where it is.
        """
        return self._session.where()

    def use_gateway(self, url: str, token: str | None) -> None:
        """Use the gateway that another rank has told of, see `gateway_address`."""
        self._session.tell_gateway(url, token)

    def recommended_in_flight(self) -> int | None:
        """Trajectories that should be in flight now; None = no limit."""
        return self._driver.run(self._session.gateway.window())

    def idle_fractions(self) -> dict[str, float]:
        """Share of each rollout pool's ready workers that have no request now: {"prefill": 0.0, "decode": 0.25}.

        What the trainer's own GPUs do with their time is `loan.usage`.
        """
        return self._driver.run(self._session.gateway.idle_fractions())

    def generate(self, token_ids: Sequence[int], turn: Turn, **sampling: Any) -> Generated:
        """One turn from token ids; `sampling` are vLLM's sampling parameters, for example `max_tokens=64`."""
        return self._driver.run(self._session.gateway.generate(token_ids, turn, sampling))

    def close(self) -> None:
        """Closes all connections; close loans first."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Loan(LoanFacts):
    """The GPUs of this pod, lent between updates. A context manager: leaving it takes them back for good."""

    def __init__(self, client: PearlClient, ranked: RankedLoan, driver: Driver) -> None:
        super().__init__(ranked)
        self._client = client
        self._driver = driver
        self._beside: list[Background] | None = [driver.start(flow) for flow in ranked.beside()]

    @contextmanager
    def training(self, *, within: float | None = None, cap_seconds: float | None = None) -> Iterator[None]:
        """Reclaim → onload, then the body, then offload → lend. After an error in the body nothing is lent.

        Args:
            within: Hard deadline of the reclaim in seconds; None = the rollout's `reclaimSeconds`.
            cap_seconds: For the lend afterwards.

        Raises:
            NotReturned: a GPU is not known to be free; the body did not run.
        """
        self.begin_training(within)
        yield
        self.end_training(cap_seconds)

    def begin_training(self, within: float | None = None) -> None:
        """The first half of `training`, for loops whose hooks are two calls: reclaim → onload.

        Raises:
            NotReturned: a GPU is not known to be free; do not train.
        """
        self._driver.run(self._ranked.before_training(within))

    def end_training(self, cap_seconds: float | None = None) -> None:
        """The second half of `training`: offload → lend."""
        self._driver.run(self._ranked.after_training(cap_seconds))

    def lend(self, cap_seconds: float | None = None) -> LendResult:
        """Offers the GPUs, which the caller has emptied; a refusal is an answer, and offers repeat until reclaimed."""
        return self._driver.run(self._ranked.lend(cap_seconds))

    def reclaim(self, within: float | None = None) -> Free:
        """Takes the GPUs back; returns only when they are known to be free.

        Raises:
            NotReturned: at the hard deadline one is not.
        """
        return self._driver.run(self._ranked.reclaim(within))

    def publish_weights(self, version: int, files: Files, *, move: bool = False, keep: int = 3) -> Published | None:
        """As the client's."""
        return self._client.publish_weights(version, files, move=move, keep=keep)

    def published_version(self) -> int | None:
        """As the client's."""
        return self._client.published_version()

    def close(self) -> None:
        """Takes the GPUs back and ends the enrolment."""
        if self._beside is not None:
            self._driver.run(self._ranked.end())
            for background in self._beside:
                background.stop()
            self._beside = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Batches:
    """The gateway's batch API: without it the planner cannot reason about the rest of a batch."""

    def __init__(self, api: GatewayApi, run: Callable[[Flow[Any]], Any]) -> None:
        self._api = api
        self._run = run

    def open(
        self, step: int, *, groups: int, group_size: int, need_groups: int | None = None, min_version: int = 0
    ) -> BatchProgress:
        """Declares the batch of a training step; None = all groups are needed."""
        progress: BatchProgress = self._run(self._api.open(step, groups, group_size, need_groups, min_version))
        return progress

    def progress(self, step: int) -> BatchProgress:
        """How far it is."""
        progress: BatchProgress = self._run(self._api.progress(step))
        return progress

    def finish(
        self, step: int, trajectory: str, *, group: str | None = None, reward: float | None = None
    ) -> BatchProgress:
        """A trajectory reached its end."""
        progress: BatchProgress = self._run(self._api.finish(step, trajectory, group, reward))
        return progress

    def abort(self, step: int, trajectory: str, *, group: str | None = None, cause: str = "aborted") -> BatchProgress:
        """A trajectory ended early."""
        progress: BatchProgress = self._run(self._api.abort(step, trajectory, group, cause))
        return progress

    def consume(self, step: int) -> tuple[Trajectory, ...]:
        """The batch's complete trajectories, for training."""
        trajectories: tuple[Trajectory, ...] = self._run(self._api.consume(step))
        return trajectories

    def close(self, step: int) -> BatchProgress:
        """Ends the batch."""
        progress: BatchProgress = self._run(self._api.close(step))
        return progress

    def permit(
        self, group: str, size: int, *, step: int | None = None, wait_seconds: float | None = None
    ) -> PermitAnswer:
        """Waits for the admission of a whole group, before its environments are reset; None = as long as it takes."""
        answer: PermitAnswer = self._run(self._api.permit(group, size, step, wait_seconds))
        return answer
