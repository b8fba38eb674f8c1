"""Everything the process is told by its environment, read once at start. The only module that reads it.

| variable                     | meaning                                                              | default |
|------------------------------|----------------------------------------------------------------------|---------|
| PEARL_ROLLOUT                | name of the PearlRollout                                             | required |
| PEARL_NAMESPACE              | namespace of the PearlRollout                                        | default |
| PEARL_TRAINER_NAMESPACES     | further namespaces with borrowed workers, comma separated            | none |
| PEARL_TOKENS                 | directory with the files agent, engine, gateway, client | /etc/pearl/tokens |
| PEARL_AUTH                   | Token, or None for an open gateway                                   | Token |
| PEARL_MODEL                  | served model name; unset: whatever the client writes is passed on    | unset |
| PEARL_MAX_MODEL_LEN          | longest context in tokens                                            | 32768 |
| PEARL_PROCESSES              | processes of the gateway, 1 to 16, see docs/gateway.md               | 1 |
| PEARL_STORAGE                | directory of the export, the batch log and the profile               | /var/lib/pearl |
| PEARL_KV_LEASE_SECONDS       | how long a prefill worker keeps KV; must be what the workers have    | 10 |
| PEARL_BORROWED_KV_LEASE_SECONDS | the same of borrowed workers                                      | 3 |
| PEARL_KV_AGE_LIMIT_PERCENT   | share of the lease after which KV is not sent any more               | 60 |
| PEARL_HANDOFF_SECONDS        | decode request to first token; never past 90 % of the lease          | 10 |
| PEARL_PREFILL_SECONDS        | deadline of the prefill half                                         | 120 |
| PEARL_STALL_SECONDS          | longest silence of a generating engine                               | 120 |
| PEARL_QUEUE_SECONDS          | longest wait of an admitted turn for a worker                        | 600 |
| PEARL_IDLE_SECONDS           | a trajectory without a request for so long is over (cause `idle`)    | 3600 |
| PEARL_MAX_TURNS              | turns in flight before new ones are refused                          | 4096 |
| PEARL_MAX_EVAL_TURNS         | of class `eval`: they have a quota of their own                      | 256 |
| PEARL_MAX_KEPT_TOKENS        | tokens of live trajectories before new ones are refused (about 70 B each) | 134217728 |
| PEARL_WORKER_TURNS           | turns on one worker before others wait here, fairly by group         | 1024 |
| PEARL_PREFILL_QUEUE_TOKENS   | prompt tokens queued at a prefill worker before others wait here     | 32768 |
| PEARL_CLIENT_STALL_SECONDS   | a client that takes nothing for so long is cut off                   | 60 |
| PEARL_MAX_BODY_BYTES         | longest body of a request                                            | 33554432 |
| PEARL_BODY_SECONDS           | longest time for a client to send one                                | 60 |
| PEARL_HEAD_SECONDS           | longest time for a client to send the head of a request              | 30 |
| PEARL_MAX_HEAD_BYTES         | longest head of a request                                            | 65536 |
| PEARL_CLIENT_IDLE_SECONDS    | a connection without a request for so long is closed; above the clients' own | 75 |
| PEARL_MAX_CLIENT_CONNECTIONS | open connections of one client address before new ones are refused   | 16384 |
| PEARL_LOCAL_APPEND_TOKENS    | until the operator says otherwise, see status.routing                | 64 |
| PEARL_MAX_STALENESS          | until the PearlRollout was read, see spec.weights.maxStaleness       | 1 |
| PEARL_ON_UPDATE              | the same of spec.weights.onUpdate: Recompute, FinishTurn, KeepKV     | Recompute |
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_PROCESSES = 16
_LEASE_MARGIN = 0.9
"""Share of the lease within which the first token must have come: the KV was certainly fetched in time then."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Bearer tokens; None where the file is missing."""

    agent: str | None = None
    engine: str | None = None
    gateway: str | None = None
    client: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines and bounds of turns."""

    kv_lease_seconds: float = 10.0
    borrowed_kv_lease_seconds: float = 3.0
    kv_age_share: float = 0.6
    handoff_seconds: float = 10.0
    prefill_seconds: float = 120.0
    stall_seconds: float = 120.0
    queue_seconds: float = 600.0
    connect_seconds: float = 2.0
    idle_seconds: float = 3600.0
    max_turns: int = 4096
    max_eval_turns: int = 256
    max_kept_tokens: int = 128 << 20
    worker_turns: int = 1024
    prefill_queue_tokens: int = 32768
    client_stall_seconds: float = 60.0
    max_model_len: int = 32768
    max_body_bytes: int = 32 << 20
    body_seconds: float = 60.0
    head_seconds: float = 30.0
    max_head_bytes: int = 65536
    client_idle_seconds: float = 75.0
    max_client_connections: int = 16384

    def __post_init__(self) -> None:
        if not 0 < self.kv_age_share < _LEASE_MARGIN:
            raise ValueError(
                f"PEARL_KV_AGE_LIMIT_PERCENT={100 * self.kv_age_share:g} must be above 0 and below "
                f"{100 * _LEASE_MARGIN:g}: an expired lease yields wrong tokens"
            )

    def lease(self, *, borrowed: bool) -> float:
        """How long a prefill worker keeps KV for others."""
        return self.borrowed_kv_lease_seconds if borrowed else self.kv_lease_seconds

    def fetch_by(self, *, borrowed: bool, age: float) -> float:
        """Seconds until the first token of a hand-off must be there, for KV of this age.

        Later than that the lease may have ended before the KV was fetched, and the tokens could be wrong.
        """
        return min(self.handoff_seconds, _LEASE_MARGIN * self.lease(borrowed=borrowed) - age)


@dataclass(frozen=True, slots=True)
class Settings:
    """The process's configuration."""

    rollout: str
    namespace: str = "default"
    trainer_namespaces: tuple[str, ...] = ()
    tokens: Tokens = Tokens()
    open_access: bool = False
    model: str | None = None
    processes: int = 1
    storage: Path | None = None
    limits: Limits = Limits()
    local_append_tokens: int = 64
    max_staleness: int = 1
    on_update: str = "Recompute"


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Settings from an environment mapping.

    Raises:
        ValueError: a variable is missing or not a number; the message names it.
    """
    rollout = environment.get("PEARL_ROLLOUT", "")
    if not rollout:
        raise ValueError("PEARL_ROLLOUT is empty: set it to the name of the PearlRollout")
    auth = environment.get("PEARL_AUTH", "Token")
    if auth not in ("Token", "None"):
        raise ValueError(f"PEARL_AUTH={auth!r} must be Token or None")
    tokens = _read_tokens(Path(environment.get("PEARL_TOKENS", "/etc/pearl/tokens")))
    if auth == "Token" and tokens.client is None:
        raise ValueError("no client token: mount the gateway Secret at PEARL_TOKENS, or set PEARL_AUTH=None")
    on_update = environment.get("PEARL_ON_UPDATE") or "Recompute"
    if on_update not in ("Recompute", "FinishTurn", "KeepKV"):
        raise ValueError(f"PEARL_ON_UPDATE={on_update!r} must be Recompute, FinishTurn or KeepKV")
    processes = _number(environment, "PEARL_PROCESSES", 1)
    if processes not in range(1, MOST_PROCESSES + 1):
        raise ValueError(f"PEARL_PROCESSES={processes:g} must be a whole number from 1 to {MOST_PROCESSES}")
    namespaces = environment.get("PEARL_TRAINER_NAMESPACES", "")
    return Settings(
        rollout=rollout,
        namespace=environment.get("PEARL_NAMESPACE", "default"),
        trainer_namespaces=tuple(name.strip() for name in namespaces.split(",") if name.strip()),
        tokens=tokens,
        open_access=auth == "None",
        model=environment.get("PEARL_MODEL") or None,
        processes=int(processes),
        storage=Path(environment.get("PEARL_STORAGE", "/var/lib/pearl")),
        limits=_read_limits(environment),
        local_append_tokens=int(_number(environment, "PEARL_LOCAL_APPEND_TOKENS", 64)),
        max_staleness=int(_number(environment, "PEARL_MAX_STALENESS", 1)),
        on_update=on_update,
    )


def _read_limits(environment: Mapping[str, str]) -> Limits:
    return Limits(
        kv_lease_seconds=_number(environment, "PEARL_KV_LEASE_SECONDS", 10),
        borrowed_kv_lease_seconds=_number(environment, "PEARL_BORROWED_KV_LEASE_SECONDS", 3),
        kv_age_share=_number(environment, "PEARL_KV_AGE_LIMIT_PERCENT", 60) / 100,
        handoff_seconds=_number(environment, "PEARL_HANDOFF_SECONDS", 10),
        prefill_seconds=_number(environment, "PEARL_PREFILL_SECONDS", 120),
        stall_seconds=_number(environment, "PEARL_STALL_SECONDS", 120),
        queue_seconds=_number(environment, "PEARL_QUEUE_SECONDS", 600),
        idle_seconds=_number(environment, "PEARL_IDLE_SECONDS", 3600),
        max_turns=int(_number(environment, "PEARL_MAX_TURNS", 4096)),
        max_eval_turns=int(_number(environment, "PEARL_MAX_EVAL_TURNS", 256)),
        max_kept_tokens=int(_number(environment, "PEARL_MAX_KEPT_TOKENS", 128 << 20)),
        worker_turns=max(1, int(_number(environment, "PEARL_WORKER_TURNS", 1024))),
        prefill_queue_tokens=max(1, int(_number(environment, "PEARL_PREFILL_QUEUE_TOKENS", 32768))),
        client_stall_seconds=_number(environment, "PEARL_CLIENT_STALL_SECONDS", 60),
        max_model_len=int(_number(environment, "PEARL_MAX_MODEL_LEN", 32768)),
        max_body_bytes=int(_number(environment, "PEARL_MAX_BODY_BYTES", 32 << 20)),
        body_seconds=_number(environment, "PEARL_BODY_SECONDS", 60),
        head_seconds=_number(environment, "PEARL_HEAD_SECONDS", 30),
        max_head_bytes=int(_number(environment, "PEARL_MAX_HEAD_BYTES", 65536)),
        client_idle_seconds=_number(environment, "PEARL_CLIENT_IDLE_SECONDS", 75),
        max_client_connections=max(1, int(_number(environment, "PEARL_MAX_CLIENT_CONNECTIONS", 16384))),
    )


def _read_tokens(folder: Path) -> Tokens:
    def one(name: str) -> str | None:
        path = folder / name
        return path.read_text().strip() or None if path.is_file() else None

    return Tokens(agent=one("agent"), engine=one("engine"), gateway=one("gateway"), client=one("client"))


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number") from None
    if value < 0:
        raise ValueError(f"{name}={text!r} must not be negative")
    return value
