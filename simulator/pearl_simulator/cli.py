"""The `pearl-sim` command: one sub-command per experiment."""

from __future__ import annotations

import argparse
import importlib
import math
import os
import shlex
import signal
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from pearl_simulator.errors import InputError
from pearl_simulator.experiments.setting import REPORT_SEEDS, Setting
from pearl_simulator.reporting.parallel import Pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_simulator.reporting.report import Report

DIFFERS = 1
BAD_INPUT = 2
INTERRUPTED = 130
MOST_SEEDS = 10_000
PLAIN_WIDTH = 160
"""Columns where the output is no terminal."""


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command: `run(setting) -> Report` of `pearl_simulator.experiments.MODULE`."""

    help: str
    module: str
    file: str = ""
    """Help of its FILE argument; empty = it takes none."""
    workloads: bool = False
    """Whether it draws random workloads."""
    table: bool = False
    """Whether it may start from a shipped engine table."""


COMMANDS = {
    "table2": Command("the PEARL paper's Table 2 from its own equations", "table2_report"),
    "endtoend": Command("every policy on three spot segments with two models, next to the bound", "endtoend"),
    "ablate": Command("each mechanism of PEARL on and off", "ablate"),
    "sensitivity": Command("batch, length, environment, cache, flip cost, churn, hardware, barrier", "sensitivity"),
    "predictor": Command("predicted against simulated makespans, and PEARL's regret", "predictor", workloads=True),
    "scale": Command("simulated seconds per second, and how long a decision takes", "scale"),
    "whatif": Command("what PEARL would do with your workload and GPUs", "whatif", file="workload file (YAML)"),
    "calibrate": Command(
        "engine constants from per-step records", "calibrate_report", file="records of the step recorder", table=True
    ),
    "tune": Command("tune the baselines on the training seeds (rewrites the file that endtoend reads)", "tune"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: done; 1: a replayed decision is not the recorded one; 2: the input cannot be used; 130: interrupted.

    What cannot be used is said in one sentence.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the processes it started end with it
    console = Console(stderr=True)
    try:
        return _run(_parser().parse_args(given), given, console)
    except InputError as error:
        console.print(f"pearl-sim: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return BAD_INPUT
    except KeyboardInterrupt:
        console.print("pearl-sim: interrupted, nothing was written")
        return INTERRUPTED


def _run(options: argparse.Namespace, given: Sequence[str], console: Console) -> int:
    if options.command == "docs":
        pages = importlib.import_module("pearl_simulator.reporting.pages")
        for path in pages.write(Path(options.results), Path(options.out)):
            console.print(f"wrote {path}", highlight=False)
        return 0
    if options.command == "replay-snapshot":
        return _replay_snapshot(Path(options.file))
    _check_writable(options)
    setting = Setting(
        pool=Pool(options.jobs, None if options.silent else console),
        quick=options.quick,
        seeds=options.seeds,
        seed=REPORT_SEEDS if options.seed is None else options.seed,
        workloads=getattr(options, "workloads", None),
        table=getattr(options, "table", None),
        processor_time=getattr(options, "processor_time", False),
        write=Path(options.write) if getattr(options, "write", None) else None,
        file=Path(options.file) if getattr(options, "file", None) else None,
    )
    experiment = importlib.import_module(f"pearl_simulator.experiments.{COMMANDS[options.command].module}")
    report: Report = experiment.run(setting)
    _give(report, options, f"pearl-sim {shlex.join(given)}", console)
    return 0


def _replay_snapshot(file: Path) -> int:
    replays = importlib.import_module("pearl_simulator.snapshot_replay")
    output = Console()
    replayed = replays.replay(file)
    replays.show(replayed, output if output.is_terminal else Console(width=PLAIN_WIDTH))
    return 0 if all(one.equal for one in replayed) else DIFFERS


def _give(report: Report, options: argparse.Namespace, command: str, console: Console) -> None:
    """To the terminal, and to the files that were asked for."""
    from pearl_simulator.reporting.report import show, to_json  # noqa: PLC0415

    if not options.silent:
        output = Console()
        show(report, output if output.is_terminal else Console(width=PLAIN_WIDTH))
    if options.json:
        Path(options.json).write_text(to_json(report, version=version("pearl-operator"), command=command))
        console.print(f"wrote {options.json}", highlight=False)
    if options.out:
        from pearl_simulator.reporting.plots import draw  # noqa: PLC0415 (matplotlib is slow to load)

        for path in draw(report, Path(options.out)):
            console.print(f"wrote {path}", highlight=False)


def _check_writable(options: argparse.Namespace) -> None:
    """Before the work, not after it."""
    if options.json:
        folder = Path(options.json).absolute().parent
        if not folder.is_dir():
            raise InputError(f"--json: the folder {folder} does not exist; make it or give another path")
        if Path(options.json).is_dir():
            raise InputError(f"--json: {options.json} is a folder; give the path of a file")
    write = getattr(options, "write", None)
    if write and not Path(write).absolute().parent.is_dir():
        raise InputError(f"--write: the folder of {write} does not exist; make it or give another path")
    if options.out and Path(options.out).exists() and not Path(options.out).is_dir():
        raise InputError(f"--out: {options.out} is a file; give a folder")


class _Parser(argparse.ArgumentParser):
    """Says in one sentence what is wrong, like every other bad input."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="pearl-sim",
        description="Simulate rollout fleets under PEARL's planner and under other policies, without GPUs.",
    )
    parser.add_argument("--version", action="version", version=f"pearl-sim {version('pearl-operator')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, command in COMMANDS.items():
        _add(commands.add_parser(name, help=command.help, description=command.help), command)
    again = commands.add_parser("replay-snapshot", help="decide again what an operator recorded, and compare")
    again.add_argument("file", help="what GET /debug/snapshot/ROLLOUT of the operator answered")
    docs = commands.add_parser("docs", help="pages with plots from the JSON files of experiments")
    docs.add_argument("results", help="folder with the JSON files")
    docs.add_argument("--out", default="docs/results", help="folder of the pages (default: %(default)s)")
    return parser


def _add(parser: argparse.ArgumentParser, command: Command) -> None:
    add = parser.add_argument
    if command.file:
        add("file", help=command.file)
    if command.workloads:
        add("--workloads", type=_count, help="how many random workloads")
    if command.table:
        add("--table", metavar="MODEL/HARDWARE", help="shipped engine table to start from")
        add("--processor-time", action="store_true", help="fit `cpu_seconds`: a CPU engine on a machine that is busy")
        add("--write", metavar="TABLE", help="write the table here, for `engineTable` of a workload file")
    add("--seeds", type=_count, help="how many seeds")
    add("--seed", type=_natural, help="the first seed; reported results start at 1000, tuning stays below")
    add("--jobs", type=_count, default=os.cpu_count() or 1, help="processes (default: one per core)")
    add("--quick", action="store_true", help="fewer seeds and shorter windows")
    add("--json", metavar="FILE", help="write everything here: summary, tables, plots, runs, parameters")
    add("--out", metavar="DIR", help="write the plots here as PNG and SVG")
    add("--silent", action="store_true", help="no tables and no progress bar")


def _count(value: str) -> int:
    return _whole(value, low=1)


def _natural(value: str) -> int:
    return _whole(value, low=0)


def _whole(value: str, *, low: int) -> int:
    try:
        number = float(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{value!r} is no number; give a whole number from {low}") from error
    if not math.isfinite(number) or number != int(number) or number < low:
        raise argparse.ArgumentTypeError(f"{value} cannot be used; give a whole number from {low}")
    if number > MOST_SEEDS:
        raise argparse.ArgumentTypeError(f"{value} is too many; give at most {MOST_SEEDS}")
    return int(number)


if __name__ == "__main__":
    sys.exit(main())
