"""Every module of the SDK imported, and a blocking and an asynchronous loan over HTTP. Prints JSON.

    python sdk_on_old_python.py URL TOKEN_FILE

Runs on the oldest Python that the SDK supports, so it keeps to that grammar itself.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import pkgutil
import sys

import pearl_trainer
from pearl_trainer.settings import Settings


async def asynchronous(settings: Settings) -> bool:
    """Lend and train once."""
    client = pearl_trainer.AsyncPearlClient(settings)
    async with await client.register(rollout="math") as loan:
        async with loan.training():
            pass
        lent = loan.lent
    await client.close()
    return lent


def blocking(settings: Settings) -> bool:
    """The same with threads."""
    with pearl_trainer.PearlClient(settings) as client, client.register(rollout="math") as loan:
        with loan.training():
            pass
        return loan.lent


if __name__ == "__main__":
    modules = [found.name for found in pkgutil.walk_packages(pearl_trainer.__path__, "pearl_trainer.")]
    for module in modules:
        importlib.import_module(module)
    wanted = Settings(operator_url=sys.argv[1], token_file=sys.argv[2], visible_devices="GPU-a")
    done = [blocking(wanted), asyncio.run(asynchronous(wanted))]
    print(json.dumps({"modules": len(modules), "lent": done, "python": sys.version_info[:2]}))  # noqa: T201 - its result
