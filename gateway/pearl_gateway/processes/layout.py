"""Where each process of a gateway has its storage, and what is there already when their number changes.

One process uses the directory itself, N of them `of-N/0` … `of-N/N-1`. The file `layout` names what is in use; whatever
lies elsewhere is a copy that was not finished, or the original of one that was, and goes.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from pearl_gateway.processes.homes import OWNER, home_of
from pearl_gateway.segments import Segments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LAYOUT = "layout"
_ITSELF = "."
_PROFILE = "profile.json"
_SEGMENT_BYTES = 16 << 20


def prepare(root: Path, processes: int) -> list[Path]:
    """The directory of each process, with what is stored by whom it belongs to now.

    Call it while no process uses the storage. A change of the number needs room for a second copy while it lasts.

    Raises:
        OSError: the storage cannot be written.
    """
    root.mkdir(parents=True, exist_ok=True)
    used = _used(root)
    _tidy(root, used)
    wanted = _ITSELF if processes == 1 and used == _ITSELF else f"of-{processes}"
    if wanted != used:
        _copy(root, used, processes)
        draft = root / f"{_LAYOUT}.tmp"
        draft.write_text(wanted)
        draft.replace(root / _LAYOUT)
        _tidy(root, wanted)
    return [root] if wanted == _ITSELF else folders(root, processes)


def folders(root: Path, processes: int) -> list[Path]:
    """The directory of each of several processes."""
    return [root / f"of-{processes}" / str(at) for at in range(processes)]


def _used(root: Path) -> str:
    path = root / _LAYOUT
    return path.read_text().strip() if path.is_file() else _ITSELF


def _tidy(root: Path, used: str) -> None:
    for folder in root.glob("of-*"):
        if folder.name != used:
            shutil.rmtree(folder)
    if used != _ITSELF:
        for path in [*root.glob("*.jsonl"), root / _PROFILE]:
            path.unlink(missing_ok=True)


def _copy(root: Path, used: str, processes: int) -> None:
    sources = [root] if used == _ITSELF else sorted((root / used).iterdir(), key=lambda path: int(path.name))
    targets = folders(root, processes)
    for target in targets:
        target.mkdir(parents=True)
    _share_out(sources, targets, "turns", lambda line: home_of(line["trajectory"], processes))
    _share_out(sources, targets, "trajectories", lambda line: home_of(line["export"]["trajectory"], processes))
    _share_out(sources, targets, "batches", lambda _: OWNER)
    if (sources[OWNER] / _PROFILE).is_file():
        shutil.copy(sources[OWNER] / _PROFILE, targets[OWNER] / _PROFILE)


def _share_out(sources: list[Path], targets: list[Path], stem: str, home: Callable[[dict[str, Any]], int]) -> None:
    """Every line of one kind to the process it belongs to; those of one source stay in order."""
    logs = [Segments(target, stem, _SEGMENT_BYTES) for target in targets]
    for source in sources:
        if any(source.glob(f"{stem}-*.jsonl")):
            log = Segments(source, stem, _SEGMENT_BYTES)
            for _, _, line in log.lines():
                logs[home(line)].append(line)
            log.close()
    for log in logs:
        log.close()
