"""The command line and environment of `vllm serve`; pure.

Defaults that every engine needs come first, then what the device needs, then the user's arguments, which win.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pearl_worker.settings import Device, Settings

GUARD = "pearl_engine_plugins.guard.EngineGuard"
FAKE_DEVICE_WORKER = "pearl_engine_plugins.fake_device.FakeDeviceWorker"


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """What to execute."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


def engine_command(settings: Settings, inherited: Mapping[str, str], admin_token: str) -> EngineCommand:
    """The engine of `settings`, guarded by `admin_token`, in a container with environment `inherited`."""
    argv = (
        settings.engine_python,
        *("-m", "vllm.entrypoints.cli.main", "serve", settings.model),
        *("--host", "0.0.0.0", "--port", str(settings.engine_port)),  # noqa: S104 - the pod's address
        *("--served-model-name", settings.model_name),
        *("--tensor-parallel-size", str(settings.tensor_parallel)),
        *(("--max-model-len", str(settings.max_model_len)) if settings.max_model_len else ()),
        *("--enable-scale-out", "--middleware", GUARD, "--disable-uvicorn-access-log"),
        *("--weight-transfer-config", json.dumps({"backend": "safetensors"})),
        *("--kv-transfer-config", json.dumps(_kv_transfer(settings))),
        *_device_arguments(settings),
        *settings.engine_args,
    )
    return EngineCommand(argv=argv, environment=_environment(settings, inherited, admin_token))


def _kv_transfer(settings: Settings) -> dict[str, object]:
    # Every worker can hand KV over and take it: a role is routing, not an engine argument. A transfer that fails
    # is recomputed, so a request never dies of a lost peer.
    config: dict[str, object] = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"kv_lease_duration": settings.lease_seconds},
    }
    return config | ({"kv_buffer_device": "cpu"} if settings.device is Device.CPU else {})


def _device_arguments(settings: Settings) -> tuple[str, ...]:
    if settings.device is Device.GPU:
        return ("--enable-sleep-mode",)
    fake = ("--worker-cls", FAKE_DEVICE_WORKER) if settings.fake_device else ()
    executor = "uni" if settings.tensor_parallel == 1 else "mp"
    return (
        "--enforce-eager",
        *("--distributed-executor-backend", executor, "--dtype", "float32"),
        *("--max-num-seqs", "16", "--max-num-batched-tokens", "2048", "--block-size", "32"),
        *("--kv-cache-memory-bytes", str(256 << 20)),
        *fake,
    )


def _environment(settings: Settings, inherited: Mapping[str, str], admin_token: str) -> dict[str, str]:
    result = {
        **inherited,
        "VLLM_SERVER_DEV_MODE": "1",  # pause, sleep, weights; closed to others by the guard
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": settings.pod_ip,
        "VLLM_NIXL_SIDE_CHANNEL_HOST": settings.pod_ip,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(settings.nixl_port),
        "UCX_RCACHE_MAX_UNRELEASED": "1024",
        "PEARL_ENGINE_TOKEN_FILE": str(settings.tokens_directory / "engine"),
        "PEARL_ENGINE_ADMIN_TOKEN": admin_token,
        "PEARL_KV_LEASE_SECONDS": str(settings.lease_seconds),
        "PEARL_GATE": "closed",
        "PEARL_STEPS_DIR": str(settings.steps_directory or ""),
        "PEARL_STEPS_BYTES": str(settings.steps_bytes),
    }
    if settings.device is Device.CPU:
        result |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": inherited.get("OMP_NUM_THREADS", "1"),
            # Without it the first request with logprobs compiles for half a minute.
            "TORCHDYNAMO_DISABLE": "1",
            "HF_HUB_OFFLINE": "1",
        }
    if settings.engine_environment:
        packages = next(settings.engine_environment.glob("lib/python3*/site-packages"), None)
        if packages is None:
            raise ValueError(
                f"PEARL_ENGINE_ENVIRONMENT={settings.engine_environment} holds no lib/python3*/site-packages"
            )
        result["PYTHONPATH"] = str(packages)
        result["PYTHONDONTWRITEBYTECODE"] = "1"
    return result
