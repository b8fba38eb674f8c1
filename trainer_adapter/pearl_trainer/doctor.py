"""What a trainer pod lacks to lend its GPUs, as findings: one line each, with what to change."""

from __future__ import annotations

import base64
import json
import os
import platform
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from pearl_trainer import endpoints
from pearl_trainer import settings as settings_module
from pearl_trainer.errors import ConfigurationError, PearlError, Rejected
from pearl_trainer.gpus import driver_version, find_gpus
from pearl_trainer.messages import AccessAnswer, AccessRequest, RegisterAnswer, RegisterRequest
from pearl_trainer.sansio import NoReply, Request, call, send
from pearl_trainer.weights import published_version, source_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pearl_trainer.blocking import Driver
    from pearl_trainer.settings import Settings

AUDIENCE = "pearl"
REACH_SECONDS = 3.0
SHOWN_VERSIONS = ("httpx2", "torch", "nvidia-ml-py")
_UNAUTHORIZED = 401
_TOO_OLD = 404


@dataclass(frozen=True)
class Finding:
    """One line; `ok` None = not needed, not asked for, or for information."""

    ok: bool | None
    what: str
    detail: str

    def __str__(self) -> str:
        mark = {True: "ok  ", False: "FAIL", None: "-   "}[self.ok]
        return f"{mark} {self.what}: {self.detail}"


@dataclass(frozen=True)
class Wanted:
    """What to look into beyond the pod itself."""

    rollout: str | None = None
    namespace: str | None = None
    enrol: bool = False
    """Register this pod as a trainer does, which is harmless where it has, and look at its borrowers' agents."""


def examine(settings: Settings, driver: Driver, now: float, wanted: Wanted) -> list[Finding]:
    """All checks; `now` is wall-clock seconds, for the token's expiry."""
    looked = _Doctor(settings, driver, now, wanted)
    return [finding for part in looked.parts() for finding in part()]


class _Doctor:
    def __init__(self, settings: Settings, driver: Driver, now: float, wanted: Wanted) -> None:
        self._settings = settings
        self._driver = driver
        self._now = now
        self._wanted = wanted

    def parts(self) -> tuple[Callable[[], Iterator[Finding]], ...]:
        return (self._versions, self._pod, self._operator, self._access, self._gateway, self._borrowers)

    def _versions(self) -> Iterator[Finding]:
        found = [f"{name} {_version(name) or 'absent'}" for name in ("pearl-trainer", *SHOWN_VERSIONS)]
        driver = driver_version()
        found += [f"Python {platform.python_version()}", f"NVIDIA driver {driver or 'not seen'}"]
        yield Finding(ok=None, what="versions", detail=", ".join(found))

    def _pod(self) -> Iterator[Finding]:
        yield _attempt("identity", lambda: _identity(self._settings, self._now))
        yield _attempt("GPUs", lambda: str(find_gpus(self._settings.visible_devices)))
        yield _weights(self._settings.weights_source)

    def _operator(self) -> Iterator[Finding]:
        url = self._settings.operator_url
        if url is None:
            said = "PEARL_OPERATOR_URL is not set, so nothing is ever lent: set it to the operator's loan API"
            yield Finding(ok=False, what="operator", detail=said)
        else:
            yield self._reach("operator", url, "/healthz")

    def _access(self) -> Iterator[Finding]:
        """Which way borrowers would take to the GPUs, with the operator's own sentences."""
        url, rollout = self._settings.operator_url, self._wanted.rollout
        if url is None or rollout is None:
            if rollout is None:
                yield Finding(ok=None, what="access", detail="pass --rollout NAME to ask how borrowers reach the GPUs")
            return
        try:
            request = endpoints.access(url, self._token(), AccessRequest(rollout, self._wanted.namespace))
            answer = AccessAnswer.from_wire(self._driver.run(call(request)))
        except PearlError as error:
            old = isinstance(error, Rejected) and error.status == _TOO_OLD and not error.reason
            said = "this operator does not tell: update it" if old else str(error)
            yield Finding(ok=None if old else False, what="access", detail=said)
            return
        chosen = next((option for option in answer.options if option.chosen), None)
        detail = f"{answer.wanted}: {chosen.access if chosen else 'no way is open, so register() would be refused'}"
        yield Finding(ok=chosen is not None, what="access", detail=detail)
        for option in answer.options:
            mark = True if option.chosen else None if option.possible or chosen else False
            yield Finding(ok=mark, what=f"access by {option.access}", detail=f"{option.reason}. {option.message}")

    def _gateway(self) -> Iterator[Finding]:
        url, file = self._settings.gateway_url, self._settings.gateway_token_file
        if url is None:
            yield Finding(ok=None, what="gateway", detail="register() will tell its address")
            return
        yield self._reach("gateway", url, "/health")
        if file is not None:
            yield _attempt("gateway token", lambda: self._accepted(url, file))

    def _accepted(self, url: str, file: str) -> str:
        token = settings_module.read_token(file, "PEARL_GATEWAY_TOKEN_FILE")
        outcome = self._driver.run(send(Request("GET", f"{url}/v1/stats", token, timeout_seconds=REACH_SECONDS)))
        if not isinstance(outcome, NoReply) and outcome.status == _UNAUTHORIZED:
            raise ConfigurationError(f"the gateway refuses the token in {file}: mount the Secret NAME-pearl-client")
        return f"{file} is accepted" if not isinstance(outcome, NoReply) else f"not checked ({outcome.error})"

    def _borrowers(self) -> Iterator[Finding]:
        """The agents that a reclaim will need, asked over the same network."""
        url, rollout = self._settings.operator_url, self._wanted.rollout
        if not self._wanted.enrol or url is None or rollout is None:
            yield Finding(ok=None, what="agents", detail="pass --enrol (with --rollout) to register and look at them")
            return
        try:
            gpus = find_gpus(self._settings.visible_devices).uuids
            request = endpoints.register(url, self._token(), RegisterRequest(rollout, gpus, self._wanted.namespace))
            answer = RegisterAnswer.from_wire(self._driver.run(call(request)))
        except PearlError as error:
            yield Finding(ok=False, what="enrolment", detail=str(error))
            return
        epoch = f"{answer.slots} borrower(s), loan epoch {answer.epoch}"
        yield Finding(ok=True, what="enrolment", detail=f"{answer.namespace}/{answer.name}: {epoch}")
        for agent in answer.agents:
            if agent.url is None:
                yield Finding(ok=None, what=f"agent {agent.pod}", detail="has no address yet: is the pod scheduled?")
            else:
                yield self._reach(f"agent {agent.pod}", agent.url, "/healthz")
        if not answer.agents:
            yield Finding(ok=None, what="agents", detail="no borrower pod exists yet: run this again in some seconds")

    def _token(self) -> str:
        return settings_module.read_token(self._settings.token_file, "PEARL_TOKEN_FILE")

    def _reach(self, what: str, url: str, path: str) -> Finding:
        outcome = self._driver.run(send(Request("GET", url + path, timeout_seconds=REACH_SECONDS)))
        if isinstance(outcome, NoReply):
            hint = "check the URL, and that NetworkPolicies let this pod reach it"
            return Finding(ok=False, what=what, detail=f"{url} does not answer ({outcome.error}): {hint}")
        return Finding(ok=True, what=what, detail=f"{url} answers (HTTP status {outcome.status})")


def _attempt(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(ok=True, what=what, detail=check())
    except ConfigurationError as error:
        return Finding(ok=False, what=what, detail=str(error))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


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
    namespace = claims["kubernetes.io"].get("namespace")
    return f"pod {pod['name']} in namespace {namespace}, token valid for {left} s"


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


def _weights(source: str | None) -> Finding:
    if source is None:
        return Finding(ok=None, what="weights", detail="register() will tell spec.weights.source")
    return _attempt("weights", lambda: _published(source))


def _published(source: str) -> str:
    root = source_directory(source)
    if not os.access(root, os.W_OK):
        raise ConfigurationError(f"{root} cannot be written to: mount the volume without readOnly")
    return f"version {published_version(root)} at {source}"
