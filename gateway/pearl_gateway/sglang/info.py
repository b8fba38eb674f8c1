"""What the gateway says about itself to a loop that takes it for one SGLang engine, or for a router with one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pearl_gateway.sglang.weights import newest_served

if TYPE_CHECKING:
    from starlette.requests import Request

    from pearl_gateway.gateway import Gateway


def server_info(request: Request, gateway: Gateway) -> dict[str, Any]:
    """`/server_info`: from outside it is one engine on one rank, however many workers there are behind it."""
    model = gateway.settings.model or gateway.settings.rollout
    single = dict.fromkeys(("tp_size", "pp_size", "dp_size", "ep_size", "nnodes", "gpu_id_step"), 1)
    return {
        "model_path": model,
        "served_model_name": model,
        "context_length": gateway.settings.limits.max_model_len,
        "host": request.url.hostname,
        "port": request.url.port or 80,
        "node_rank": 0,
        "base_gpu_id": 0,
        "disaggregation_mode": "null",
        "enable_memory_saver": False,
        "internal_states": [{"world_size": 1}],
        **single,
        "weight_version": newest_served(gateway),
        "pearl": {"rollout": gateway.settings.rollout, "workers": len(gateway.fleet.candidates())},
    }


def model_info(gateway: Gateway) -> dict[str, Any]:
    """`/model_info`."""
    model = gateway.settings.model or gateway.settings.rollout
    return {
        "model_path": model,
        "tokenizer_path": model,
        "is_generation": True,
        "weight_version": newest_served(gateway),
    }


def loads(running: int) -> dict[str, Any]:
    """`/v1/loads`: requests that came in SGLang's way and are not answered yet."""
    rank = {"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": 0, "num_total_reqs": running}
    return {"loads": [rank], "aggregate": rank}


def workers(request: Request) -> dict[str, Any]:
    """`/workers` of a router: the gateway itself, which is the only address that stays."""
    url = f"{request.url.scheme}://{request.url.netloc}"
    return {"workers": [{"id": url, "url": url, "worker_type": "regular", "is_healthy": True}], "total": 1}
