"""The decision rules that are compared, by name: `make_rule("rlboost+", {})`.

A rule sees the snapshot and the policy, never the simulator. Those that hold something between looks say so; the
simulator runs one instance per run, so make a new one for each.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pearl_planner.rule import PearlRule
from pearl_planner.rule import Rule as Rule
from pearl_simulator.rules.dynamo import DynamoRule
from pearl_simulator.rules.fixed import FixedRule, VerlLend
from pearl_simulator.rules.paper import PaperRule
from pearl_simulator.rules.prorsa import ProrsaRule
from pearl_simulator.rules.schedule import ScheduleRule

if TYPE_CHECKING:
    from collections.abc import Mapping

RULES: dict[str, str] = {
    "roll": "reserved GPUs only, colocated",
    "roll-large": "a fixed number of GPUs (parameter `gpus`), colocated",
    "rlboost+": "all elastic GPUs, colocated, borrows nothing",
    "verl-lend": "all elastic GPUs, colocated, borrows training GPUs with verl's gate",
    "dynamo-like": "prefill and decode scaled by load and latency targets; replaces pods instead of flipping them",
    "prorsa-like": "roles switched by a forecast of prefill and decode demand over the next seconds",
    "pearl-paper": "the PEARL paper's equations, hysteresis and borrow gate as published, refitted after each step",
    "pearl": "this project's planner",
    "fixed:aPbD": "always a prefill and b decode workers while there are GPUs for them",
    "colocated:N": "always N colocated workers while there are GPUs for them",
    "ratio:aPbD": "all elastic GPUs, always in the proportion a:b",
    "schedule": "a prefill share for every part of the run, as found with hindsight",
}
"""Names that `make_rule` knows, with what they do. `static-best` and `clairvoyant` need the future: see `hindsight`."""

_SHAPE = re.compile(r"(\d+)P(\d+)D")
_TUNABLES: dict[str, dict[str, tuple[float, ...]]] = {
    "verl-lend": {"min_remaining_share": (0.0, 0.2, 0.4)},
    "dynamo-like": {
        "inter_token_factor": (1.15, 1.3, 2.0),
        "utilisation": (0.2, 0.4),
        "down_patience": (3.0, 10.0),
        "colocated_below": (0.0, 4.0),
    },
    "prorsa-like": {
        "horizon_seconds": (10.0, 30.0, 60.0),
        "margin": (0.05, 0.2),
        "colocated_below": (0.0, 3.0, 5.0),
    },
    "pearl-paper": {
        "overlap_factor": (0.0, 1.0, 2.0),
        "mode_threshold": (0.04, 0.08),
        "ratio_threshold": (0.01, 0.03),
    },
}


def make_rule(name: str, parameters: Mapping[str, float]) -> Rule:
    """A new rule. Parameters are the fields of its class; those not given keep their defaults.

    Raises:
        ValueError: no such rule, or it has no such parameter; the message says what there is.
    """
    kind, _, shape = name.partition(":")
    if shape:
        _only(name, parameters, ("borrow",))
        return FixedRule(**_shape_fields(name, kind, shape), borrow=bool(parameters.get("borrow", 0.0)))
    if name == "schedule":
        return _schedule(parameters)
    if name in ("roll", "rlboost+"):
        _only(name, parameters, ())
        return FixedRule(gpus=0 if name == "roll" else None)
    if name == "roll-large":
        _only(name, parameters, ("gpus",))
        if "gpus" not in parameters:
            raise ValueError("rule roll-large: give the parameter gpus, for example the mean of the trace")
        return FixedRule(gpus=int(parameters["gpus"]))
    if name not in _CLASSES:
        raise ValueError(f"no rule {name!r}; there are: {', '.join(RULES)}")
    made: Rule = _CLASSES[name](**_typed(name, parameters))
    return made


_CLASSES: dict[str, Any] = {
    "verl-lend": VerlLend,
    "dynamo-like": DynamoRule,
    "prorsa-like": ProrsaRule,
    "pearl-paper": PaperRule,
    "pearl": PearlRule,
}


_ONE_SIZE = (VerlLend, DynamoRule, ProrsaRule, PaperRule, ScheduleRule)


def knows_sizes(rule: Rule) -> bool:
    """Whether it can lead workers of several sizes, and does not count them as if all had the same GPUs."""
    return not isinstance(rule, _ONE_SIZE)


def tunables(name: str) -> dict[str, tuple[float, ...]]:
    """Values to try for each parameter of a baseline on training seeds; empty = nothing to tune."""
    return dict(_TUNABLES.get(name, {}))


def _typed(name: str, parameters: Mapping[str, float]) -> dict[str, float]:
    """Checked, with whole numbers where the field holds one."""
    known = {one.name: str(one.type) for one in fields(_CLASSES[name]) if not one.name.startswith("_")}
    _only(name, parameters, tuple(known))
    return {key: int(value) if known[key] == "int" else float(value) for key, value in parameters.items()}


def _only(name: str, parameters: Mapping[str, float], known: tuple[str, ...]) -> None:
    for key in parameters:
        if key not in known:
            raise ValueError(f"rule {name} has no parameter {key!r}; it has: {', '.join(known) or 'none'}")


def _shape_fields(name: str, kind: str, shape: str) -> dict[str, Any]:
    """Of `fixed:2P3D`, `ratio:2P3D` and `colocated:4`; `fixed` and `colocated` limit the workers."""
    found = _SHAPE.fullmatch(shape)
    if kind == "colocated" and shape.isdecimal() and int(shape) > 0:
        return {"workers": int(shape)}
    if kind in ("fixed", "ratio") and found and min(int(found[1]), int(found[2])) > 0:
        ratio = (int(found[1]), int(found[2]))
        return {"ratio": ratio, "workers": sum(ratio) if kind == "fixed" else None}
    raise ValueError(f"no rule {name!r}; write fixed:2P3D, ratio:2P3D or colocated:4")


def _schedule(parameters: Mapping[str, float]) -> ScheduleRule:
    """From `start_0`, `share_0`, `start_1`, …, `tail_share`, `tail_below`, `borrow`."""
    parts = sum(1 for key in parameters if key.startswith("share_"))
    names = [f"{kind}_{i}" for kind in ("start", "share") for i in range(parts)]
    _only("schedule", parameters, (*names, "tail_share", "tail_below", "borrow"))
    return ScheduleRule(
        tuple(parameters.get(f"start_{i}", 0.0) for i in range(parts)) or (0.0,),
        tuple(parameters[f"share_{i}"] for i in range(parts)) or (0.0,),
        parameters.get("tail_share", 0.0),
        parameters.get("tail_below", 0.0),
        bool(parameters.get("borrow", 1.0)),
    )
