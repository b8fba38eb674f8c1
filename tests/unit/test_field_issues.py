"""docs/field-issues.md lists what hurt users elsewhere: every row has a test that exists, or says why it has none."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
ROWS = 65
"""Of the list that the page is about; a row is corrected or added, never dropped."""
LINK = re.compile(r"\[(\w+)\]\(([^)]+\.py)\)")


def rows() -> list[list[str]]:
    lines = (DOCS / "field-issues.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0] != "source"]


@cache
def functions_in(path: Path) -> frozenset[str]:
    found = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in found if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def problem(row: list[str]) -> str | None:
    """What is wrong with one row."""
    if len(row) != 4 or not all(row):
        return "it has not four cells"
    proof = row[3]
    links = LINK.findall(proof)
    if not links and not proof.startswith(("cannot happen: ", "**open**: ")):
        return "it has neither a test nor a reason why none is needed"
    for name, path in links:
        if not (DOCS / path).is_file():
            return f"{path} does not exist"
        if f"test_{name}" not in functions_in(DOCS / path):
            return f"{path} has no test_{name}"
    return None


def test_every_row_names_tests_that_exist_or_says_why_it_needs_none() -> None:
    assert {row[0]: told for row in rows() if (told := problem(row)) is not None} == {}


def test_no_row_is_lost() -> None:
    sources = [row[0] for row in rows()]
    assert len(sources) == len(set(sources)) == ROWS
