"""A backend for vLLM's weight-transfer API that reads safetensors files.

The worker agent has already checked the files against their hashes; this loads them, on every rank, through the
model's own loader. It serves CPU and GPU engines alike, so the agent needs one way to update weights only.
"""

import contextlib
from dataclasses import dataclass
from typing import Any

BACKEND = "safetensors"


def install() -> None:
    """Entry point of `vllm.general_plugins`; vLLM imports the engine class only when the backend is chosen."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory  # noqa: PLC0415 - costly

    with contextlib.suppress(ValueError):  # registered already: vLLM may load plugins twice in a process
        WeightTransferEngineFactory.register_engine(BACKEND, __name__ + "_engine", "FileWeightTransferEngine")


@dataclass
class FileUpdate:
    """One call of `/update_weights`: `paths` are safetensors files, all readable by the engine."""

    paths: list[str]

    def __post_init__(self) -> None:
        """Refuse what the JSON body may carry instead of a list of paths."""
        value: Any = self.paths
        if not isinstance(value, list) or not value or not all(isinstance(path, str) for path in value):
            raise ValueError(f"update_info.paths must be a list of at least one file name, got {value!r}")
