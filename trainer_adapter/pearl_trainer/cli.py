"""`pearl-trainer doctor`: what this pod lacks to lend its GPUs, one line per check."""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pearl_trainer import settings as settings_module
from pearl_trainer.blocking import Driver
from pearl_trainer.errors import ConfigurationError
from pearl_trainer.gpus import gpu_uuids
from pearl_trainer.sansio import NoReply, Request, send
from pearl_trainer.weights import published_version, source_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_trainer.settings import Settings

AUDIENCE = "pearl"
REACH_SECONDS = 3.0


@dataclass(frozen=True)
class Finding:
    """One line; `ok` None = not needed, or decided elsewhere."""

    ok: bool | None
    what: str
    detail: str

    def __str__(self) -> str:
        mark = {True: "ok  ", False: "FAIL", None: "-   "}[self.ok]
        return f"{mark} {self.what}: {self.detail}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; exit code 1 where something is missing."""
    parser = argparse.ArgumentParser(prog="pearl-trainer", description="Tools of the PEARL trainer SDK.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="check environment, identity, GPUs and connections of this pod")
    parser.parse_args(arguments)
    try:
        settings = settings_module.from_env()
    except ConfigurationError as error:
        print(Finding(ok=False, what="environment", detail=str(error)))
        return 1
    driver = Driver()
    try:
        findings = examine(settings, driver, time.time())
    finally:
        driver.close()
    print("\n".join(map(str, findings)))
    return int(any(finding.ok is False for finding in findings))


def examine(settings: Settings, driver: Driver, now: float) -> list[Finding]:
    """All checks; `now` is wall-clock seconds, for the token's expiry."""
    return [
        _attempt("identity", lambda: _identity(settings, now)),
        _attempt("GPUs", lambda: ", ".join(gpu_uuids(settings.visible_devices))),
        _reach("operator", "PEARL_OPERATOR_URL", settings.operator_url, "/healthz", driver),
        _reach("gateway", None, settings.gateway_url, "/health", driver),
        _weights(settings.weights_source),
    ]


def _attempt(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(ok=True, what=what, detail=check())
    except ConfigurationError as error:
        return Finding(ok=False, what=what, detail=str(error))


def _identity(settings: Settings, now: float) -> str:
    """Reads the token's claims; their signature is the API server's to check."""
    token = settings_module.read_token(settings.token_file, "PEARL_TOKEN_FILE")
    claims = _claims(token)
    audiences = claims.get("aud") or []
    if AUDIENCE not in audiences:
        raise ConfigurationError(
            f"the token in {settings.token_file} is for {audiences or 'nobody'}: set `audience: {AUDIENCE}` in the "
            "projected volume's serviceAccountToken"
        )
    pod = (claims.get("kubernetes.io") or {}).get("pod") or {}
    if not pod.get("name"):
        raise ConfigurationError(f"the token in {settings.token_file} is bound to no pod: mount a projected one")
    left = int(claims.get("exp", 0) - now)
    if left <= 0:
        raise ConfigurationError(f"the token in {settings.token_file} expired {-left} s ago: is the volume stale?")
    return f"pod {claims['kubernetes.io'].get('namespace')}/{pod['name']}, token valid for {left} s"


def _claims(token: str) -> dict[str, Any]:
    parts = token.split(".")
    try:
        padded = parts[1] + "=" * (-len(parts[1]) % 4)
        claims: Any = json.loads(base64.urlsafe_b64decode(padded))
    except (IndexError, ValueError):
        claims = None
    if not isinstance(claims, dict):
        raise ConfigurationError("the token file holds no ServiceAccount token: mount a projected one")
    return claims


def _reach(what: str, variable: str | None, url: str | None, path: str, driver: Driver) -> Finding:
    if url is None:
        said = f"{variable} is not set, so nothing is ever lent" if variable else "register() will tell its address"
        return Finding(ok=False if variable else None, what=what, detail=said)
    outcome = driver.run(send(Request("GET", url + path, timeout_seconds=REACH_SECONDS)))
    if isinstance(outcome, NoReply):
        hint = "check the URL, and that NetworkPolicies let this pod reach it"
        return Finding(ok=False, what=what, detail=f"{url} does not answer ({outcome.error}): {hint}")
    return Finding(ok=True, what=what, detail=f"{url} answers (HTTP status {outcome.status})")


def _weights(source: str | None) -> Finding:
    if source is None:
        return Finding(ok=None, what="weights", detail="register() will tell spec.weights.source")
    return _attempt("weights", lambda: f"version {published_version(source_directory(source))} at {source}")


if __name__ == "__main__":
    sys.exit(main())
