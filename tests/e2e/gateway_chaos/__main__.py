"""The command line: `make chaos-gateway`, or `PYTHONPATH=.:tests/e2e:tests/support python -m gateway_chaos --help`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import secrets
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gateway_chaos import real, report
from gateway_chaos.events import REAL_WEIGHTS, WEIGHTS, Kind
from gateway_chaos.play import Pace
from gateway_chaos.reference import EmulatedReference
from gateway_chaos.run import ACTS, Act, Plan, Result, play_act
from gateway_chaos.sabotage import KINDS
from gateway_chaos.scene import Stage
from gateway_chaos.traffic import Shape

if TYPE_CHECKING:
    from gateway_chaos.check import Reference

EVENTS, REAL_EVENTS = 10_000, 1_000
LEASE_SECONDS, REAL_LEASE_SECONDS = 1.0, 5.0
REAL_SHAPE = Shape(6, most_turns=4, prompt_tokens=(20, 200), answer_tokens=(40, 200), tool_seconds=0.3, stop_share=0.0)
REAL_PACE = Pace(away=1.5, reclaim=10.0, partition=2.0, stall=6.0, least_ready=2)


def main() -> int:
    """Exit code 1 where anything was lost, doubled or wrong; 2 for wrong options."""
    options = _with_defaults(_parser().parse_args())
    logging.basicConfig(level=logging.CRITICAL)
    seed = options.seed or secrets.token_hex(4)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="gateway-chaos-"))
    say(f"seed {seed}; logs in {folder}")
    results = asyncio.run(play(options, seed, folder))
    again = f"make chaos-gateway ARGS='--seed {seed} --events {options.events}{_chosen(options)}'"
    if options.json:
        content = {"summary": report.summary(results), "seed": seed, "again": again, **report.details(results)}
        options.json.write_text(json.dumps(content, indent=1))
    say(report.text(results, again))
    return 0 if results and all(one.good for one in results) else 1


async def play(options: argparse.Namespace, seed: str, folder: Path) -> list[Result]:
    """All acts."""
    acts = [one for one in ACTS if any(words in one.name for words in options.acts or [""])]
    weights = REAL_WEIGHTS if options.real else WEIGHTS
    kinds = {kind: weights[kind] for kind in Kind if any(words in kind for words in options.only or [""])}
    shape, pace = (REAL_SHAPE, REAL_PACE) if options.real else (Shape(options.trajectories), Pace())
    plan = Plan(
        seed=seed,
        events=max(1, options.events // max(1, len(acts))),
        rate=options.rate,
        together=max(1, options.workers - pace.least_ready),
        shape=replace(shape, together=options.trajectories),
        pace=pace,
        kinds=kinds,
        seconds=None if options.minutes is None else 60 * options.minutes / max(1, len(acts)),
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, _end, plan.over)
    engines = real.prepare() if options.real else None
    async with AsyncExitStack() as stack:
        reference: Reference = EmulatedReference()
        if engines is not None:
            reference = await stack.enter_async_context(real.references(engines, folder / "references"))

        async def one(number: int, act: Act) -> Result:
            lease = REAL_LEASE_SECONDS if options.real else LEASE_SECONDS
            where = folder / f"act-{number}"
            stage = Stage(
                where,
                options.workers,
                act.on_update,
                lease,
                seed,
                sabotage=options.sabotage,
                processes=options.processes,
            )
            return await play_act(act, engines.on(stage) if engines is not None else stage, plan, reference, say)

        if options.at_once:
            return list(await asyncio.gather(*(one(*each) for each in enumerate(acts))))
        return [await one(*each) for each in enumerate(acts) if not plan.over.is_set()]


def _end(over: asyncio.Event) -> None:
    """First interrupt: no further event. The next one ends at once."""
    over.set()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    say("interrupted: what was played is checked now; once more, and it is not")


def say(text: str) -> None:
    """To whoever watches."""
    print(text, flush=True)  # noqa: T201 - a command line


def _chosen(options: argparse.Namespace) -> str:
    chosen = [" --real"] if options.real else []
    chosen += [f" --rate {options.rate:g} --workers {options.workers} --trajectories {options.trajectories}"]
    for name in ("acts", "only"):
        chosen += [f" --{name} {' '.join(map(repr, getattr(options, name)))}"] if getattr(options, name) else []
    chosen += [f" --processes {options.processes}"] if options.processes > 1 else []
    chosen += [f" --sabotage {options.sabotage}"] if options.sabotage else []
    return "".join(chosen)


def _with_defaults(options: argparse.Namespace) -> argparse.Namespace:
    defaults = (REAL_EVENTS, 0.5, 4, 6) if options.real else (EVENTS, 24.0, 14, 24)
    for name, value in zip(("events", "rate", "workers", "trajectories"), defaults, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gateway_chaos", description="Breaks everything around the gateway.")
    add = parser.add_argument
    add("--real", action="store_true", help="real vLLM on the CPU instead of emulated engines")
    add("--events", type=int, help=f"over all acts (default: {EVENTS}, real {REAL_EVENTS})")
    add("--minutes", type=float, help="begin no event after so long, over all acts (default: all events)")
    add("--seed", help="of events and agents (default: a new one, which is told)")
    add("--rate", type=float, help="events per second at the most (default: 24, real 0.5)")
    add("--workers", type=int, help="default: 14, real 4")
    add("--trajectories", type=int, help="about so many at once (default: 24, real 6)")
    add("--acts", nargs="+", metavar="TEXT", help="acts whose names contain one of these")
    add("--processes", type=int, default=1, help="of the gateway; above 1 kills mostly meet one (default: 1)")
    add("--at-once", action="store_true", help="play all acts at the same time: an idle machine waits less")
    add("--only", nargs="+", metavar="TEXT", help="kinds of events whose names contain one of these")
    add("--sabotage", choices=KINDS, help="break one answer in ten on purpose: the run must fail")
    add("--folder", type=Path, help="for logs and storage (default: a new one)")
    add("--json", type=Path, help="where the result goes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
