"""Everything that the environment decides; the only module that reads it.

| variable | meaning |
|---|---|
| `PEARL_OPERATOR_URL` | base URL of the loan API; absent: nothing is ever lent |
| `PEARL_TOKEN_FILE` | projected ServiceAccount token, audience `pearl`; default `/var/run/secrets/pearl/token` |
| `PEARL_GATEWAY_URL` | base URL of the rollout's gateway; default: what registering answers |
| `PEARL_GATEWAY_TOKEN_FILE` | the gateway's bearer token; default: what registering answers |
| `PEARL_WEIGHTS_SOURCE` | where weights are published; default: what registering answers |
| `NVIDIA_VISIBLE_DEVICES` | UUIDs of the pod's GPUs, set by the device plugin |
| `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | rank within the pod, set by torchrun and others; only rank 0 talks to PEARL |
| `RANK`, `WORLD_SIZE` | rank over all pods; rank 0 drives a group |
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pearl_trainer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_FILE = "/var/run/secrets/pearl/token"  # noqa: S105 - a path


@dataclass(frozen=True)
class Settings:
    """Settings of one client; the module's docstring names the variables."""

    operator_url: str | None = None
    token_file: str = TOKEN_FILE
    gateway_url: str | None = None
    gateway_token_file: str | None = None
    weights_source: str | None = None
    visible_devices: str | None = None
    local_rank: int = 0
    local_world_size: int = 1
    rank: int | None = None
    world_size: int = 1


def from_env(environment: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings.

    Raises:
        ConfigurationError: a variable is wrong; the message names it and what to set it to.
    """
    env = os.environ if environment is None else environment
    return Settings(
        operator_url=_url(env, "PEARL_OPERATOR_URL"),
        token_file=_text(env, "PEARL_TOKEN_FILE") or TOKEN_FILE,
        gateway_url=_url(env, "PEARL_GATEWAY_URL"),
        gateway_token_file=_text(env, "PEARL_GATEWAY_TOKEN_FILE"),
        weights_source=_text(env, "PEARL_WEIGHTS_SOURCE"),
        visible_devices=_text(env, "NVIDIA_VISIBLE_DEVICES"),
        local_rank=_count(env, "LOCAL_RANK") or 0,
        local_world_size=_count(env, "LOCAL_WORLD_SIZE") or 1,
        rank=_count(env, "RANK"),
        world_size=_count(env, "WORLD_SIZE") or 1,
    )


def read_token(path: str, variable: str) -> str:
    """A token, read anew each time because projected tokens rotate.

    Raises:
        ConfigurationError: the file is missing or empty; the message says how to mount it.
    """
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the token file {path} ({error.strerror}): mount a projected ServiceAccount token with "
            f"audience `pearl` there, or set {variable} to where it is"
        ) from error
    if not token:
        raise ConfigurationError(f"the token file {path} is empty: mount a projected token, or set {variable}")
    return token


def _text(env: Mapping[str, str], name: str) -> str | None:
    return env.get(name, "").strip() or None


def _url(env: Mapping[str, str], name: str) -> str | None:
    value = _text(env, name)
    if value is not None and not value.startswith(("http://", "https://")):
        raise ConfigurationError(f"{name} is {value!r}: set it to a URL such as http://pearl-operator.pearl.svc:8090")
    return value.rstrip("/") if value else None


def _count(env: Mapping[str, str], name: str) -> int | None:
    text = _text(env, name)
    if text is not None and not text.isdigit():
        raise ConfigurationError(f"{name} is {text!r}: it must be a whole number, as torchrun sets it")
    return None if text is None else int(text)
