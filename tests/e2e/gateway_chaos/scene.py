"""Everything that is broken: workers, the list of them, published weights, the gateway. What events do to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import aiohttp
from ports import free_port

from gateway_chaos.launch import CuttablePeers, EmulatedLauncher, Launcher, RealLauncher
from gateway_chaos.link import Link
from gateway_chaos.pod import AGENT_TOKEN, Pod, write_tokens
from gateway_chaos.sabotage import saboteur
from pearl_api.names import Role
from pearl_simulator.emulator import EngineConfig
from pearl_trainer.weights import publish
from pearl_worker.settings import Device, LoanIdentity, OnUpdate, Settings
from pearl_worker.stores import DirectoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from gateway_chaos.gateway_process import GatewayProcess

_LIST_SECONDS = 0.1
"""How often the list of workers is brought up to date."""
_ANSWER_SECONDS, _MUTE_SECONDS = 10.0, 40.0
ROLES = (Role.PREFILL, Role.DECODE, Role.DECODE, Role.PREFILL, Role.DECODE, Role.PREFILL, Role.COLOCATED)
"""What workers begin as and flip to: as long as there is a colocated one, nothing is handed over."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a scene is made of."""

    folder: Path
    workers: int
    on_update: OnUpdate
    lease_seconds: float
    seed: str
    max_model_len: int = 2048
    sabotage: str | None = None
    model: str = "tiny"
    engine_python: str | None = None
    """Of real vLLM; None = emulated engines."""
    weights: tuple[Path, ...] = ()
    """Files that versions take turns with, version 0 first; empty = names are enough."""
    corrupt_expired_kv: bool = True
    processes: int = 1
    """Of the gateway."""

    @property
    def real(self) -> bool:
        return self.engine_python is not None


@dataclass
class Scene:
    """`versions` that were published; `healthy` pods may be chosen for events that need one."""

    stage: Stage
    session: aiohttp.ClientSession
    gateway: GatewayProcess
    pods: list[Pod] = field(default_factory=list)
    version: int = 0
    problems: list[str] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    """Pods something is being done to."""
    _peers: CuttablePeers = field(default_factory=CuttablePeers)
    _made: int = 0
    _watches: list[asyncio.Task[None]] = field(default_factory=list)
    _publishing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def open(self) -> None:
        folder = self.stage.folder
        for name in ("weights", "base", "storage"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "base" / "model.safetensors").write_bytes(b"version 0")
        write_tokens(folder)
        borrowed = self.stage.workers // 4
        for number in range(self.stage.workers):
            role = ROLES[number % len(ROLES)]
            self.pods.append(await self.new_pod(role, borrowed=number < borrowed))
        self._watches = [asyncio.ensure_future(one) for one in (self._keep_list(), self._watch_gateway())]

    async def close(self) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        ends = await asyncio.gather(*(pod.stop() for pod in self.pods), return_exceptions=True)
        self.problems += [f"a worker did not end in order: {one!r}" for one in ends if one is not None]

    async def new_pod(self, role: Role, *, borrowed: bool) -> Pod:
        number, self._made = self._made, self._made + 1
        name = f"worker-{number}"
        state = self.stage.folder / name
        state.mkdir(exist_ok=True)
        settings = self._settings(state, borrowed=borrowed)
        link, agent_link = await Link().start(), await Link().start()
        return await Pod(
            name=name,
            uid=f"uid-{number}",
            settings=settings,
            launcher=self._launcher(settings, link, number),
            link=link,
            agent_link=agent_link,
            store=DirectoryStore(self.stage.folder / "weights"),
            role=role,
            borrowed=borrowed,
        ).start()

    def _settings(self, state: Path, *, borrowed: bool) -> Settings:
        stage = self.stage
        settings = Settings(
            model=stage.model if stage.real else str(stage.folder / "base"),
            model_name="tiny",
            device=Device.CPU,
            on_update=stage.on_update,
            tokens_directory=stage.folder,
            state_directory=state,
            lease_seconds=stage.lease_seconds,
            drain_seconds=0.5,
            max_model_len=stage.max_model_len,
            loan=LoanIdentity(namespace="default", name="loan") if borrowed else None,
        )
        if not stage.real:
            return settings
        (state / "device").mkdir(exist_ok=True)
        return replace(
            settings,
            fake_device=state / "device",
            drain_seconds=5.0,
            engine_python=str(stage.engine_python),
            engine_args=("--kv-cache-memory-bytes", str(64 << 20)),
            engine_port=free_port(),
            nixl_port=free_port(),
        )

    def _launcher(self, settings: Settings, link: Link, number: int) -> Launcher:
        if self.stage.real:
            device = {"PEARL_FAKE_DEVICE_DIR": str(settings.fake_device)}
            return RealLauncher(settings, link, self.session, settings.state_directory / "engine.log", device)
        config = EngineConfig.of_table(
            "tiny/cpu",
            max_model_len=self.stage.max_model_len,
            max_sequences=16,
            kv_tokens=1 << 15,
            expired_kv_corrupts=self.stage.corrupt_expired_kv,
            stream_interval=(1, 3, 5)[number % 3],
        )
        wrap = saboteur(self.stage.sabotage, f"{self.stage.seed}/{number}")
        return EmulatedLauncher(settings, config, link, self._peers, self.session, wrap)

    async def _keep_list(self) -> None:
        """What operator, kubelet and API server are to the gateway."""
        target, last = self.stage.folder / "workers.json", ""
        while True:
            text = json.dumps([pod.facts() for pod in self.pods if pod.there])
            if text != last:
                draft = target.with_suffix(".tmp")
                draft.write_text(text)
                draft.replace(target)
                last = text
            for pod in self.pods:
                if (error := pod.failed()) is not None:
                    self.problems.append(f"the agent of {pod.name} ended with {error!r}")
                    pod.there = False
            if self.gateway.incarnation and self.gateway.ended_by_itself():
                self.problems.append("the gateway ended by itself")
                self.gateway.start()
            await asyncio.sleep(_LIST_SECONDS)

    async def answers(self) -> bool:
        """Whether the gateway is up."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
            async with self.session.get(self.gateway.url + "/ready", timeout=timeout) as response:
                return response.ok
        return False

    async def _watch_gateway(self) -> None:
        """A gateway that answers nothing for long, and is not being started, hangs."""
        mute = 0.0
        while True:
            await asyncio.sleep(1.0)
            began = time.monotonic()
            well = self.gateway.busy or not self.gateway.incarnation or await self.answers()
            mute = 0.0 if well else mute + 1.0 + time.monotonic() - began
            if mute > _MUTE_SECONDS:
                self.problems.append(f"the gateway answered nothing for {mute:.0f} s, state {self.gateway.state()}")
                await self.gateway.dump()
                mute = 0.0

    # -- for events ---------------------------------------------------------------------------------------------

    def ready(self) -> int:
        return sum(pod.there and pod.worker.ready for pod in self.pods)

    def pick(self, share: float, *, borrowed: bool | None = None) -> Pod | None:
        """A pod that nothing is being done to."""
        free = [pod for pod in self.pods if pod.there and pod.uid not in self.busy and borrowed in (None, pod.borrowed)]
        return free[int(share * len(free))] if free else None

    async def publish(self) -> None:
        """New weights; agents hear of them at once or when they look."""
        async with self._publishing:
            version = self.version + 1
            files = self.stage.weights
            if files:
                content = files[version % len(files)]
            else:
                content = self.stage.folder / "model.safetensors"
                content.write_text(f"version {version}")
            await asyncio.to_thread(publish, str(self.stage.folder / "weights"), version, content)
            self.version = version
        draw = random.Random(f"{self.stage.seed}/{version}")
        for pod in self.pods:
            if draw.random() < 0.7:  # the others look within a second
                pod.worker.poke_weights()

    async def replace(self, pod: Pod) -> None:
        """The pod is gone, and another one comes."""
        await pod.stop()
        new = await self.new_pod(pod.role, borrowed=pod.borrowed)
        self.pods[self.pods.index(pod)] = new


def gateway_environment(stage: Stage, max_staleness: int) -> dict[str, str]:
    """What the gateway is told; deadlines as short as the leases."""
    lease = stage.lease_seconds
    real = stage.real
    return {
        "PEARL_ROLLOUT": "chaos",
        "PEARL_AUTH": "None",
        "PEARL_TOKENS": str(stage.folder),
        "PEARL_KV_LEASE_SECONDS": str(lease),
        "PEARL_BORROWED_KV_LEASE_SECONDS": str(lease),
        "PEARL_HANDOFF_SECONDS": str(lease if real else lease / 2),
        "PEARL_PREFILL_SECONDS": "30" if real else "3",
        "PEARL_STALL_SECONDS": "20" if real else "1.5",
        "PEARL_QUEUE_SECONDS": "600" if real else "60",
        "PEARL_LOCAL_APPEND_TOKENS": "24",
        "PEARL_MAX_MODEL_LEN": str(stage.max_model_len),
        "PEARL_MAX_STALENESS": str(max_staleness),
        "PEARL_ON_UPDATE": str(stage.on_update),
        "PEARL_PROCESSES": str(stage.processes),
    }


__all__ = ["AGENT_TOKEN", "Scene", "Stage", "gateway_environment"]
