"""A rollout with a borrower, a trainer pod that obeys, load through the gateway, and a watcher of the device."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from loans_chaos import processes
from loans_chaos.chaos_device import ENGINE_BYTES, Shares
from loans_chaos.load import Load
from loans_chaos.watch import Watch
from pearl_api import names, tokens
from pearl_api.wire.worker import WorkerState
from pearl_dev.fleet import wait_for
from pearl_dev.product import NAMESPACE
from pearl_trainer.weights import publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_api.wire.gateway import WorkerView
    from pearl_dev.fleet import Fleet
    from pearl_dev.product import Installation

Object = dict[str, Any]
HERE = Path(__file__).parent
TRAINERS, POD, PORT = "trainers", "trainer-0", 9009
DEVICE = "/var/run/pearl-device"
RESTARTS = 2
"""After so many of a container the pod is replaced: the kubelet waits longer before each further one."""
CONNECT_SECONDS = 90.0
"""How long a killed trainer process may take to be back: it imports, and enrols for at most 15 s."""
LONG_SECONDS = 300.0


class Scene:
    """One fleet, one trainer, one GPU that is lent."""

    def __init__(
        self, installation: Installation, fleet: Fleet, *, turns_per_second: float, seed: int, group: bool = False
    ) -> None:
        self.installation, self.fleet, self.api = installation, fleet, fleet.api
        self.parts = {POD: "member", "driver-0": "driver"} if group else {POD: "alone"}
        self.driver = "driver" if group else "trainer"
        self.cluster = installation.cluster
        self.device = installation.devices
        self.shares = Shares(self.device)
        self.pods: dict[str, Object] = {}
        self.version = fleet.stats().weights_max or 0
        self._agent_token = fleet.secret(names.worker_secret(fleet.name))["agent"]
        self._http = httpx.Client(timeout=3, trust_env=False)
        self._before: dict[str, set[str]] = {}
        self._template = fleet.resource()["spec"]["capacity"]["borrowed"].get("podTemplate")
        self.reserved: int = fleet.resource()["spec"]["capacity"]["reserved"]["gpus"]
        self.watch = Watch(self.device)
        self.load = Load(fleet, turns_per_second, seed)

    # -- begin and end --------------------------------------------------------------------------------------

    def open(self) -> Scene:
        """Start the trainer, whose borrower is cold then."""
        for leftover in self.device.glob("*.use"):
            leftover.unlink()
        processes.build_clock(self.device / "clock.so")
        for whose in ("agent", "trainer"):
            self.set_clock(whose, 0)
        self._stop_trainer()
        wait_for(lambda: not self.borrowers(), seconds=LONG_SECONDS, what="no borrower of an earlier trainer is there")
        self.fleet.patch({"mode": "Colocated", "ratio": None})
        clock = {"LD_PRELOAD": f"{DEVICE}/clock.so", "CHAOS_CLOCK": f"{DEVICE}/clock-agent"}
        template = _with_environment(self._template, {**clock, "PEARL_FAKE_DEVICE_BYTES": str(ENGINE_BYTES)})
        self.fleet.patch({"capacity": {"borrowed": {"podTemplate": template}}})
        self._before = self._owned()
        self.start_trainer()
        self.watch.start()
        return self

    def start_trainer(self) -> None:
        """A trainer pod in place of the one there may be, enrolled."""
        self._stop_trainer()
        for name, part in self.parts.items():
            self.cluster.apply(*self._manifests(name, part))
            self.kubectl("-n", TRAINERS, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=180s")
            self.pods["driver" if part == "driver" else "trainer"] = self._pod(TRAINERS, name)
        wait_for(lambda: self.tell("state")["enrolled"], seconds=LONG_SECONDS, what="the trainer is enrolled")
        self.settle()

    def _stop_trainer(self) -> None:
        self.kubectl("-n", TRAINERS, "delete", "pod", *self.parts, "--ignore-not-found", "--grace-period=1")

    def _manifests(self, name: str, part: str) -> list[Object]:
        code = [HERE / "chaos_trainer.py", HERE / "chaos_device.py"]
        command = ["python3", "-u", "/opt/code/chaos_trainer.py", DEVICE, self.fleet.name, part]
        clock = {"LD_PRELOAD": f"{DEVICE}/clock.so", "CHAOS_CLOCK": f"{DEVICE}/clock-trainer"}
        account, pod = self.installation.trainer(code, command, clock)
        pod["metadata"]["name"] = name
        pod["spec"]["terminationGracePeriodSeconds"] = 1
        container = pod["spec"]["containers"][0]
        container["volumeMounts"].append({"name": "devices", "mountPath": DEVICE})
        pod["spec"]["volumes"].append({"name": "devices", "persistentVolumeClaim": {"claimName": "devices"}})
        if part == "driver":
            container["resources"] = {}
        return [account, pod]

    def close(self) -> list[str]:
        """Ends the trainer, once the load's turns were ended; what is left of it that should be gone."""
        self.watch.stop()
        self._stop_trainer()
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: self._owned() == self._before, seconds=120, what="everything of the loan is gone")
        after = self._owned()
        left = [f"{kind} {name}" for kind in after for name in sorted(after[kind] - self._before[kind])]
        missing = [f"{kind} {name} is gone" for kind in after for name in sorted(self._before[kind] - after[kind])]
        self.fleet.patch({"capacity": {"borrowed": {"podTemplate": self._template}}})
        self._http.close()
        return left + missing

    def _owned(self) -> dict[str, set[str]]:
        """Names of all that a loan could leave behind."""
        loans = "/apis/pearl.dev/v1alpha1/namespaces/{}/gpuloans"
        kinds = {"gpuloans": loans, "secrets": "/api/v1/namespaces/{}/secrets"}
        found = {
            f"{kind} of {space}": {item["metadata"]["name"] for item in self.api.items(path.format(space))}
            for kind, path in kinds.items()
            for space in (TRAINERS, NAMESPACE)
        }
        pods = self.api.items(f"/api/v1/namespaces/{TRAINERS}/pods")
        return {**found, f"pods of {TRAINERS}": {pod["metadata"]["name"] for pod in pods}}

    # -- what is there --------------------------------------------------------------------------------------

    def kubectl(self, *words: str) -> str:
        """As an administrator."""
        return self.cluster.kubectl(*words)

    def _pod(self, namespace: str, name: str) -> Object:
        found = self.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        assert found is not None, f"pod {namespace}/{name} is gone"
        return found

    def component(self, component: str) -> list[Object]:
        """Pods of operator or gateway that are not being deleted."""
        label = f"{names.LABEL_COMPONENT}={component}"
        pods = self.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=label)
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def borrowers(self) -> list[Object]:
        """Borrower pods, those that are being deleted too."""
        return self.api.items(f"/api/v1/namespaces/{TRAINERS}/pods", labelSelector=names.LABEL_ROLLOUT)

    def look(self) -> None:
        """Remember the pods as they are: nobody can ask once the API server is dead."""
        for role in ("operator", "gateway"):
            self.pods[role] = self.component(role)[0]
        self.pods["borrower"] = next(p for p in self.borrowers() if "deletionTimestamp" not in p["metadata"])
        for name, part in self.parts.items():
            self.pods["driver" if part == "driver" else "trainer"] = self._pod(TRAINERS, name)

    def uid(self, role: str) -> str:
        """Of the remembered pod."""
        uid: str = self.pods[role]["metadata"]["uid"]
        return uid

    def address(self, role: str) -> str:
        """Its IP."""
        address: str = self.pods[role]["status"]["podIP"]
        return address

    def agent(self) -> WorkerState | None:
        """What the borrower's agent says; None where it says nothing."""
        url = f"http://{self.address('borrower')}:{names.PORT_AGENT}/v1/state"
        try:
            token = tokens.of_borrower(self._agent_token, tokens.lender_of(self.pods["borrower"]["metadata"]))
            answer = self._http.get(url, headers={"Authorization": f"Bearer {token}"})
        except httpx.HTTPError:
            return None
        return WorkerState.model_validate(answer.json()) if answer.is_success else None

    def until_agent(self, what: str, good: Callable[[WorkerState], object], seconds: float = LONG_SECONDS) -> None:
        """Wait for a state of the agent."""

        def seen() -> bool:
            state = self.agent()
            return state is not None and bool(good(state))

        wait_for(seen, seconds=seconds, what=what, last=self.agent)

    def tell(self, command: str, **more: Any) -> Object:
        """One command to the trainer; waits for a process that is just being started again."""
        deadline, line = time.monotonic() + CONNECT_SECONDS, json.dumps({"do": command, **more}).encode() + b"\n"
        while True:
            try:
                with socket.create_connection((self.address(self.driver), PORT), timeout=3) as connection:
                    connection.settimeout(120)
                    connection.sendall(line)
                    if answer := connection.makefile().readline():
                        told: Object = json.loads(answer)
                        return told
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    # -- what is done to it ---------------------------------------------------------------------------------

    def set_clock(self, whose: str, seconds: int) -> None:
        """Move the wall clock of `agent` (and its engine) or `trainer`."""
        draft = self.device / f".clock-{whose}"
        draft.write_text(str(seconds))
        draft.chmod(0o644)
        draft.rename(self.device / f"clock-{whose}")

    def publish(self) -> None:
        """Newer weights; what is in them does not matter here."""
        self.version += 1
        models = list(self.installation.artifacts.models.values())
        source = self.installation.weights_of(self.fleet.name)
        publish(str(source), self.version, [models[self.version % len(models)] / "model.safetensors"])

    def settle(self) -> None:
        """Everything is up, nothing is lent, and no engine holds the GPU."""
        wait_for(self._api_answers, seconds=LONG_SECONDS, what="the API server answers")
        self._renew_crashed()
        for role in ("operator", "gateway"):
            wait_for(partial(self._up, role), seconds=LONG_SECONDS, what=f"the {role} is up")
        wait_for(self.routed, seconds=LONG_SECONDS, what="the gateway answers")
        wait_for(self._borrower_runs, seconds=LONG_SECONDS, what="the borrower's agent answers", last=self.borrowers)
        self.until_agent("the loan is over", lambda state: state.loan is not None and not state.loan.granted)
        wait_for(lambda: not self.shares.others(), seconds=60, what="the GPU is free")

    def _api_answers(self) -> bool:
        try:
            return self.api.get("/readyz/ping") is not None
        except httpx.HTTPError:
            return False
        except (RuntimeError, json.JSONDecodeError):
            return True

    def _renew_crashed(self) -> None:
        """Pods in place of those whose containers ended too often."""
        labels = ((NAMESPACE, f"{names.LABEL_COMPONENT}={role}") for role in ("operator", "gateway"))
        for namespace, selector in (*labels, (TRAINERS, names.LABEL_ROLLOUT)):
            for pod in self.api.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector):
                if any(each["restartCount"] >= RESTARTS for each in pod["status"].get("containerStatuses", [])):
                    name = pod["metadata"]["name"]
                    self.kubectl("-n", namespace, "delete", "pod", name, "--grace-period=5")

    def routed(self) -> list[WorkerView]:
        """Workers as the gateway sees them; none while it does not answer."""
        try:
            return self.fleet.stats().workers
        except (httpx.HTTPError, RuntimeError):
            return []

    def _up(self, role: str) -> bool:
        """Exactly one pod of operator or gateway is there and ready."""
        pods = self.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=f"{names.LABEL_COMPONENT}={role}")
        statuses = [each for pod in pods for each in pod["status"].get("containerStatuses", [])]
        return len(pods) == 1 and bool(statuses) and all(each["ready"] for each in statuses)

    def _borrower_runs(self) -> bool:
        try:
            self.look()
        except (StopIteration, IndexError):
            return False
        return "podIP" in self.pods["borrower"]["status"] and self.agent() is not None


def _with_environment(template: Object | None, variables: dict[str, str]) -> Object:
    made: Object = json.loads(json.dumps(template))
    container = made["spec"]["containers"][0]
    kept = [entry for entry in container.get("env", []) if entry["name"] not in variables]
    container["env"] = kept + [{"name": name, "value": value} for name, value in variables.items()]
    return made


def forget_weights(installation: Installation, rollout: str) -> None:
    """No weights were ever published."""
    for entry in installation.weights_of(rollout).iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
