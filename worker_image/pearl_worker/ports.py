"""What the agent needs from the world, as protocols: engine process, engine HTTP, device memory, weights.

Everything above this module is tested with fakes of these and a virtual clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pearl_api.wire.weights import WeightsManifest


class EngineFaultError(Exception):
    """The engine did not answer, or answered that it failed; a restart mends it."""


class CanaryError(EngineFaultError):
    """The engine answered, and the answer is wrong: its weights are not what they should be."""


class WeightsError(Exception):
    """Weights cannot be read or are not what the manifest says; the engine was not touched."""


class NoBaseError(WeightsError):
    """Version 0 is no local files; only a new engine can load it."""


@dataclass(frozen=True, slots=True)
class GateState:
    """What the guard inside the engine tells."""

    open: bool
    in_flight: int
    pinned_seconds: float
    """Longest time for which KV may still be pinned for another worker."""
    pinning: int = 0
    """Requests inside that will pin KV when they are done."""


class EngineProcess(Protocol):
    """One running engine: a process group that ends as a whole."""

    @property
    def pid(self) -> int:
        """Process id of the group's leader."""

    @property
    def client(self) -> "EngineClient":
        """Talks to this engine with the admin token it was started with."""

    async def wait(self) -> int:
        """Until the leader ended; its exit code."""

    def terminate(self) -> None:
        """Ask the group to end (SIGTERM)."""

    async def kill(self) -> None:
        """SIGKILL the group; returns when every process of it is gone."""


class EngineLauncher(Protocol):
    """Starts engines."""

    async def launch(self) -> EngineProcess:
        """A new engine with its gate closed; it is not ready yet."""


class EngineClient(Protocol):
    """The engine's HTTP interface. Every call raises EngineFaultError on failure or timeout."""

    async def healthy(self) -> bool:
        """Whether `/health` answers 200; False also while nothing listens."""

    async def canary(self) -> str:
        """Generate a few tokens and check them; the weight version that they carry. Raises CanaryError too."""

    async def gate(self, *, open_: bool | None = None, version: int | None = None) -> GateState:
        """Read the gate, or move it and read it; `version` is what an open gate serves from now on."""

    async def abort_all(self) -> int:
        """Abort every request inside; how many there were. Partial tokens go back to the callers."""

    async def reset_prefix_cache(self) -> bool:
        """Forget cached KV; False while any block is in use or pinned."""

    async def pause(self, mode: str) -> None:
        """Stop scheduling: `abort`, or `keep` with all KV. Blocks while KV is pinned."""

    async def resume(self) -> None:
        """Schedule again."""

    async def prepare_weight_updates(self) -> None:
        """Once after every start."""

    async def start_weight_update(self) -> None:
        """From here the model cannot run until `finish_weight_update` succeeded."""

    async def load_weight_files(self, paths: Sequence[Path]) -> None:
        """Load safetensors files."""

    async def finish_weight_update(self, version: int) -> None:
        """Make the model whole again and label it."""

    async def label_weights(self, version: int) -> None:
        """Name the weights that are loaded."""

    async def sleep(self, level: int) -> None:
        """Free device memory; aborts what is inside."""

    async def wake(self, tags: str | None = None) -> None:
        """Take memory back: all of it, or only `weights` or `kv_cache`."""


class MemoryDevice(Protocol):
    """The memory of the GPUs of this worker."""

    @property
    def problem(self) -> str:
        """Why the last reading failed; for people."""

    def used_bytes(self) -> tuple[int, ...] | None:
        """Bytes in use by anybody on each GPU, always in the same order; None = cannot be read."""


class WeightSource(Protocol):
    """Where manifests and weights come from."""

    async def manifest(self) -> WeightsManifest | None:
        """The newest manifest; None = none was published. Raises WeightsError when that cannot be told."""

    async def fetch(self, manifest: WeightsManifest) -> Sequence[Path]:
        """Its safetensors files, on a local path and checked. Raises WeightsError."""

    async def base(self) -> Sequence[Path]:
        """The files of version 0. Raises NoBaseError when they are not local files."""
