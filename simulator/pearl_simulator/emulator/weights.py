"""The weights of an emulated engine: a label, and the states of vLLM's weight-transfer API around it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl_simulator.emulator.errors import EngineFaultError

if TYPE_CHECKING:
    from pearl_simulator.emulator.perturb import Perturbation


class Weights:
    """`version` is all there is to them: equal labels generate equal tokens. Files are only looked for."""

    def __init__(self, perturbation: Perturbation, *, configured: bool) -> None:
        self.version = "default"
        self.torn = False
        """A generation now ends the engine."""
        self._updating = False
        self._perturbation = perturbation
        self._configured = configured

    def init(self) -> None:
        """Nothing to connect to.

        Raises:
            EngineFaultError: the engine was started without weight transfer; so in all of these.
        """
        if not self._configured:
            raise EngineFaultError(
                "Weight transfer not configured. Please set weight_transfer_config to enable weight transfer."
            )

    def start(self) -> None:
        """Take the layers apart."""
        self.init()
        if self._updating:
            raise EngineFaultError(
                "start_weight_update called while a weight update is already active. Call finish_weight_update first."
            )
        self._updating = self.torn = True

    def load(self, info: dict[str, Any]) -> None:
        """Load files; a failure ends the update and leaves the layers torn, until another whole update."""
        self.init()
        if not self._updating:
            raise EngineFaultError("start_weight_update must be called before update_weights.")
        fault = self._fault(info.get("paths"))
        if fault is not None:
            self._updating = False
            raise EngineFaultError(fault)

    def _fault(self, paths: Any) -> str | None:
        if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
            return f"Invalid update_info: paths must be a list of at least one file name, got {paths!r}"
        missing = next((path for path in paths if not Path(path).is_file()), None)
        if missing is None and self._perturbation.fail_weight_load:
            self._perturbation.fail_weight_load = False
            missing = paths[0]
        return None if missing is None else f"No such file or directory: {missing}"

    def finish(self, version: str | None) -> None:
        """Put the layers together; without a version the label stays."""
        self.init()
        if not self._updating:
            raise EngineFaultError("finish_weight_update called without a matching start_weight_update.")
        self._updating = self.torn = False
        self.version = version or self.version
