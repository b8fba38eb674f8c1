"""Pages of the checks that do not rest on this project's own simulator: real vLLM, and an independent replay.

    python -m pearl_simulator.outside.checks engine-model cliff --out docs/results

Reads `data/` in that folder, writes each page with its plots, and the report as JSON into `data/`.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from pearl_simulator.outside.cliff_page import cliff_report
from pearl_simulator.outside.engine_page import engine_report
from pearl_simulator.reporting.pages import explanation, markdown_page
from pearl_simulator.reporting.plots import draw
from pearl_simulator.reporting.report import to_json

REPORTS = {"engine-model": engine_report, "cliff": cliff_report}


def main() -> int:
    """Write the pages asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", default=list(REPORTS), metavar="PAGE", help=", ".join(REPORTS))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    if unknown := set(options.names) - set(REPORTS):
        parser.error(f"no page {', '.join(sorted(unknown))}: choose from {', '.join(REPORTS)}")
    for name in options.names:
        report = REPORTS[name](options.out / "data")
        command = f"python -m pearl_simulator.outside.checks {name}"
        draw(report, options.out)
        text = markdown_page(report, version("pearl-operator"), command, explanation(options.out, name))
        (options.out / f"{name}.md").write_text(text)
        (options.out / "data" / f"{name}.json").write_text(
            to_json(report, version=version("pearl-operator"), command=command)
        )
        sys.stdout.write(f"{options.out / name}.md\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
