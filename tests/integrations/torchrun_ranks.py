"""One rank of a trainer under torchrun: two updates with the GPUs lent in between. Tells the double what it does.

    torchrun --nproc-per-node 2 torchrun_ranks.py URL TOKEN_FILE pod|group

`group`: each rank is a pod of its own, and rank 0 of all drives.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import httpx2
import torch.distributed as dist

from pearl_trainer import PearlClient
from pearl_trainer.settings import from_env


def main(url: str, token_file: str, kind: str) -> None:
    """Register, train twice, leave."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def note(what: str) -> None:
        httpx2.post(f"{url}/note", json={"what": what}, trust_env=False)

    settings = replace(from_env(), operator_url=url, token_file=token_file, visible_devices=f"GPU-{rank}")
    group = {}
    if kind == "group":
        settings = replace(settings, local_rank=0, local_world_size=1)
        group = {"group": "job-7", "members": dist.get_world_size()}
    with (
        PearlClient(settings) as client,
        client.register(
            rollout="math",
            offload=lambda: note("offload"),
            onload=lambda: note("onload"),
            barrier=dist.barrier,
            **group,
        ) as loan,
    ):
        for _ in range(2):
            with loan.training():
                note("update")
                dist.barrier()  # as the gradients' reduction would
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main(*sys.argv[1:])
