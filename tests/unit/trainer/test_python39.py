"""The SDK's sources keep to the grammar of Python 3.9; its library is what tests/integrations runs it on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pearl_trainer

SOURCES = sorted(Path(pearl_trainer.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_sources_are_python_3_9(source: Path) -> None:
    tree = ast.parse(source.read_text(), feature_version=(3, 9))
    lazy = any(isinstance(one, ast.ImportFrom) and one.module == "__future__" for one in tree.body)
    assert lazy or not any(isinstance(one, ast.AnnAssign | ast.FunctionDef) for one in ast.walk(tree))
