"""slime and miles are on no package index: their loop is written down here from `train_async.py` at commit 03f3392
(https://github.com/THUDM/slime), with the methods of `RayTrainGroup` that it calls. The router in front of the
gateway is SGLang's own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pearl_double import PearlDouble

from pearl_trainer import ConfigurationError, PearlClient
from pearl_trainer.integrations.slime import LentTrainGroup, post_write
from pearl_trainer.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Frameworks

STEPS = 4


class TrainGroup:
    """`slime.ray.actor_group.RayTrainGroup` as far as the loop sees it."""

    def __init__(self, pearl: PearlDouble, args: SimpleNamespace) -> None:
        self.args = args
        self._pearl = pearl

    def async_train(self, rollout_id: int, _data: object) -> list[int]:
        self._pearl.note(f"train {rollout_id}")
        return [rollout_id]

    def update_weights(self) -> None:
        self._pearl.note("push")

    def save_model(self, rollout_id: int) -> None:
        self._pearl.note(f"checkpoint {rollout_id}")

    def offload(self) -> None:
        self._pearl.note("offload")

    def onload(self) -> None:
        self._pearl.note("onload")


def train_async(pearl: PearlDouble, args: SimpleNamespace, actor_model: Any) -> None:
    """`train()` of slime's train_async.py."""
    actor_model.update_weights()
    for rollout_id in range(STEPS):
        pearl.note(f"generate {rollout_id}")
        actor_model.async_train(rollout_id, None)
        if (rollout_id + 1) % args.save_interval == 0:
            actor_model.save_model(rollout_id)
        if (rollout_id + 1) % args.update_weights_interval == 0:
            actor_model.update_weights()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[tuple[PearlDouble, PearlClient]]:
    (tmp_path / "token").write_text("projected")
    (tmp_path / "published").mkdir()
    with PearlDouble(tmp_path / "published") as pearl:
        made = PearlClient(Settings(operator_url=pearl.url, token_file=str(tmp_path / "token")))
        yield pearl, made
        made.close()


def test_its_loop_lends_between_updates_and_publishes_instead_of_pushing(
    client: tuple[PearlDouble, PearlClient], tmp_path: Path
) -> None:
    pearl, pearl_client = client
    args = SimpleNamespace(offload_train=True, update_weights_interval=2, save_interval=4)

    def save(version: int) -> Path:
        pearl.note(f"save {version}")
        (tmp_path / "model.safetensors").write_text(str(version))
        return tmp_path / "model.safetensors"

    with pearl_client.register_group(rollout="math", group="job-7", members=2, lend=False) as loan:
        train_async(pearl, args, LentTrainGroup(TrainGroup(pearl, args), loan, save=save))
    update = ["offload mine", "lend lent"]
    assert pearl.events == [
        "register mine",
        *("save 1 mine", *update),
        *("generate 0 lent", "reclaim mine", "onload mine", "train 0 mine"),
        *("generate 1 mine", "train 1 mine", "save 2 mine", *update),
        *("generate 2 lent", "reclaim mine", "onload mine", "train 2 mine"),
        *("generate 3 mine", "train 3 mine", "checkpoint 3 mine", "save 3 mine", *update),
        *("reclaim mine", "deregister mine"),
    ]


def test_without_pearl_its_loop_is_as_before(tmp_path: Path) -> None:
    pearl = PearlDouble(tmp_path)
    args = SimpleNamespace(offload_train=True, update_weights_interval=2, save_interval=4)
    with (
        PearlClient(Settings()) as absent,
        absent.register_group(rollout="math", group="job-7", members=2, lend=False) as loan,
    ):
        train_async(pearl, args, LentTrainGroup(TrainGroup(pearl, args), loan, save=lambda _: None))
    plain = PearlDouble(tmp_path)
    train_async(plain, args, TrainGroup(plain, args))
    assert pearl.events == plain.events


def test_the_hook_publishes_what_slime_wrote(client: tuple[PearlDouble, PearlClient], tmp_path: Path) -> None:
    pearl, _ = client
    publishing = PearlClient(Settings(weights_source=str(pearl.weights)))
    hook = post_write(publishing)
    folder = tmp_path / "weight_v000003"
    folder.mkdir()
    with pytest.raises(ConfigurationError, match=r"holds no \*.safetensors"):
        hook(None, str(folder), [])
    (folder / "model.safetensors").write_text("3")
    hook(None, str(folder), [])
    assert json.loads((pearl.weights / "manifest.json").read_text())["version"] == 3
    with pytest.raises(ConfigurationError, match="version number"):
        hook(None, str(tmp_path / "latest"), [])
    publishing.close()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[str]:
    """A gateway process before an emulated engine process."""
    engine_port, port = free_port(), free_port()
    workers = tmp_path / "workers.json"
    workers.write_text(json.dumps([{"url": f"http://127.0.0.1:{engine_port}"}]))
    {
        **os.environ,
        "PEARL_ROLLOUT": "math",
        "PEARL_AUTH": "None",
        "PEARL_STORAGE": str(tmp_path / "store"),
    }
    variables = {"PEARL_ROLLOUT": "math", "PEARL_AUTH": "None", "PEARL_STORAGE": str(tmp_path / "store")}
    commands = [
        [sys.executable, "-m", "pearl_simulator.emulator", "--port", str(engine_port)],
        [sys.executable, "-m", "pearl_gateway.main", "--workers", str(workers), "--port", str(port)],
    ]
    with (tmp_path / "log").open("wb") as log:
        started = [
            subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=log) for command in commands
        ]
        try:
            wait_for(f"http://127.0.0.1:{engine_port}/health")
            wait_for(f"http://127.0.0.1:{port}/health_generate")
            yield f"http://127.0.0.1:{port}"
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(20)


@pytest.mark.integration
def test_sglangs_own_router_takes_the_gateway_for_an_engine(gateway: str, frameworks: Frameworks) -> None:
    port, metrics = free_port(), free_port()
    arguments = [
        "--worker-urls",
        gateway,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--prometheus-port",
        str(metrics),
    ]
    command = [str(frameworks.python), "-m", "sglang_router.launch_router", *arguments]
    router = subprocess.Popen(command, env=frameworks.variables(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/health")
        sampling = {"temperature": 0, "max_new_tokens": 6, "no_stop_trim": True}
        body = {"input_ids": [5, 6, 7], "sampling_params": sampling, "return_logprob": True}
        until = time.monotonic() + 30
        while (routed := httpx.post(f"{url}/generate", json=body)).status_code == 503 and time.monotonic() < until:
            time.sleep(0.2)  # the router finds out first what kind of worker this is
        direct = httpx.post(f"{gateway}/generate", json=body)
    finally:
        router.terminate()
        router.wait(20)
    assert routed.status_code == 200, routed.text
    assert len(routed.json()["output_ids"]) == 6
    assert routed.json()["output_ids"] == direct.json()["output_ids"]
    assert routed.json()["meta_info"]["weight_version"] == "0"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(url: str, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    pytest.fail(f"{url} did not answer within {seconds} s")
