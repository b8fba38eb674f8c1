"""The command line: `make chaos-loans`, or `PYTHONPATH=.:tests/e2e:tests/support python -m loans_chaos --pairs 20`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loans_chaos import group, phases
from loans_chaos.faults import every
from loans_chaos.report import run
from loans_chaos.runner import pairs, plays, singles
from loans_chaos.stage import cluster, stage
from pearl_dev.progress import Progress

PAIRS = 24


def main() -> int:
    """Exit code 1 where something did not hold."""
    parser = argparse.ArgumentParser(prog="loans_chaos", description="Breaks loans on the real local cluster.")
    add = parser.add_argument
    add("--name", default="chaos", help="cluster, used if it is up and left as it was (default: %(default)s)")
    add("--pairs", type=int, metavar="N", help="only so many pairs of faults (default: 24, after every single fault)")
    add("--seed", type=int, default=0, help="of pairs and load (default: 0)")
    add("--only", nargs="+", metavar="TEXT", help="cases whose names contain one of these")
    add("--group", action="store_true", help="instead: a trainer of several pods whose driver dies")
    add("--real", action="store_true", help="real vLLM; without it engines are emulated, and start in a second")
    add("--api-seconds", type=float, default=60.0, help="how long the API server stands still (default: 60)")
    add("--json", type=Path, help="where the result goes")
    options = parser.parse_args()
    faults = every(options.api_seconds)
    cases = singles(phases.EVERY, faults) if options.pairs is None else []
    cases += pairs(phases.EVERY, faults, PAIRS if options.pairs is None else options.pairs, options.seed)
    chosen = [case for case in cases if any(words in case.name for words in options.only or [""])]
    to_play = group.EVERY if options.group else plays(chosen)
    with (
        cluster(options.name, Progress()) as running,
        stage(running, real=options.real, seed=options.seed, group=options.group) as scene,
    ):
        result = run(scene, to_play, lambda text: print(text, flush=True))  # noqa: T201 - a command line
    if options.json:
        result.write(options.json)
    for text in [f"{name}: {value}" for name, value in result.summary().items()] + result.problems:
        print(text)  # noqa: T201 - a command line
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
