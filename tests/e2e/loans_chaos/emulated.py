"""An engine folder as pods mount it, with the emulated engine in place of vLLM."""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(sysconfig.get_path("purelib"))
OURS = ("planner/pearl_planner", "simulator/pearl_simulator", "worker_image/engine_plugins/pearl_engine_plugins")
OTHERS = (
    *("uvicorn", "h11", "click", "prometheus_client"),  # of the engine
    *("httpx2", "httpcore2", "anyio", "certifi", "idna", "sniffio", "truststore", "typing_extensions"),  # of the SDK
)


def engine_folder(target: Path) -> Path:
    """Fills `target` anew; it is laid out as `pearl_worker.engine_env` lays out the real one."""
    shutil.rmtree(target, ignore_errors=True)
    packages = target / "lib" / "python3.11" / "site-packages"
    serve = packages / "vllm" / "entrypoints" / "cli"
    serve.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("engine_main.py"), serve / "main.py")
    for folder in OURS:
        _copy(ROOT / folder, packages)
    for name in OTHERS:
        for told in HERE.glob(f"{name}-*.dist-info"):  # some look for their own version
            _copy(told, packages)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            origin = Path(spec.origin)
            _copy(origin.parent if origin.name == "__init__.py" else origin, packages)
    for each in (target, *target.rglob("*")):
        each.chmod(0o755)
    return target


def _copy(source: Path, packages: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, packages / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, packages)
