"""The SDK on the oldest Python that its pyproject.toml names, with the dependencies that installers choose there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pearl_double import PearlDouble

from pearl_worker.engine_env import find_uv

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
OLDEST = "3.9"


def works(interpreter: str | Path) -> bool:
    """A shim of pyenv may stand for a version that is not switched on."""
    return subprocess.run([interpreter, "-c", ""], check=False, capture_output=True).returncode == 0


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Path]:
    candidates = [shutil.which(f"python{OLDEST}"), *sorted(Path.home().glob(f".pyenv/versions/{OLDEST}.*/bin/python"))]
    interpreter = next((one for one in candidates if one is not None and works(one)), None)
    if interpreter is None:
        pytest.skip(f"there is no python{OLDEST} here; its grammar is checked in tests/unit/trainer")
    sources = shutil.copytree(ROOT / "trainer_adapter", tmp_path / "sources")
    subprocess.run([find_uv(), "venv", "--quiet", "--python", str(interpreter), str(tmp_path / "env")], check=True)
    made = tmp_path / "env" / "bin" / "python"
    subprocess.run([find_uv(), "pip", "install", "--quiet", "--python", str(made), str(sources)], check=True)
    yield made
    shutil.rmtree(tmp_path / "env")


@pytest.mark.integration
def test_a_loan_on_the_oldest_python(python: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("projected")
    script = Path(__file__).with_name("sdk_on_old_python.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with PearlDouble(tmp_path) as pearl:
        done = subprocess.run(
            [str(python), "-W", "error", str(script), pearl.url, str(tmp_path / "token")],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["lent"], found["python"]) == ([True, True], [3, 9])
    assert found["modules"] > 20
    loan = ["register mine", "lend lent", "reclaim mine", "lend lent", "reclaim mine", "deregister mine"]
    assert pearl.events == 2 * loan
