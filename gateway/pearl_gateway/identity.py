"""Who asks: trajectory, turn, attempt, group and class of a request, from headers or from the body field `pearl`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pearl_api.wire.gateway import (
    HEADER_ATTEMPT,
    HEADER_CLASS,
    HEADER_GROUP,
    HEADER_PARENT,
    HEADER_STEP,
    HEADER_TRAJECTORY,
    HEADER_TURN,
    NAME_PATTERN,
)
from pearl_gateway.errors import bad_request

if TYPE_CHECKING:
    from collections.abc import Iterable

_FIELDS = {
    HEADER_TRAJECTORY: "trajectory",
    HEADER_TURN: "turn",
    HEADER_ATTEMPT: "attempt",
    HEADER_GROUP: "group",
    HEADER_CLASS: "class",
    HEADER_PARENT: "parentTurn",
    HEADER_STEP: "step",
}
_TRAFFIC = ("train", "eval", "other")
_NUMBERS = ("turn", "attempt", "parentTurn", "step")
_NUMBER = re.compile(r"[0-9]{1,15}")
_MOST = 10**15
NAME = re.compile(NAME_PATTERN)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a request says about itself; None where it says nothing."""

    trajectory: str | None = None
    turn: int | None = None
    attempt: int = 0
    group: str | None = None
    traffic: str = "train"
    parent_turn: int | None = None
    step: int | None = None


_LOWER = {header.lower().encode(): field for header, field in _FIELDS.items()}


def read_identity(headers: Iterable[tuple[bytes, bytes]], body: dict[str, Any]) -> Identity:
    """Identity of a request; a header wins over the same field of `body["pearl"]`, which is taken out.

    Args:
        headers: As ASGI has them, names in lower case; of several with one name the first counts.
        body: The request's JSON object.

    Raises:
        GatewayError: a value cannot be meant; the message names it.
    """
    fields = body.pop("pearl", None) or {}
    if not isinstance(fields, dict):
        raise bad_request('field `pearl` must be an object, for example {"trajectory": "t1", "turn": 0}')
    said: dict[str, str] = {}
    for name, value in headers:
        field = _LOWER.get(name)
        if field is not None:
            said.setdefault(field, value.decode("latin-1"))
    values: dict[str, Any] = {
        field: _checked(header, field, said.get(field) or fields.get(field)) for header, field in _FIELDS.items()
    }
    traffic = values["class"] or "train"
    if traffic not in _TRAFFIC:
        raise bad_request(f"{HEADER_CLASS}: {traffic!r} must be one of {', '.join(_TRAFFIC)}", param=HEADER_CLASS)
    return Identity(
        trajectory=values["trajectory"],
        turn=values["turn"],
        attempt=values["attempt"] or 0,
        group=values["group"],
        traffic=traffic,
        parent_turn=values["parentTurn"],
        step=values["step"],
    )


def _checked(header: str, field: str, value: Any) -> Any:
    if value is None or value == "":
        return None
    where = f"{header} (or pearl.{field})"
    if field in _NUMBERS:
        number = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
        if type(number) is not int or not 0 <= number < _MOST:
            raise bad_request(f"{where}: {value!r:.80} must be a whole number from 0", param=header)
        return number
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise bad_request(f"{where}: use 1 to 200 of letters, digits and . _ : / @ -", param=header)
    return value
