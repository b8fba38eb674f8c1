"""Workers with real vLLM on this machine's CPU: each an agent process with its engine, as in a pod."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from ports import free_port

from pearl_api.tokens import derive
from pearl_api.wire.worker import WorkerState
from pearl_trainer import weights as trainer
from pearl_worker.engine_env import ensure_engine_environment
from pearl_worker.models import ensure_model
from pearl_worker.settings import cache_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).parents[2]
KEY = "k" * 64
NAMESPACE, LOAN = "train", "job-0"
LONG_SECONDS = 240.0
"""Longest wait for an engine; importing vLLM alone takes 15 s of a quiet core and minutes of a busy one."""

REFERENCE = """
import json, sys, torch
from transformers import AutoModelForCausalLM
jobs = json.load(sys.stdin)
for job in jobs:
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    prompt = torch.tensor([job["prompt"]])
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=job["tokens"], do_sample=False)
    job["answer"] = out[0, len(job["prompt"]):].tolist()
json.dump([job["answer"] for job in jobs], sys.stdout)
"""


@dataclass
class Worker:
    """One agent process and its engine."""

    name: str
    directory: Path
    environment: dict[str, str]
    agent_port: int = field(default_factory=free_port)
    engine_port: int = field(default_factory=free_port)
    nixl_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        variables = {
            "PEARL_AGENT_PORT": str(self.agent_port),
            "PEARL_ENGINE_PORT": str(self.engine_port),
            "PEARL_NIXL_PORT": str(self.nixl_port),
            "PEARL_STATE_DIR": str(self.directory / "state"),
        }
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pearl_worker.main"],
                env={**os.environ, **self.environment, **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.wait(lambda: self.call("GET", "/healthz").status_code == httpx.codes.OK, "its agent to answer")

    def secret(self, purpose: str) -> str:
        """The token that callers of this kind have."""
        return derive(KEY, purpose)

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def call(self, method: str, path: str, body: Any = None, *, purpose: str = "agent") -> httpx.Response:
        """The agent's API."""
        token = derive(KEY, purpose)
        url = f"http://127.0.0.1:{self.agent_port}{path}"
        return httpx.request(method, url, json=body, headers={"Authorization": f"Bearer {token}"}, timeout=30)

    def state(self) -> WorkerState:
        return WorkerState.model_validate(self.call("GET", "/v1/state").json())

    def engine(self, path: str, body: Any = None, *, token: str | None = None) -> httpx.Response:
        """The engine, with the gateway's token."""
        bearer = derive(KEY, "engine") if token is None else token
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        url = f"http://127.0.0.1:{self.engine_port}{path}"
        return httpx.request("POST" if body is not None else "GET", url, json=body, headers=headers, timeout=120)

    def generate(self, prompt: Sequence[int], tokens: int, **extra: Any) -> httpx.Response:
        sampling = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body = {"model": "tiny", "token_ids": list(prompt), "sampling_params": sampling, **extra}
        return self.engine("/inference/v1/generate", body)

    def tokens(self, prompt: Sequence[int], tokens: int, **extra: Any) -> list[int]:
        answer = self.generate(prompt, tokens, **extra)
        assert answer.status_code == httpx.codes.OK, answer.text
        found: list[int] = answer.json()["choices"][0]["token_ids"]
        return found

    def metric(self, name: str) -> float:
        """Sum of the samples whose line starts with `name`."""
        lines = self.engine("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = LONG_SECONDS) -> None:
        """Ask until it holds; the other side is a real process and sends no events."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process is not None
            assert self.process.poll() is None, f"{self.name} ended:\n{self.log()}"
            try:
                if condition():
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        pytest.fail(f"{self.name}: waited {seconds:.0f} s for {what}; state {self.state()}\n{self.log()}")

    def wait_for_phase(self, phase: str, seconds: float = LONG_SECONDS) -> WorkerState:
        self.wait(lambda: self.state().phase == phase, f"phase {phase}", seconds)
        return self.state()

    def log(self) -> str:
        return "\n".join((self.directory / "log").read_text(errors="replace").splitlines()[-40:])


@pytest.fixture(scope="session")
def engine_environment() -> Path:
    return ensure_engine_environment(ROOT, cache_directory(os.environ))


@pytest.fixture(scope="session")
def models(engine_environment: Path) -> dict[str, Path]:  # noqa: ARG001 - made with it
    return {name: ensure_model(name, ROOT, cache_directory(os.environ)) for name in ("tiny", "tiny-b")}


@pytest.fixture(scope="session")
def greedy(engine_environment: Path) -> Callable[[Path, Sequence[int], int], list[int]]:
    """What Hugging Face's own implementation answers: an oracle that shares no code with the engine."""

    def answer(model: Path, prompt: Sequence[int], tokens: int) -> list[int]:
        job = json.dumps([{"model": str(model), "prompt": list(prompt), "tokens": tokens}])
        python = engine_environment / "bin" / "python"
        done = subprocess.run([python, "-c", REFERENCE], input=job, capture_output=True, text=True, check=True)
        found: list[int] = json.loads(done.stdout)[0]
        return found

    return answer


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where the trainer publishes for each worker: one's weights cost the other no time."""
    return {name: tmp_path_factory.mktemp(f"weights-{name}") for name in ("reserved", "borrowed")}


@pytest.fixture(scope="session")
def publish(
    weights: dict[str, Path], models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Publishes a model's weights; `damage` is done to the file *before* it is hashed. The published file."""

    def publish_version(
        version: int, model: str, *, to: str = "reserved", damage: Callable[[Path], None] | None = None
    ) -> Path:
        made = tmp_path_factory.mktemp("made")
        shutil.copy(models[model] / "model.safetensors", made)
        if damage is not None:
            damage(made / "model.safetensors")
        return trainer.publish(str(weights[to]), version, made).directory / "model.safetensors"

    return publish_version


@pytest.fixture(scope="session")
def made(
    engine_environment: Path,
    models: dict[str, Path],
    weights: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Worker]:
    """A worker that loads the weights published for `source`, with more variables; not started."""
    root = tmp_path_factory.mktemp("workers")
    secrets = root / "tokens"
    secrets.mkdir()
    for purpose in ("agent", "engine", "loan"):
        (secrets / purpose).write_text(derive(KEY, purpose))
    common = {
        "PEARL_MODEL_URI": str(models["tiny"]),
        "PEARL_MODEL_NAME": "tiny",
        "PEARL_MAX_MODEL_LEN": "2048",
        "PEARL_ENGINE_DEVICE": "cpu",
        "PEARL_ENGINE_ENVIRONMENT": str(engine_environment),
        "PEARL_ENGINE_PYTHON": str(engine_environment / "bin" / "python"),
        "PEARL_TOKENS_DIR": str(secrets),
        "PEARL_SCRATCH_DIR": str(root),
    }

    def make(name: str, source: str, **more: str) -> Worker:
        (root / name).mkdir()
        return Worker(name, root / name, {**common, "PEARL_WEIGHTS_SOURCE": f"file://{weights[source]}", **more})

    return make


@pytest.fixture(scope="session")
def workers(made: Callable[..., Worker], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, Worker]]:
    """A reserved and a borrowed worker, both ready."""
    device = str(tmp_path_factory.mktemp("device"))
    loan = {"PEARL_LOAN_NAME": LOAN, "PEARL_LOAN_NAMESPACE": NAMESPACE, "PEARL_FAKE_DEVICE_DIR": device}
    reserved, borrowed = made("reserved", "reserved"), made("borrowed", "borrowed", **loan)
    try:
        reserved.start()
        borrowed.start()
        granted = borrowed.call("POST", "/v1/loan/grant", {"epoch": 1, "ttlSeconds": 3600})
        assert granted.status_code == httpx.codes.OK, granted.text
        reserved.wait_for_phase("Ready")
        borrowed.wait_for_phase("Ready")
        yield reserved, borrowed
    finally:
        codes = [worker.stop() for worker in (reserved, borrowed) if worker.process]
    assert codes == [0, 0]
