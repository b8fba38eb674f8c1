"""Everything the worker reads from its environment; nothing else in this package reads it.

The table in `worker_image/README.md` says who sets which variable.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from pearl_api import names
from pearl_worker.device import visible_gpus

_DEFAULT_LEASE_SECONDS: Final = 10.0
_BORROWED_LEASE_SECONDS: Final = 3.0
_GIB: Final = 1 << 30
_Choice = TypeVar("_Choice", bound=StrEnum)


class Device(StrEnum):
    """What the engine computes on."""

    CPU = "cpu"
    GPU = "gpu"


class OnUpdate(StrEnum):
    """What happens to requests that are inside when new weights arrive."""

    RECOMPUTE = "Recompute"
    FINISH_TURN = "FinishTurn"
    KEEP_KV = "KeepKV"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoanIdentity:
    """Which loan a borrower pod serves."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one worker agent; each field's comment names its variable."""

    model: str
    """`PEARL_MODEL_URI`, resolved to what `vllm serve` takes."""
    model_name: str
    """`PEARL_MODEL_NAME`."""
    device: Device = Device.GPU
    """`PEARL_ENGINE_DEVICE`."""
    max_model_len: int | None = None
    """`PEARL_MAX_MODEL_LEN`."""
    tensor_parallel: int = 1
    """`PEARL_TENSOR_PARALLEL`."""
    engine_args: tuple[str, ...] = ()
    """`PEARL_ENGINE_ARGS`, a JSON list."""
    engine_python: str = "python3"
    """`PEARL_ENGINE_PYTHON`."""
    engine_environment: Path | None = None
    """`PEARL_ENGINE_ENVIRONMENT`; used on a CPU only, where it exists."""
    weights_source: str | None = None
    """`PEARL_WEIGHTS_SOURCE`, `pvc://` resolved."""
    on_update: OnUpdate = OnUpdate.RECOMPUTE
    """`PEARL_ON_UPDATE`."""
    pod_uid: str = ""
    """`PEARL_POD_UID`."""
    pod_ip: str = "127.0.0.1"
    """`PEARL_POD_IP`."""
    tokens_directory: Path = Path("/etc/pearl/tokens")
    """`PEARL_TOKENS_DIR`."""
    state_directory: Path = Path("/var/run/pearl")
    """`PEARL_STATE_DIR`."""
    scratch_directory: Path = Path("/tmp")  # noqa: S108 - the pod's own emptyDir
    """`PEARL_SCRATCH_DIR`: downloaded weights."""
    steps_directory: Path | None = None
    """`PEARL_STEPS_DIR`: where the engine writes down its steps; None = it does not."""
    steps_bytes: int = 8 << 20
    """`PEARL_STEPS_BYTES`: disk for it, per data-parallel rank; 0 = off."""
    drain_seconds: float = 60.0
    """`PEARL_DRAIN_SECONDS`."""
    start_seconds: float = 600.0
    """`PEARL_START_SECONDS`."""
    reclaim_seconds: float = 10.0
    """`PEARL_RECLAIM_SECONDS`: how fast an expired grant is vacated."""
    lease_seconds: float = _DEFAULT_LEASE_SECONDS
    """`PEARL_KV_LEASE_SECONDS`."""
    sleep_level: int = 2
    """`PEARL_SLEEP_LEVEL`."""
    loan: LoanIdentity | None = None
    """`PEARL_LOAN_NAME` and `PEARL_LOAN_NAMESPACE`; None = not a borrower."""
    fake_device: Path | None = None
    """`PEARL_FAKE_DEVICE_DIR`."""
    visible_gpus: tuple[str, ...] | None = None
    """`NVIDIA_VISIBLE_DEVICES`: the GPUs of this worker; None = all that the container shows."""
    memory_allowance_bytes: int = 2 * _GIB
    """`PEARL_MEMORY_ALLOWANCE_BYTES`: what an engine that sleeps may still hold of each GPU (contexts, kernels)."""
    engine_port: int = names.PORT_ENGINE
    """`PEARL_ENGINE_PORT`."""
    agent_port: int = names.PORT_AGENT
    """`PEARL_AGENT_PORT`."""
    nixl_port: int = names.PORT_NIXL
    """`PEARL_NIXL_PORT`."""


def from_env(environment: Mapping[str, str]) -> Settings:
    """The settings that `environment` describes.

    Raises:
        ValueError: a variable is missing or wrong; the message names it and says what to set.
    """
    read = _Reader(environment)
    device = read.choice("PEARL_ENGINE_DEVICE", Device, Device.GPU)
    loan = _loan(read)
    fake = read.text("PEARL_FAKE_DEVICE_DIR")
    if loan and device is Device.CPU and not fake:
        raise ValueError("PEARL_FAKE_DEVICE_DIR is not set: a borrower on a CPU needs a directory that plays the GPU")
    environment_path = Path(read.text("PEARL_ENGINE_ENVIRONMENT") or "/opt/engine")
    scratch = Path(read.text("PEARL_SCRATCH_DIR") or "/tmp")  # noqa: S108 - the pod's own emptyDir
    engine_port = read.whole("PEARL_ENGINE_PORT", names.PORT_ENGINE)
    steps_bytes = read.whole("PEARL_STEPS_BYTES", 8 << 20)
    steps = Path(read.text("PEARL_STEPS_DIR") or scratch / f"steps-{engine_port}")
    return Settings(
        model=resolve_uri(read.required("PEARL_MODEL_URI", "spec.model.uri")),
        model_name=read.required("PEARL_MODEL_NAME", "spec.model.name"),
        device=device,
        max_model_len=read.whole("PEARL_MAX_MODEL_LEN", 0) or None,
        tensor_parallel=read.whole("PEARL_TENSOR_PARALLEL", 1),
        engine_args=read.words("PEARL_ENGINE_ARGS"),
        engine_python=read.text("PEARL_ENGINE_PYTHON") or "python3",
        engine_environment=environment_path if device is Device.CPU and environment_path.is_dir() else None,
        weights_source=resolve_uri(read.text("PEARL_WEIGHTS_SOURCE")) or None,
        on_update=read.choice("PEARL_ON_UPDATE", OnUpdate, OnUpdate.RECOMPUTE),
        pod_uid=read.text("PEARL_POD_UID"),
        pod_ip=read.text("PEARL_POD_IP") or "127.0.0.1",
        tokens_directory=Path(read.text("PEARL_TOKENS_DIR") or "/etc/pearl/tokens"),
        state_directory=Path(read.text("PEARL_STATE_DIR") or "/var/run/pearl"),
        scratch_directory=scratch,
        steps_directory=steps if steps_bytes else None,
        steps_bytes=steps_bytes,
        drain_seconds=read.number("PEARL_DRAIN_SECONDS", 60.0),
        start_seconds=read.number("PEARL_START_SECONDS", 600.0),
        reclaim_seconds=read.number("PEARL_RECLAIM_SECONDS", 10.0),
        lease_seconds=_lease_seconds(read, borrowed=loan is not None),
        sleep_level=read.whole("PEARL_SLEEP_LEVEL", 2),
        loan=loan,
        fake_device=Path(fake) if fake else None,
        visible_gpus=visible_gpus(read.text("NVIDIA_VISIBLE_DEVICES")),
        memory_allowance_bytes=read.whole("PEARL_MEMORY_ALLOWANCE_BYTES", 2 * _GIB if device is Device.GPU else 0),
        engine_port=engine_port,
        agent_port=read.whole("PEARL_AGENT_PORT", names.PORT_AGENT),
        nixl_port=read.whole("PEARL_NIXL_PORT", names.PORT_NIXL),
    )


def resolve_uri(uri: str) -> str:
    """Turn `file://` and `pvc://CLAIM/PATH` into paths of this container; leave everything else alone."""
    if uri.startswith("file://"):
        return uri.removeprefix("file://")
    if uri.startswith("pvc://"):
        return "/pvc/" + uri.removeprefix("pvc://")
    return uri


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Root of what PEARL caches on this machine: `$XDG_CACHE_HOME/pearl`, by default `~/.cache/pearl`."""
    base = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".cache")
    return Path(base) / "pearl"


def _lease_seconds(read: "_Reader", *, borrowed: bool) -> float:
    longest = _BORROWED_LEASE_SECONDS if borrowed else None
    seconds = read.number("PEARL_KV_LEASE_SECONDS", longest or _DEFAULT_LEASE_SECONDS)
    if longest is not None and seconds > longest:
        raise ValueError(
            f"PEARL_KV_LEASE_SECONDS={seconds:g} is too long for a borrowed GPU, whose trainer would wait for it: "
            f"set it to {longest:g} or less"
        )
    return seconds


def _loan(read: "_Reader") -> LoanIdentity | None:
    name = read.text("PEARL_LOAN_NAME")
    if not name:
        return None
    return LoanIdentity(name=name, namespace=read.required("PEARL_LOAN_NAMESPACE", "the GPULoan's namespace"))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Typed look-ups that name the variable and the fix."""

    environment: Mapping[str, str]

    def text(self, name: str) -> str:
        return self.environment.get(name, "").strip()

    def required(self, name: str, what: str) -> str:
        if value := self.text(name):
            return value
        raise ValueError(f"{name} is not set: set it to {what}")

    def number(self, name: str, default: float) -> float:
        value = self.text(name)
        try:
            number = float(value) if value else default
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise ValueError(f"{name}={value!r} is no duration or size: set it to a number of at least 0")
        return number

    def whole(self, name: str, default: int) -> int:
        number = self.number(name, default)
        if number != int(number):
            raise ValueError(f"{name}={self.text(name)!r} is not whole: set it to an integer")
        return int(number)

    def words(self, name: str) -> tuple[str, ...]:
        value = self.text(name) or "[]"
        try:
            words = json.loads(value)
        except ValueError:
            words = None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f'{name}={value!r} is no JSON list of texts: write it like ["--max-num-seqs", "64"]')
        return tuple(words)

    def choice(self, name: str, kind: type[_Choice], default: _Choice) -> _Choice:
        value = self.text(name)
        try:
            return kind(value) if value else default
        except ValueError:
            raise ValueError(f"{name}={value!r} is unknown: use one of {', '.join(kind)}") from None
