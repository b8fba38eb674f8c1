"""An HTTP server that answers like `vllm serve` 0.32, with the timing of the engine model and tokens of its own.

For tests, benchmarks and scale, never for production: no image contains it. docs/emulator.md says what it does, where
it differs from vLLM and how it is checked against it.
"""

from pearl_simulator.emulator.clock import LoopClock
from pearl_simulator.emulator.config import EngineConfig
from pearl_simulator.emulator.peers import LocalPeers
from pearl_simulator.emulator.perturb import Perturbation
from pearl_simulator.emulator.serving import EmulatedEngine, emulated_fleet

__all__ = ["EmulatedEngine", "EngineConfig", "LocalPeers", "LoopClock", "Perturbation", "emulated_fleet"]
