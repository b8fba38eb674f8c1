"""slime: lends the actor's GPUs from `update_weights` until the next `async_train`, and publishes instead of pushing.

    actor_model = LentTrainGroup(actor_model, loan, save=lambda version: …)   # in train_async.py, once

slime's driver holds a `RayTrainGroup`; its methods are the loop's only touch of the training GPUs. Generation goes to
the gateway as an external engine: docs/integrations/slime.md. miles has the same group and is driven alike.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl_trainer.errors import ConfigurationError
from pearl_trainer.integrations.cycle import Cycle

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_trainer.client import Loan, PearlClient
    from pearl_trainer.weights import Files

_VERSION = re.compile(r"(\d+)$")


class LentTrainGroup:
    """Stands in for the actor's `RayTrainGroup`; everything that is not named here goes through to it.

    Args:
        group: slime's own group. Where it offloads (`--offload-train`), its `offload` and `onload` are used.
        loan: Registered with `lend=False`; for several pods `register_group`.
        save: Writes Hugging Face files of a version and returns them; None = a hook of slime's publishes them
            (`post_write`), and slime's own `update_weights` runs.
    """

    def __init__(self, group: Any, loan: Loan, *, save: Callable[[int], Files | None] | None = None) -> None:
        self._group = group
        self._cycle = Cycle(loan, save=save)
        self._updates = 0
        self._pushes = save is None
        self._offloaded = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def async_train(self, *args: Any, **kwargs: Any) -> Any:
        """Takes the GPUs back, then starts the update.

        Raises:
            NotReturned: a GPU is not known to be free; nothing was started.
        """
        self._take()
        return self._group.async_train(*args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> Any:
        """Reading the weights needs the GPUs, too."""
        self._take()
        return self._group.save_model(*args, **kwargs)

    def update_weights(self) -> Any:
        """Publishes the weights, then lends; without PEARL slime's own update runs alone."""
        self._take()
        self._updates += 1
        done = self._group.update_weights() if self._pushes or not self._cycle.loan.present else None
        self._cycle.publish(self._updates)
        if self._cycle.loan.present and getattr(self._group.args, "offload_train", False):
            self._group.offload()
            self._offloaded = True
        self._cycle.give()
        return done

    def _take(self) -> None:
        self._cycle.take()
        if self._offloaded:
            self._group.onload()
            self._offloaded = False


def post_write(client: PearlClient) -> Callable[[Any, str, Any], None]:
    """A hook for `--custom-update-weight-post-write-path`: publishes what slime wrote, before it asks the engines.

    slime loads hooks by import path, so a module of yours holds it:

        publish = post_write(PearlClient.from_env())     # PEARL_WEIGHTS_SOURCE says where to

    Only for full weights (`weight_vNNNNNN` with safetensors): deltas are not what workers load.
    """

    def hook(args: Any, version_dir: str, rollout_engines: Any) -> None:  # noqa: ARG001 - slime's signature
        found = _VERSION.search(Path(version_dir).name)
        if found is None:
            raise ConfigurationError(f"{version_dir} does not end in a version number: is it slime's weight directory?")
        if any(Path(version_dir).glob("*.safetensors")):
            client.publish_weights(int(found.group(1)), version_dir)
        else:
            raise ConfigurationError(
                f"{version_dir} holds no *.safetensors: use slime's full weights on disk, deltas cannot be published"
            )

    return hook
