"""Snapshots, policies, plans and memories as JSON values and back, so that a recorded decision can be repeated.

Field names are the keys; enums are their values; tuples are lists; an action carries its class name under `action`.
A plan made from a snapshot that went through JSON equals the plan made before (`dumps` gives equal bytes).
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from enum import Enum
from typing import Any, TypeVar, cast

from pearl_planner import types as planner_types
from pearl_planner.engine.model import EngineTable
from pearl_planner.types import Memory, Plan, Policy, Snapshot
from pearl_planner.workload.profile import Profile

T = TypeVar("T")

_ACTIONS: tuple[type, ...] = (
    planner_types.CreateWorker,
    planner_types.DeleteWorker,
    planner_types.SetRole,
    planner_types.SetActivity,
    planner_types.AnswerLoan,
)


def to_json(value: Any) -> Any:
    """A JSON value of any dataclass of the planner, or of what it is made of."""
    if isinstance(value, Profile):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        tag = {"action": type(value).__name__} if isinstance(value, _ACTIONS) else {}
        return tag | {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    return value


def dumps(value: Any) -> str:
    """Compact JSON text with sorted keys: equal values give equal bytes."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def snapshot_from_json(data: dict[str, Any]) -> Snapshot:
    """The snapshot of `to_json`."""
    return from_json(Snapshot, data)


def policy_from_json(data: dict[str, Any]) -> Policy:
    """The policy of `to_json`."""
    return from_json(Policy, data)


def plan_from_json(data: dict[str, Any]) -> Plan:
    """The plan of `to_json`."""
    return from_json(Plan, data)


def memory_from_text(text: str | None) -> Memory:
    """The memory kept in a status; an empty one where there is none or it cannot be read (it is only experience)."""
    try:
        data = json.loads(text) if text else None
        return from_json(Memory, data) if isinstance(data, dict) else Memory()
    except (ValueError, TypeError, KeyError):
        return Memory()


def from_json(kind: type[T], data: Any) -> T:
    """The dataclass `kind` from its JSON value; unknown keys are left out, missing ones take their default.

    Raises:
        TypeError, ValueError, KeyError: the value is not of that form.
    """
    return cast("T", _decode(kind, data))


def _decode(kind: Any, data: Any) -> Any:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(parts, data)
    if origin is tuple:
        return _tuple(parts, data)
    if origin is dict:
        return {str(key): _decode(parts[1], item) for key, item in data.items()}
    return _plain(kind, data)


def _plain(kind: Any, data: Any) -> Any:
    if kind is Profile:
        return Profile.from_dict(data)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    return float(data) if kind is float and data is not None else data


def _dataclass(kind: type, data: Any) -> Any:
    names = {"EngineTable": EngineTable, "Profile": Profile}
    hints = typing.get_type_hints(kind, localns=names)
    return kind(**{name: _decode(hint, data[name]) for name, hint in hints.items() if name in data})


def _union(parts: tuple[Any, ...], data: Any) -> Any:
    if data is None:
        return None
    if isinstance(data, dict) and "action" in data:
        return _decode(next(kind for kind in _ACTIONS if kind.__name__ == data["action"]), data)
    return _decode(next(part for part in parts if part is not types.NoneType), data)


def _tuple(parts: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    if len(parts) > 1 and parts[1] is not Ellipsis:
        return tuple(_decode(part, item) for part, item in zip(parts, data, strict=True))
    return tuple(_decode(parts[0], item) for item in data)
