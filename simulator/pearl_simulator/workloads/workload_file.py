"""`pearl-sim whatif FILE`: a YAML file with the user's model, GPUs, workload and training (docs/workloads.md)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pearl_planner.engine.tables import TableError, table_from_dict
from pearl_simulator.calibration.calibrations import GPUS, clean, costs
from pearl_simulator.errors import InputError
from pearl_simulator.types import Feeding, Fleet, Router, Scenario, Training
from pearl_simulator.workloads.capacity import load_trace
from pearl_simulator.workloads.distributions import LogNormal, LogNormalTurns, Mixture, always, simple
from pearl_simulator.workloads.drawn import CONTEXT_TOKENS, SANDBOX_RESET, DrawnWorkload
from pearl_simulator.workloads.presets import presets
from pearl_simulator.workloads.replay import from_statistics, replayed
from pearl_simulator.workloads.sections import Section

if TYPE_CHECKING:
    from pearl_simulator.types import Calibration, CapacityChange, Costs, Workload

MOST_CONTEXT, MOST_TURNS = 1_048_576, 1000
MOST_TRAJECTORIES = 16_384
MOST_GPUS, MOST_HOURS = 4096, 24.0
WARMUP_SHARE = 0.125
"""Of the simulated time, left out of rates: the first batches start on an empty fleet."""


def load(path: str | Path) -> Scenario:
    """The scenario that a file asks for.

    Raises:
        InputError: the file cannot be read or used; the message names the field and the fix.
    """
    try:
        data = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); check the path") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML ({' '.join(str(error).split())}); correct that line") from error
    return parse(data, name=Path(path).stem, folder=Path(path).parent)


def parse(data: Any, *, name: str, folder: Path) -> Scenario:
    """The scenario of what the YAML file holds; paths in it are relative to `folder`.

    Raises:
        InputError: it cannot be used.
    """
    top = Section(data)
    model, tp = top.text("model"), top.whole("tensorParallel", 1, low=1, high=64)
    calibration = _calibration(top, model, tp, folder)
    fleet = _fleet(top.section("fleet"), tp)
    workload = _workload(top.section("workload"), folder)
    _fits(workload, calibration)
    training = _training(top.section("training"), workload)
    seconds = 3600.0 * top.number("hours", 2.0, low=0.01, high=MOST_HOURS)
    scenario = Scenario(
        name=name,
        workload=workload,
        calibration=calibration,
        training=training,
        horizon_seconds=seconds,
        warmup_seconds=WARMUP_SHARE * seconds,
        fleet=fleet,
        costs=_costs(top, model),
        router=_router(top),
        capacity=_capacity(top, fleet, folder),
        objective=top.text("objective", "Throughput", ("Throughput", "Cost")),
    )
    top.done()
    return scenario


def _calibration(top: Section, model: str, tp: int, folder: Path) -> Calibration:
    if not top.has("engineTable"):
        return clean(model, top.text("gpu", choices=GPUS), tp)
    top.raw("gpu")  # only a remark then
    path = folder / top.text("engineTable")
    try:
        table = table_from_dict(json.loads(path.read_text()), name=path.stem)
    except (OSError, ValueError, AttributeError, TableError) as error:
        raise InputError(
            f"engineTable {path} cannot be used ({error}); give the JSON file that `pearl-sim calibrate` writes"
        ) from error
    base = clean("Qwen/Qwen3-8B")
    return replace(base, name="measured", table=table)


def _fleet(section: Section, tp: int) -> Fleet:
    reserved = section.whole("reserved", high=MOST_GPUS)
    elastic = section.whole("elastic", 0, high=MOST_GPUS)
    borrowed = section.whole("borrowed", 0, high=MOST_GPUS)
    section.done()
    if reserved + elastic < tp:
        raise InputError(
            f"fleet has {reserved + elastic} GPUs, one worker needs tensorParallel = {tp}; "
            "raise fleet.reserved or lower tensorParallel"
        )
    return Fleet(tp, reserved, elastic, borrowed)


def _workload(section: Section, folder: Path) -> Workload:
    kinds = [kind for kind in ("preset", "recorded", "statistics") if section.has(kind)]
    if len(kinds) > 1:
        raise InputError(f"{section.field(kinds[1])} is given beside {section.field(kinds[0])}; keep one of them")
    if kinds == ["preset"]:
        found: Workload = _preset(section)
    elif kinds == ["recorded"]:
        found = _recorded(section, folder)
    elif kinds == ["statistics"]:
        groups, size, context = _batch(section, 4, 16, CONTEXT_TOKENS)
        file = folder / section.text("statistics")
        found = from_statistics(file, groups=groups, group_size=size, context_tokens=context)
    else:
        found = _drawn(section)
    section.done()
    return found


def _batch(section: Section, groups: int, group_size: int, context: int) -> tuple[int, int, int]:
    """Groups, group size and context."""
    many = section.whole("groups", groups, low=1)
    size = section.whole("groupSize", group_size, low=1)
    if many * size > MOST_TRAJECTORIES:
        raise InputError(
            f"{section.field('groups')} × groupSize is {many * size} trajectories; give at most {MOST_TRAJECTORIES}"
        )
    return many, size, section.whole("contextTokens", context, low=2, high=MOST_CONTEXT)


def _preset(section: Section) -> DrawnWorkload:
    known = presets()
    base = known[section.text("preset", choices=tuple(known))]
    groups, size, context = _batch(section, base.groups, base.group_size, base.context_tokens)
    return replace(base, groups=groups, group_size=size, context_tokens=context)


def _recorded(section: Section, folder: Path) -> Workload:
    groups, size, context = _batch(section, 4, 16, CONTEXT_TOKENS)
    given = section.text("recorded")
    file = folder / given
    wait = section.number("environmentSeconds") if section.has("environmentSeconds") else None
    return replayed(
        file if file.exists() else given,
        groups=groups,
        group_size=size,
        context_tokens=context,
        environment_seconds=wait,
    )


def _drawn(section: Section) -> DrawnWorkload:
    groups, size, context = _batch(section, 4, 16, CONTEXT_TOKENS)
    prompt = section.lognormal("firstPrompt", low=1)
    if prompt.median >= context:
        raise InputError(
            f"{section.field('firstPrompt')} is {prompt.median:g} tokens, the context holds {context}; "
            f"raise {section.field('contextTokens')}"
        )
    return DrawnWorkload(
        name="drawn",
        turns=_turns(section),
        first_prompt=prompt,
        appended=section.lognormal("appended", low=1),
        generated=section.lognormal("generated", low=1),
        environment=_environment(section),
        groups=groups,
        group_size=size,
        retained_share=section.number("retained", 1.0, high=1.0),
        missed_share=section.number("missed", 0.0, high=1.0),
        reset=simple(section.lognormal("resetSeconds", SANDBOX_RESET.usual)),
        reward_seconds=section.number("rewardSeconds", 0.0),
        context_tokens=context,
    )


def _turns(section: Section) -> LogNormalTurns:
    value = section.raw("turns")
    if not isinstance(value, dict):
        return LogNormalTurns(section.number("turns", low=1, high=MOST_TURNS), 0.0, 0.0, MOST_TURNS)
    inner = section.section("turns")
    found = LogNormalTurns(
        inner.number("median", low=1, high=MOST_TURNS),
        inner.sigma("groupSigma"),
        inner.sigma("sigma"),
        inner.whole("cap", MOST_TURNS, low=1, high=MOST_TURNS),
    )
    inner.done()
    return found


def _environment(section: Section) -> Mixture:
    """`{median, sigma, rareShare, rareMedian}` or a number of seconds; none = an environment that answers at once."""
    value = section.raw("environment")
    if not isinstance(value, dict):
        return simple(always(section.number("environment", 0.0)))
    inner = section.section("environment")
    sigma = inner.sigma("sigma")
    usual = LogNormal(inner.number("median"), sigma)
    rare = LogNormal(inner.number("rareMedian", 20.0), sigma)
    found = Mixture(usual, rare, inner.number("rareShare", 0.0, high=1.0))
    inner.done()
    return found


def _fits(workload: Workload, calibration: Calibration) -> None:
    """One trajectory must fit into the KV of one worker."""
    context = getattr(workload, "context_tokens", CONTEXT_TOKENS)
    room = calibration.table.kv_capacity_tokens
    if room is not None and context > room:
        raise InputError(
            f"workload.contextTokens is {context}, but one worker ({calibration.table.name}) has KV room for {room} "
            "tokens; raise tensorParallel or lower workload.contextTokens"
        )


def _training(section: Section, workload: Workload) -> Training:
    need = section.whole("needGroups", low=1) if section.has("needGroups") else None
    if need is not None and need > workload.groups:
        raise InputError(f"training.needGroups is {need}, a batch has {workload.groups} groups; lower it")
    found = Training(
        update_seconds=section.number("updateSeconds", high=86400.0),
        feeding=Feeding(section.text("feeding", "refill", tuple(Feeding))),
        max_staleness=section.whole("maxStaleness", 1, high=64),
        need_groups=need,
    )
    section.done()
    return found


def _costs(top: Section, model: str) -> Costs:
    known = costs(model)
    if not top.has("costs"):
        return known
    section = top.section("costs")
    found = replace(
        known,
        start_seconds=section.number("startSeconds", known.start_seconds),
        wake_seconds=section.number("wakeSeconds", known.wake_seconds),
        sleep_seconds=section.number("sleepSeconds", known.sleep_seconds),
        flip_seconds=section.number("flipSeconds", known.flip_seconds),
        weights_seconds=section.number("weightsSeconds", known.weights_seconds),
        notice_seconds=section.number("noticeSeconds", known.notice_seconds),
    )
    section.done()
    return found


def _router(top: Section) -> Router:
    """The window is automatic unless it is given."""
    return Router(window=top.whole("window", low=1) if top.has("window") else None)


def _capacity(top: Section, fleet: Fleet, folder: Path) -> tuple[CapacityChange, ...]:
    """A trace, or nothing: the elastic GPUs are there all the time."""
    if not top.has("capacity"):
        return ()
    given = top.text("capacity")
    file = folder / given
    most = fleet.reserved_gpus + fleet.elastic_max_gpus
    return load_trace(file if file.exists() else given, reserved=fleet.reserved_gpus, most=most)
