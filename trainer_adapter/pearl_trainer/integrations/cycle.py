"""The two points of a foreign loop at which GPUs change hands, whatever the framework calls them."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_trainer.client import Loan
    from pearl_trainer.weights import Files

log = logging.getLogger("pearl_trainer")


class Cycle:
    """`take` before the first training kernel, `give` once the update is done; both may be called twice in a row.

    Args:
        loan: What `register(…, lend=False)` or `register_group(…, lend=False)` returned.
        save: Writes the weights of a version as Hugging Face files and returns them. Called on every rank, because
            gathering shards is collective; ranks that write nothing return None.
        move: Move the saved files to where they are published instead of copying them, and remove their directory.
    """

    def __init__(self, loan: Loan, *, save: Callable[[int], Files | None] | None = None, move: bool = False) -> None:
        self.loan = loan
        self._save = save
        self._move = move
        self._mine = True

    @property
    def mine(self) -> bool:
        """The trainer has its GPUs: nothing has been given since the last `take`."""
        return self._mine

    def take(self, within: float | None = None) -> None:
        """The GPUs are the trainer's when this returns.

        Raises:
            NotReturned: one is not known to be free; do not train.
        """
        if not self._mine:
            self.loan.begin_training(within)
            self._mine = True

    def give(self, step: int | None = None, *, cap_seconds: float | None = None) -> None:
        """Publishes the weights of `step` (None = they are not new), empties the GPUs and offers them."""
        if step is not None:
            self.publish(step)
        if self._mine:
            self._mine = False
            self.loan.end_training(cap_seconds)

    def publish(self, step: int) -> int | None:
        """Saves and publishes the present weights; returns their version, None where nothing was published here.

        The version is `step`, or one above what is published where a loop started anew counts from the beginning:
        versions that workers have seen never come back with other weights.
        """
        if self._save is None or not self.loan.present:
            return None
        version = max(step, (self.loan.published_version() or 0) + 1)
        files = self._save(version)
        if files is None:
            return None
        try:
            published = self.loan.publish_weights(version, files, move=self._move)
        except OSError as error:
            # The rollout goes on with the weights it has, within its maxStaleness; the next step tries again.
            log.error("weights of step %d could not be published: %s", step, error)  # noqa: TRY400 - says it all
            return None
        finally:
            if self._move and isinstance(files, (str, os.PathLike)) and Path(files).is_dir():
                shutil.rmtree(files, ignore_errors=True)
        return published.version if published is not None else None

    def close(self) -> None:
        """The loop is over: the GPUs come back and the enrolment ends."""
        self.loan.close()
