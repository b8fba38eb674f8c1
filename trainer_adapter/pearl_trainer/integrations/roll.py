"""ROLL: an agentic pipeline that lends its training GPUs from the model update until a batch is there.

    pipeline = lending_pipeline(AgenticPipeline, connect)(pipeline_config=config)

`AgenticPipeline.run()` is one long method, so the hooks are the two methods that it calls at the right points:
`model_update` (its phase 3; the training states were offloaded in phase 1) and `adjust_batch` (after `get_batch` and
before the reference log-probabilities of phase 11). Its own `partial_gpu_mode` must be off: both would use the GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pearl_trainer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_trainer.integrations.cycle import Cycle

T = TypeVar("T")


def lending_pipeline(base: type[T], connect: Callable[[Any], Cycle]) -> type[T]:
    """A subclass of `base` (ROLL's `AgenticPipeline` or one of yours) that lends.

    Args:
        base: The pipeline.
        connect: Makes the cycle from the pipeline, once, when `run()` begins; `register_group(lend=False)` and where
            weights are saved belong there.
    """

    class Lending(base):  # type: ignore[valid-type,misc]
        """See `pearl_trainer.integrations.roll`."""

        _pearl: Cycle | None = None

        def run(self, *args: Any, **kwargs: Any) -> Any:
            if getattr(self, "partial_gpu_mode", False):
                raise ConfigurationError(
                    "partial_gpu_mode is on: let device_mapping of actor_infer name only GPUs of its own, "
                    "PEARL's workers use those of actor_train"
                )
            self._pearl = connect(self)
            try:
                return super().run(*args, **kwargs)
            finally:
                self._pearl.close()

        def model_update(self, global_step: int, *args: Any, **kwargs: Any) -> Any:
            metrics = super().model_update(global_step, *args, **kwargs)
            if self._pearl is not None:
                self._pearl.give(global_step)
            return metrics

        def adjust_batch(self, *args: Any, **kwargs: Any) -> Any:
            if self._pearl is not None:
                self._pearl.take()
            return super().adjust_batch(*args, **kwargs)

    Lending.__name__ = f"Lending{base.__name__}"
    lending: type[T] = Lending
    return lending
