"""Reads a mapping that a user wrote, so that every error names the field by its path."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from pearl_simulator.errors import InputError
from pearl_simulator.workloads.checks import MANY, number, text, whole
from pearl_simulator.workloads.distributions import LogNormal

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_SIGMA = 3.0
"""Beyond it the mean of a log-normal is more than 90 times its median: no batch would ever end."""


class Section:
    """One mapping; fields that nobody asked for are errors in `done`."""

    def __init__(self, data: Any, path: str = "") -> None:
        """Raises InputError where it is no mapping."""
        if not isinstance(data, dict):
            where = path or "the file"
            problem = "is missing" if data is None else f"is {data!r}"
            raise InputError(f"{where} {problem}; give a mapping of fields (docs/workloads.md)")
        self._data: Mapping[Any, Any] = data
        self._path = path
        self._asked: list[str] = []

    def field(self, name: str) -> str:
        """Its path in the file."""
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        """Whether the field is there and not empty."""
        self._asked.append(name)
        return self._data.get(name) is not None

    def raw(self, name: str) -> Any:
        """Its value, None when it is not there."""
        self._asked.append(name)
        return self._data.get(name)

    def section(self, name: str) -> Section:
        """A mapping inside."""
        return Section(self.raw(name), self.field(name))

    def number(self, name: str, default: float | None = None, *, low: float = 0.0, high: float = MANY) -> float:
        """A number; required without a default."""
        value = self.raw(name)
        return default if value is None and default is not None else number(value, self.field(name), low=low, high=high)

    def whole(self, name: str, default: int | None = None, *, low: int = 0, high: int = int(MANY)) -> int:
        """A whole number; required without a default."""
        value = self.raw(name)
        return default if value is None and default is not None else whole(value, self.field(name), low=low, high=high)

    def text(self, name: str, default: str | None = None, choices: tuple[str, ...] = ()) -> str:
        """A text; required without a default."""
        value = self.raw(name)
        return default if value is None and default is not None else text(value, self.field(name), choices)

    def lognormal(self, name: str, default: LogNormal | None = None, *, low: float = 0.0) -> LogNormal:
        """`{median, sigma, cap}`, or a number for one that is always the same."""
        value = self.raw(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, dict):
            return LogNormal(number(value, self.field(name), low=low))
        inner = Section(value, self.field(name))
        found = LogNormal(inner.number("median", low=low), inner.sigma("sigma"), inner.number("cap", MANY, low=low))
        inner.done()
        return found

    def sigma(self, name: str, default: float = 0.0) -> float:
        """Spread of a log-normal."""
        value = self.raw(name)
        found = number(default if value is None else value, self.field(name))
        if found > MOST_SIGMA:
            raise InputError(
                f"{self.field(name)} is {found:g}, so rare values have no bound; give 0 to {MOST_SIGMA:g} (1 is usual)"
            )
        return found

    def done(self) -> None:
        """Raises InputError where there is a field that nobody asked for."""
        for name in self._data:
            if name not in self._asked:
                near = difflib.get_close_matches(str(name), self._asked, n=1)
                fix = f"did you mean {near[0]!r}?" if near else f"leave it out or give one of: {', '.join(self._asked)}"
                raise InputError(f"{self.field(str(name))} is not a field; {fix}")
