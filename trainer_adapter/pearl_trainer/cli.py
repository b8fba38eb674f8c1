"""`pearl-trainer doctor`: what this pod lacks to lend its GPUs. `pearl-trainer join`: enrols a pod for its driver."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from pearl_trainer import settings as settings_module
from pearl_trainer.blocking import Driver
from pearl_trainer.client import PearlClient
from pearl_trainer.doctor import Finding, Wanted, examine
from pearl_trainer.errors import ConfigurationError, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_trainer.settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; exit code 1 where something is missing or refused, 2 where the command line is wrong."""
    parser = argparse.ArgumentParser(prog="pearl-trainer", description="Tools of the PEARL trainer SDK.")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="check environment, identity, GPUs and connections of this pod")
    doctor.add_argument("--rollout", metavar="NAME", help="PearlRollout: tells how its borrowers would reach the GPUs")
    doctor.add_argument(
        "--enrol", action="store_true", help="register this pod with the rollout and reach its borrowers' agents"
    )
    member = commands.add_parser("join", help="enrol this pod's GPUs in a group until it is told to stop")
    member.add_argument("--rollout", metavar="NAME", required=True, help="PearlRollout that may borrow")
    member.add_argument("--group", metavar="NAME", required=True, help="what the driver passes to register_group()")
    for command in (doctor, member):
        command.add_argument("--namespace", help="namespace of the PearlRollout; default: the operator's")
    chosen = parser.parse_args(arguments)
    if chosen.command == "doctor" and chosen.enrol and not chosen.rollout:
        doctor.error("--enrol needs --rollout NAME")
    try:
        settings = settings_module.from_env()
        if chosen.command == "join":
            logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
            return join(settings, chosen.rollout, chosen.group, chosen.namespace, _until_told)
    except (ConfigurationError, Rejected) as error:
        print(Finding(ok=False, what=chosen.command, detail=str(error)))
        return 1
    return _doctor(settings, Wanted(chosen.rollout, chosen.namespace, chosen.enrol))


def _doctor(settings: Settings, wanted: Wanted) -> int:
    driver = Driver()
    try:
        findings = examine(settings, driver, time.time(), wanted)
    finally:
        driver.close()
    print("\n".join(map(str, findings)))
    return int(any(finding.ok is False for finding in findings))


def join(settings: Settings, rollout: str, group: str, namespace: str | None, wait: Callable[[], None]) -> int:
    """Enrols this pod for a driver elsewhere, for example beside a Ray worker, while `wait` runs.

    Raises:
        ConfigurationError, Rejected: as `PearlClient.register`.
    """
    pod: dict[str, Any] = {"rollout": rollout, "group": group, "rollout_namespace": namespace}
    with PearlClient(settings) as client, client.register(lend=False, **pod):
        wait()
    return 0


def _until_told() -> None:
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    told.wait()


if __name__ == "__main__":
    sys.exit(main())
