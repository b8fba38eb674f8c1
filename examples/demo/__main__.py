"""`make demo`: the product on this machine, in two acts that end with one report.

Act 1 needs nothing but the environment of `make setup`: the operator on emulated H100 workers, a recorded spot trace at
60 times its pace, for about three minutes. Act 2 is a real cluster with real vLLM and a real trainer: its set-up (a
cluster, images, an engine, models) is cached, what follows takes about ten minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from examples.common import page
from examples.common.promises import Promise
from examples.demo import cluster
from examples.demo.emulated import act, report
from examples.demo.emulated.scenario import scenario
from pearl_dev.errors import ClusterError

ACTS = ("1", "2")


def main(words: list[str] | None = None) -> int:
    """Entry point; 0 = every promise was kept, 1 = one was not, 2 = the machine lacks something."""
    options = _options(words)
    console, parts, checks = Console(), list[str](), list[Promise]()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        if "1" in options.acts:
            _emulated(options, console, parts, checks)
        if "2" in options.acts:
            cluster.play(console, parts, checks, out=options.out, steps=options.steps, keep=options.keep)
    except ClusterError as error:
        console.print(f"[red]error:[/red] {error}")
        return 2
    finally:
        if parts:
            target = options.out / "report.html"
            target.write_text(page.document("PEARL demo", parts))
            console.print(f"Report: {target}")
    return 0 if all(one.kept for one in checks) else 1


def _options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="PEARL on this machine: emulated H100 workers (act 1); real cluster, vLLM and trainer (act 2)."
    )
    parser.add_argument("--acts", type=_acts, default=ACTS, help="which to play, `1`, `2` or `1,2` (default: both)")
    parser.add_argument("--speed", type=float, default=60.0, help="of act 1: times real time, 0 = as fast as possible")
    parser.add_argument("--seed", type=int, default=1, help="of act 1: draws the agents and who loses its node")
    parser.add_argument("--keep", action="store_true", help="leave the cluster of act 2 up afterwards")
    parser.add_argument("--steps", type=int, default=25, help="updates of act 2's trainer (default: 25)")
    parser.add_argument("--out", type=Path, default=Path("report"), help="folder for report and logs")
    return parser.parse_args(words)


def _acts(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if not set(found) <= set(ACTS):
        raise argparse.ArgumentTypeError(f"{text!r} is not one of 1, 2 and 1,2")
    return found


def _emulated(options: argparse.Namespace, console: Console, parts: list[str], checks: list[Promise]) -> None:
    played = scenario()
    record = act.play(played, seed=options.seed, speed=options.speed, console=console)
    console.print(page.promises_on_screen(record.checks, title="Act 1: what was kept"))
    console.print(report.verdict(record, played))
    parts += report.parts(record, played)
    checks += record.checks


if __name__ == "__main__":
    sys.exit(main())
