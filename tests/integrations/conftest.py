"""The training frameworks' environment: a layer of packages on top of the engine's, made once and cached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pearl_worker.cache import digest, ensure_directory, say
from pearl_worker.engine_env import ensure_engine_environment, find_uv
from pearl_worker.models import ensure_model
from pearl_worker.settings import cache_directory

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SOURCES = (ROOT / "trainer_adapter", ROOT / "worker_image", ROOT / "tests" / "support")
"""What the scripts import of this project; none of it needs more than the standard library and httpx2."""


@dataclass(frozen=True)
class Frameworks:
    """A Python that has TRL, verl and the router of SGLang."""

    python: Path
    packages: Path

    def variables(self) -> dict[str, str]:
        path = os.pathsep.join(map(str, (*SOURCES, self.packages)))
        quiet = {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        return {**os.environ, **quiet, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}

    def run(self, script: str, *arguments: str) -> Any:
        """What a script beside this file prints on its last line, as JSON."""
        return self._result([str(HERE / script), *arguments])

    def run_ranks(self, ranks: int, script: str, *arguments: str) -> Any:
        """As `run`, under torchrun; one rank prints."""
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        return self._result([*launch, str(HERE / script), *arguments])

    def _result(self, command: list[str]) -> Any:
        everything = [str(self.python), *command]
        done = subprocess.run(everything, env=self.variables(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith('{"')))


@pytest.fixture(scope="session")
def frameworks() -> Frameworks:
    cache, requirements = cache_directory(os.environ), ROOT / "requirements" / "integrations.txt"
    engine = ensure_engine_environment(ROOT, cache)
    key = digest([b"1", sys.version.encode(), requirements.read_bytes()])
    python = engine / "bin" / "python"

    def fill(draft: Path) -> None:
        say("integrations: installing TRL, verl and their packages (about 0.6 GB)")
        # Named like this because some packages pickle modules by value that lie elsewhere.
        where = ["--python", str(python), "--target", str(draft / "site-packages")]
        checked = ["--no-deps", "--require-hashes", "--compile-bytecode", "--requirement", str(requirements)]
        subprocess.run([find_uv(), "pip", "install", "--quiet", *where, *checked], check=True)

    return Frameworks(python, ensure_directory(cache / "integrations" / key, fill) / "site-packages")


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    return ensure_model("tiny", ROOT, cache_directory(os.environ))
