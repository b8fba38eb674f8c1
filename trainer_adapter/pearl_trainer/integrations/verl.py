"""verl: lends the training GPUs while its trainers wait for samples.

Two ways in, for its two asynchronous trainers:

- V1 (`trainer.v1.trainer_mode`): `lending_trainer(connect)` registers a trainer under a name of its own. Its hooks:
  `on_train_begin` and `on_step_end` (weights are out) give, `on_sample_end` (a batch is there) takes.
- fully async with `use_dynamic_resource_scheduling`: `lending_controller(connect)` is a `DynamicResourceController`
  whose hybrid replicas are PEARL's workers, and `register_policy()` the policy that lends whenever it may: whether it
  is worth it is the operator's borrow gate to decide.

verl's own replicas on the training GPUs stay off (`actor_rollout_ref.hybrid_engine=False`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_trainer.integrations.cycle import Cycle

V1 = "verl.trainer.ppo.v1.trainer_separate_async"
DYNAMIC = "verl.experimental.fully_async_policy.dynamic_schedule"
NAME = "pearl_separate_async"
POLICY = "pearl"


def lending_trainer(connect: Callable[[Any], Cycle], *, name: str = NAME) -> Any:
    """A `PPOTrainerSeparateAsync` that lends, registered as `trainer.v1.trainer_mode=name`.

    Args:
        connect: Makes the cycle from the trainer, once, when training begins.
        name: Under which verl finds it.
    """
    module: Any = importlib.import_module(V1)
    base: Any = module.PPOTrainerSeparateAsync

    class LendingTrainer(base):  # type: ignore[misc]
        """See `pearl_trainer.integrations.verl`."""

        _pearl: Cycle | None = None

        def on_train_begin(self) -> None:
            super().on_train_begin()
            self._pearl = connect(self)
            self._pearl.give()

        def on_sample_end(self) -> None:
            # Log-probabilities, values and the update all follow; a second mini-batch finds the GPUs taken.
            super().on_sample_end()
            if self._pearl is not None:
                self._pearl.take()

        def on_step_end(self) -> None:
            super().on_step_end()
            if self._pearl is None:
                return
            if self.global_steps >= self.total_training_steps:
                self._pearl.publish(self.global_steps)
                self._pearl.close()  # the last step returns from fit() without on_train_end
                self._pearl = None
            else:
                self._pearl.give(self.global_steps)

        def on_train_end(self) -> None:
            super().on_train_end()
            if self._pearl is not None:
                self._pearl.close()

    return module.register_trainer(name)(LendingTrainer)


def lending_controller(connect: Callable[[], Cycle]) -> Any:
    """A `DynamicResourceController` whose hybrid replicas are PEARL's workers on the training GPUs.

    Return it from `FullyAsyncTrainer._setup_dynamic_resource_controller`.
    """
    base: Any = importlib.import_module(DYNAMIC).DynamicResourceController

    class LendingController(base):  # type: ignore[misc]
        """See `pearl_trainer.integrations.verl`."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._pearl = connect()

        @property
        def has_hybrid_replicas(self) -> bool:
            return True

        async def sync_hybrid_weights(self, global_steps: int) -> None:
            self._pearl.publish(global_steps)

        async def activate_hybrid_replicas(self, global_steps: int) -> None:  # noqa: ARG002 - verl's signature
            self._pearl.give()
            self._hybrid_active = True
            self.activate_count += 1

        async def deactivate_hybrid_replicas(self, global_steps: int) -> None:  # noqa: ARG002 - verl's signature
            self._pearl.take()
            self._hybrid_active = False
            self.deactivate_count += 1

    return LendingController


def register_policy(name: str = POLICY) -> Any:
    """Registers the policy for `async_training.dynamic_schedule_policy=name` and returns its class."""
    module: Any = importlib.import_module(DYNAMIC)
    base: Any = module.DynamicSchedulePolicyBase

    @module.register_policy(name)
    class LendWheneverPossible(base):  # type: ignore[misc]
        """Takes the GPUs back once a whole step's samples are there, and lends after every weight update."""

        def __init__(self, **_settings: Any) -> None:
            """Ratios and the like of other policies have no meaning here."""

        def should_deactivate(self, global_steps: int, is_hybrid_active: bool, ctx: Any) -> bool:  # noqa: ARG002
            return is_hybrid_active

        def deactivate_wait_samples(self, ctx: Any) -> int:
            needed: int = ctx.required_samples
            return needed

        def should_activate_after_step(
            self,
            global_steps: int,  # noqa: ARG002
            is_hybrid_active: bool,
            ctx: Any,  # noqa: ARG002
        ) -> bool:
            return not is_hybrid_active

    return LendWheneverPossible
