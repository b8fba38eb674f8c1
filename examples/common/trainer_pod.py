"""The trainer pod on the local cluster: runs the code of `examples/rl_loop/trainer` and follows what it prints."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl_dev.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pearl_dev.product import Installation

CODE = Path(__file__).resolve().parents[1] / "rl_loop" / "trainer"
NAMESPACE, POD = "trainers", "trainer-0"
LOAN_PATH = f"/apis/pearl.dev/v1alpha1/namespaces/{NAMESPACE}/gpuloans/{POD}"


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of games, as the trainer printed it when it was done with it."""

    at: float
    """Seconds since the start of whoever follows."""
    version: int
    """Of the weights that should have generated it."""
    reward: float
    games: int
    """That have a reward."""
    broken_games: int
    """Whose environment broke."""
    lost_games: int
    """Neither."""
    turns: int
    borrowed_turns: int
    """Parts of turns that a borrowed worker prefilled or generated."""
    other_versions: int
    """Generated tokens that came from other weights."""
    sample: str
    """One game as text."""


@dataclass(frozen=True, slots=True)
class Step(Batch):
    """A batch and the update that followed it."""

    rollout_seconds: float
    reclaim_seconds: float
    train_seconds: float
    lend_seconds: float
    was_lent: bool
    deadline_seconds: float | None
    """None = PEARL was never reached."""
    logprob_gap: float
    """Largest difference between the behaviour logprobs and the trainer's own."""

    @property
    def training(self) -> tuple[float, float]:
        """When the GPU trained: (start, end)."""
        end = self.at - self.lend_seconds
        return end - self.train_seconds, end


class TrainerPod:
    """A pod of `examples/trainer.yaml` that trains `rollout`."""

    def __init__(self, installation: Installation, rollout: str) -> None:
        """Nothing runs before `start`."""
        self._installation = installation
        self._rollout = rollout

    def start(self, arguments: Sequence[str]) -> None:
        """Replace the pod; `arguments` are those of `trainer/train.py`."""
        command = ["python3", "-m", "trainer.train", "--rollout", self._rollout, "--model", "/models/tiny", *arguments]
        variables = {
            "PEARL_WEIGHTS_SOURCE": f"file:///weights/{self._rollout}",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        manifests = self._installation.trainer([CODE], command, variables, models=True)
        self._kubectl("delete", "pod", POD, "--ignore-not-found", "--grace-period=1")
        self._installation.cluster.apply(*manifests)
        self._kubectl("wait", "--for=condition=Ready", f"pod/{POD}", "--timeout=120s")

    def facts(self) -> Iterator[dict[str, Any]]:
        """What it prints, as it comes, until it ends.

        Raises:
            RuntimeError: it failed; the message ends with its log.
        """
        cluster = self._installation.cluster
        argv = [str(cluster.binaries["kubectl"]), "-n", NAMESPACE, "logs", "-f", POD]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=dict(cluster.environment)) as process:
            assert process.stdout is not None  # noqa: S101 - given by PIPE
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
        phase = wait_for(self._end, seconds=20, what="the trainer pod has ended")
        if phase != "Succeeded":
            raise RuntimeError(f"the trainer failed:\n{self._kubectl('logs', POD, '--tail=30')}")

    def _end(self) -> str | None:
        phase: str = self._installation.cluster.get("-n", NAMESPACE, "pod", POD)["status"]["phase"]
        return phase if phase in ("Succeeded", "Failed") else None

    def _kubectl(self, *words: str) -> str:
        return self._installation.cluster.kubectl("-n", NAMESPACE, *words)


def read(fact: dict[str, Any], at: float) -> Batch | Step:
    """A printed fact as an object; `at` is when it came."""
    kinds: dict[str, type[Batch | Step]] = {"frozen": Batch, "step": Step}
    values = {name: value for name, value in fact.items() if name != "event"}
    return kinds[fact["event"]](at=at, **values)
