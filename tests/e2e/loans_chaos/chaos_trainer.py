"""Runs in the trainer pod: the SDK in a process that obeys JSON lines over TCP, and its supervisor as first process.

The supervisor starts the process again whenever it ends, as launchers do, so that killing it is the death of a trainer
in a pod that stays. The trainer holds memory of the fake device while it trains, and only then.

Commands (`{"do": …}`): `lend`, `reclaim` (`within`), `rest`, `state`.
"""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos_device import TRAINER_BYTES, Shares, hold

from pearl_trainer import Loan, NotReturned, PearlClient
from pearl_trainer.gpus import MemoryProbe
from pearl_trainer.settings import from_env

if TYPE_CHECKING:
    from collections.abc import Callable

PORT, GROUP = 9009, "chaos"


class Trainer:
    """A loan and the trainer's own use of its GPU."""

    def __init__(self, device: Path, rollout: str, part: str) -> None:
        self.device, self.shares = device, Shares(device)
        self.leave: Callable[[], None] = lambda: None
        self.calls = threading.Lock()
        probe = MemoryProbe(lambda: (self.shares.total(),))
        self.loan = _enrol(PearlClient(from_env(), probe=probe), rollout, part)

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        """One command's answer."""
        if command["do"] == "state":
            return {"pid": os.getpid(), "lent": self.loan.lent, "epoch": self.loan.epoch, **self._enrolled()}
        with self.calls:  # as in a training loop: one call after the other
            if command["do"] == "lend":
                self.leave()
                result = self.loan.lend()
                return {"granted": result.granted, "reason": result.reason, "message": result.message}
            if command["do"] == "rest":
                self.leave()
                return {}
            return self._reclaim(float(command["within"]))

    def _enrolled(self) -> dict[str, Any]:
        found = self.loan.registration
        return {"enrolled": found is not None, "agents": len(found.agents) if found else 0}

    def _reclaim(self, within: float) -> dict[str, Any]:
        began = time.monotonic()
        try:
            free = self.loan.reclaim(within=within)
        except NotReturned as error:
            took = time.monotonic() - began
            return {"free": False, "why": str(error), "over": error.lease_over_seconds, "seconds": took}
        took = time.monotonic() - began
        # The very next thing after Free: who holds the device now?
        others = self.shares.others()
        self.leave = hold(self.device, TRAINER_BYTES)
        return {"free": True, "via": free.via, "killed": free.killed, "seconds": took, "others": others}


def _enrol(client: PearlClient, rollout: str, part: str) -> Loan:
    if part == "driver":
        return client.register_group(rollout=rollout, group=GROUP, members=1, lend=False)
    return client.register(rollout=rollout, group=GROUP if part == "member" else None, lend=False)


class Handler(socketserver.StreamRequestHandler):
    """One connection, one command."""

    def handle(self) -> None:
        """Answers it."""
        answer = self.server.trainer.do(json.loads(self.rfile.readline()))  # type: ignore[attr-defined]
        self.wfile.write(json.dumps(answer).encode() + b"\n")


class Server(socketserver.ThreadingTCPServer):
    """Takes commands from anywhere."""

    allow_reuse_address = True
    daemon_threads = True


def train(device: Path, rollout: str, part: str) -> None:
    """The trainer process."""
    trainer = Trainer(device, rollout, part)
    with Server(("", PORT), Handler) as server:
        server.trainer = trainer  # type: ignore[attr-defined]
        server.serve_forever()


def supervise(arguments: list[str]) -> None:
    """Keeps a trainer process running."""
    while True:
        subprocess.run([sys.executable, "-u", __file__, "train", *arguments], check=False)


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(Path(sys.argv[2]), *sys.argv[3:])
    else:
        supervise(sys.argv[1:])
