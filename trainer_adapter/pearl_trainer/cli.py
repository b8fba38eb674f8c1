"""`pearl-trainer doctor`: what this pod lacks to lend its GPUs, one line per check."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from pearl_trainer import settings as settings_module
from pearl_trainer.blocking import Driver
from pearl_trainer.doctor import Finding, Wanted, examine
from pearl_trainer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; exit code 1 where something is missing, 2 where the command line is wrong."""
    parser = argparse.ArgumentParser(prog="pearl-trainer", description="Tools of the PEARL trainer SDK.")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="check environment, identity, GPUs and connections of this pod")
    doctor.add_argument("--rollout", metavar="NAME", help="PearlRollout: tells how its borrowers would reach the GPUs")
    doctor.add_argument("--namespace", help="namespace of the PearlRollout; default: the operator's")
    doctor.add_argument(
        "--enrol", action="store_true", help="register this pod with the rollout and reach its borrowers' agents"
    )
    chosen = parser.parse_args(arguments)
    if chosen.enrol and not chosen.rollout:
        doctor.error("--enrol needs --rollout NAME")
    try:
        settings = settings_module.from_env()
    except ConfigurationError as error:
        print(Finding(ok=False, what="environment", detail=str(error)))
        return 1
    driver = Driver()
    try:
        findings = examine(settings, driver, time.time(), Wanted(chosen.rollout, chosen.namespace, chosen.enrol))
    finally:
        driver.close()
    print("\n".join(map(str, findings)))
    return int(any(finding.ok is False for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
