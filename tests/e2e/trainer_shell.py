"""Runs in a trainer pod: lends and reclaims as told on standard input, one JSON answer per line.

Commands: `lend`, `reclaim SECONDS`, `lent`, `quit`.
"""

from __future__ import annotations

import json
import sys

from pearl_trainer import NotReturned, PearlClient


def answer(**fact: object) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Register without lending, then obey."""
    pearl = PearlClient.from_env()
    loan = pearl.register(rollout=sys.argv[1], lend=False)
    answer(registered=loan.registration is not None)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "lend":
            result = loan.lend()
            answer(granted=result.granted, reason=result.reason, message=result.message, epoch=result.epoch)
        elif command == "reclaim":
            try:
                free = loan.reclaim(within=float(arguments[0]))
                answer(free=True, via=free.via, killed=free.killed, seconds=free.total_seconds, epoch=free.epoch)
            except NotReturned as error:
                answer(free=False, why=str(error))
        elif command == "lent":
            answer(lent=loan.lent, epoch=loan.epoch)
        else:
            loan.close()
            return


if __name__ == "__main__":
    main()
