"""Makes NIXL's progress thread sleep between two looks.

NIXL's Python layer fixes the thread's pause at 0 microseconds, so an idle engine burns a whole core. The pause is
set on the configuration at the only place it passes through: the constructor of the native agent.
"""

import functools
import importlib
import importlib.util
import os
from typing import Any

_PAUSE_VARIABLE = "PEARL_NIXL_PAUSE_MICROSECONDS"


def install() -> None:
    """Entry point of `vllm.general_plugins`; called once or more in every process of the engine."""
    pause = int(os.environ.get(_PAUSE_VARIABLE, "1000"))
    if pause <= 0 or importlib.util.find_spec("nixl") is None:
        return
    bindings = importlib.import_module("nixl._bindings")
    native_agent = bindings.nixlAgent
    if hasattr(native_agent, "__wrapped__"):  # already ours
        return

    @functools.wraps(native_agent, updated=())
    def patient_agent(name: str, config: Any) -> Any:
        config.pthrDelay = pause
        return native_agent(name, config)

    bindings.nixlAgent = patient_agent
