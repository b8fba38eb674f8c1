"""Many independent runs over the cores: progress, results in the order of the items, safe to interrupt.

A run depends on its item alone, so the number of processes never changes a result.
"""

from __future__ import annotations

import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Pool:
    """Where runs are made."""

    jobs: int = 1
    """Processes; 1 = in this one."""
    console: Console | None = None
    """Shows a progress bar; None = quiet."""

    def map(self, function: Callable[[Item], Answer], items: Sequence[Item], what: str) -> list[Answer]:
        """`function` of every item, in the order of the items. With `jobs` > 1 both must be picklable.

        An error of any run ends all of them and is raised here, as is an interrupt.
        """
        with self._progress(what, len(items)) as advance:
            if self.jobs <= 1 or len(items) <= 1:
                return [_counted(function, item, advance) for item in items]
            return _spread(function, items, min(self.jobs, len(items)), advance)

    @contextmanager
    def _progress(self, what: str, total: int) -> Iterator[Callable[[], None]]:
        if self.console is None:
            yield _nothing
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True) as progress:
            task = progress.add_task(what, total=total)
            yield lambda: progress.advance(task)


def _spread(
    function: Callable[[Item], Answer], items: Sequence[Item], jobs: int, advance: Callable[[], None]
) -> list[Answer]:
    """Over fresh processes: a forked copy of a program that draws a progress bar may hang."""
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_leave_interrupts_to_the_parent)
    before = set(multiprocessing.active_children())
    try:
        futures = [executor.submit(function, item) for item in items]
        for future in as_completed(futures):
            future.result()
            advance()
        return [future.result() for future in futures]
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        executor.shutdown()


def _counted(function: Callable[[Item], Answer], item: Item, advance: Callable[[], None]) -> Answer:
    answer = function(item)
    advance()
    return answer


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _nothing() -> None:
    """No progress bar to move."""
