"""An append-only log of JSON lines in numbered files, so that old ones can be dropped whole."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from pearl_gateway.jsons import dumps, loads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DIGITS = 6


class Segments:
    """Files `STEM-000001.jsonl` and so on in one directory; every line is handed to the operating system at once.

    Raises:
        OSError: the directory cannot be written.
    """

    def __init__(self, folder: Path, stem: str, segment_bytes: int) -> None:
        self._folder = folder
        self._stem = stem
        self._segment_bytes = segment_bytes
        self.numbers = sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob(f"{stem}-*.jsonl"))
        self._file: Any = None
        self._open(self.numbers[-1] if self.numbers else 1)

    def append(self, content: dict[str, Any]) -> tuple[int, int]:
        """Write one line; (file number, offset) of where it begins."""
        offset: int = self._file.tell()
        if offset >= self._segment_bytes:
            self._open(self.numbers[-1] + 1)
            offset = 0
        try:
            self._file.write(dumps(content) + b"\n")
            self._file.flush()
        except OSError:
            self._reopen(offset)
            raise
        return self.numbers[-1], offset

    def _reopen(self, offset: int) -> None:
        """Drop what a write that failed has left, in the buffer and in the file: the next line begins at `offset`."""
        number = self.numbers[-1]
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.truncate(self._path(number), offset)
        self._file = None
        self._open(number)

    def read(self, number: int, offset: int) -> dict[str, Any]:
        """The line that `append` wrote there."""
        with self._path(number).open("rb") as file:
            file.seek(offset)
            line: dict[str, Any] = loads(file.readline())
        return line

    def lines(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """(file number, offset, line), oldest first; lines that a crash cut short are left out."""
        for number in list(self.numbers):
            with self._path(number).open("rb") as file:
                offset = 0
                for line in file:
                    content = _parsed(line)
                    if content is not None:
                        yield number, offset, content
                    offset += len(line)

    def drop(self, number: int) -> None:
        """Delete one file, except the newest."""
        if number in self.numbers[:-1]:
            self._path(number).unlink(missing_ok=True)
            self.numbers.remove(number)

    def bytes(self) -> int:
        """Size of all files."""
        return sum(self._path(number).stat().st_size for number in self.numbers)

    def close(self) -> None:
        """Close the newest file."""
        self._file.close()

    def _open(self, number: int) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._path(number).open("a+b")
        if number not in self.numbers:
            self.numbers.append(number)
        end = self._file.seek(0, 2)
        if end:
            self._file.seek(end - 1)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")
        self._file.seek(0, 2)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._stem}-{number:0{_DIGITS}d}.jsonl"


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = loads(line)
    except ValueError:
        return None  # a crash cut it short: what it said was never acknowledged
    return content
