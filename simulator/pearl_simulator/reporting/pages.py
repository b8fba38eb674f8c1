"""The result pages, made from the JSON files of experiments: nothing on them is typed by hand but the `why` files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_simulator.errors import InputError
from pearl_simulator.reporting.report import load_json, markdown, text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pearl_simulator.reporting.report import Report

WHY = "why"
"""Folder beside the pages with `EXPERIMENT.md`: a person's explanation, put into the page as it is."""

PAGES = {"scale": "simulator-speed"}
"""Experiments whose pages are not called like them: `scale.md` is the operator's (`make bench-scale`)."""


def write(results: Path, out: Path) -> list[Path]:
    """A page with its plots for every JSON file in `results`, and an index; the paths written.

    Raises:
        InputError: the folder has no result.
    """
    files = sorted(results.glob("*.json")) if results.is_dir() else []
    if not files:
        raise InputError(f"{results}: no JSON file of an experiment; write one with --json")
    from pearl_simulator.reporting.plots import draw  # noqa: PLC0415 (matplotlib is slow to load)

    out.mkdir(parents=True, exist_ok=True)
    written = []
    for file in files:
        report, version, command = load_json(file)
        written += draw(report, out)
        page = out / f"{PAGES.get(report.experiment, report.experiment)}.md"
        page.write_text(markdown_page(report, version, command, explanation(out, report.experiment)))
        written.append(page)
    readme = out / "README.md"
    readme.write_text(_index(sorted(page for page in out.glob("*.md") if page != readme)))
    return [*written, readme]


def _index(pages: Sequence[Path]) -> str:
    """All pages of the folder, other programs' as well, by their first line."""
    lines = [f"- [{page.read_text().splitlines()[0].removeprefix('# ')}]({page.name})" for page in pages]
    return "# Results\n\nEach page says how to repeat it.\n\n" + "\n".join(lines) + "\n"


def explanation(out: Path, experiment: str) -> str:
    """What a person wrote about an experiment; empty without."""
    file = out / WHY / f"{experiment}.md"
    return file.read_text().strip() if file.exists() else ""


def markdown_page(report: Report, version: str, command: str, why: str) -> str:
    """The page of one experiment, its plots beside it."""
    parts = [f"# {report.title}", report.about]
    parts += [f"![{plot.title}]({report.experiment}-{plot.name}.svg)" for plot in report.plots]
    if report.findings:
        parts += ["## What to know", "\n".join(f"- {finding}" for finding in report.findings)]
    if why:
        parts += [why]
    parts += ["## Numbers", *(markdown(table) for table in report.tables)]
    parts += ["## Summary", _summary(report), "## How to repeat it", _repeat(report, version, command)]
    return "\n\n".join(parts) + "\n"


def _summary(report: Report) -> str:
    rows = [f"| `{key}` | {text(value)} |" for key, value in report.summary.items()]
    return "\n".join(["| key | value |", "|---|--:|", *rows])


def _repeat(report: Report, version: str, command: str) -> str:
    seeds = report.seeds
    span = "" if not seeds else f"Seeds {seeds[0]} to {seeds[-1]} ({len(seeds)}). "
    return f"```\n{command}\n```\n\n{span}Version {version}. Results depend on the seeds and parameters alone."
