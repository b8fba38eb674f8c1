"""The command line: `make chaos-gateway`, or `PYTHONPATH=.:tests/e2e:tests/support python -m gateway_chaos --help`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import secrets
import sys
import tempfile
from pathlib import Path

from gateway_chaos import report
from gateway_chaos.events import WEIGHTS, Kind
from gateway_chaos.play import Pace
from gateway_chaos.reference import EmulatedReference
from gateway_chaos.run import ACTS, Plan, Result, play_act
from gateway_chaos.sabotage import KINDS
from gateway_chaos.scene import Stage
from gateway_chaos.traffic import Shape

EVENTS = 10_000
LEASE_SECONDS = 1.0


def main() -> int:
    """Exit code 1 where anything was lost, doubled or wrong; 2 for wrong options."""
    options = _parser().parse_args()
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
    kinds = {kind: WEIGHTS[kind] for kind in Kind if any(words in kind for words in options.only or [""])}
    plan = Plan(
        seed=seed,
        events=max(1, options.events // max(1, len(acts))),
        rate=options.rate,
        together=max(1, options.workers - 4),
        shape=Shape(options.trajectories),
        pace=Pace(),
        kinds=kinds,
    )
    results = []
    for number, act in enumerate(acts):
        stage = Stage(
            folder=folder / f"act-{number}",
            workers=options.workers,
            on_update=act.on_update,
            lease_seconds=LEASE_SECONDS,
            seed=seed,
            sabotage=options.sabotage,
        )
        results.append(await play_act(act, stage, plan, EmulatedReference(), say))
    return results


def say(text: str) -> None:
    """To whoever watches."""
    print(text, flush=True)  # noqa: T201 - a command line


def _chosen(options: argparse.Namespace) -> str:
    chosen = [f" --rate {options.rate:g} --workers {options.workers} --trajectories {options.trajectories}"]
    for name in ("acts", "only"):
        chosen += [f" --{name} {' '.join(map(repr, getattr(options, name)))}"] if getattr(options, name) else []
    chosen += [f" --sabotage {options.sabotage}"] if options.sabotage else []
    return "".join(chosen)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gateway_chaos", description="Breaks everything around the gateway.")
    add = parser.add_argument
    add("--events", type=int, default=EVENTS, help="over all acts (default: %(default)s)")
    add("--seed", help="of events and agents (default: a new one, which is told)")
    add("--rate", type=float, default=24.0, help="events per second (default: %(default)s)")
    add("--workers", type=int, default=14, help="default: %(default)s")
    add("--trajectories", type=int, default=24, help="about so many at once (default: %(default)s)")
    add("--acts", nargs="+", metavar="TEXT", help="acts whose names contain one of these")
    add("--only", nargs="+", metavar="TEXT", help="kinds of events whose names contain one of these")
    add("--sabotage", choices=KINDS, help="break one answer in ten on purpose: the run must fail")
    add("--folder", type=Path, help="for logs and storage (default: a new one)")
    add("--json", type=Path, help="where the result goes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
