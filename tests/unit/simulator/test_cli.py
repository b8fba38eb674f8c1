from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pearl_simulator.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tabl2"], "invalid choice: 'tabl2'"),
        (["table2", "--seeds", "nan"], "nan cannot be used; give a whole number from 1"),
        (["table2", "--seeds", "-1"], "-1 cannot be used; give a whole number from 1"),
        (["table2", "--seeds", "many"], "'many' is no number; give a whole number from 1"),
        (["predictor", "--workloads", "1e9"], "is too many; give at most 10000"),
        (["table2", "--json", "{tmp}/missing/x.json"], "does not exist; make it or give another path"),
        (["table2", "--json", "{tmp}"], "is a folder; give the path of a file"),
        (["table2", "--out", "{tmp}/file"], "is a file; give a folder"),
        (["calibrate", "{tmp}/none.jsonl", "--table", "x/y"], "no engine table 'x/y'"),
        (["calibrate", "{tmp}/none.jsonl"], "none.jsonl"),
        (["whatif", "{tmp}/none.yaml"], "check the path"),
        (["whatif", "{tmp}/file"], "model"),
        (["docs", "{tmp}/nothing"], "no JSON file of an experiment"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("fleet: {}\n")
    code = main([argument.replace("{tmp}", str(tmp_path)) for argument in arguments])
    said = capsys.readouterr().err.strip()
    assert code == 2
    assert said.startswith("pearl-sim: ")
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_table2_prints_a_table_and_writes_its_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table2.json"
    assert main(["table2", "--json", str(path)]) == 0
    assert "4P12D" in capsys.readouterr().out
    body = json.loads(path.read_text())
    assert body["summary"] == {"matches": 6}
    assert body["command"] == f"pearl-sim table2 --json {path}"
    assert set(body) == {
        "format",
        "version",
        "command",
        "experiment",
        "title",
        "about",
        "summary",
        "tables",
        "plots",
        "findings",
        "seeds",
        "parameters",
        "runs",
    }


def test_help_loads_neither_plots_nor_numbers() -> None:
    """`--help` answers at once: matplotlib and the experiments are loaded where they are used."""
    code = "import sys, pearl_simulator.cli as c; c._parser(); print({'matplotlib', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
