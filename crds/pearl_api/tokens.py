"""Bearer tokens: derived from one HMAC key per rollout and checked offline by whoever holds the sub-key.

The key of a rollout (its root key) derives from the release's key and the rollout's UID; the operator alone has them.

| token    | derived from            | holder                  | accepted by                         |
|----------|-------------------------|-------------------------|-------------------------------------|
| agent    | key, "agent"            | operator, gateway       | worker agents of the rollout itself |
| engine   | key, "engine"           | gateway, worker agent   | the engine guard (inference paths)  |
| the same | agent or engine token,  | as above; in the        | agents and engines of that loan's   |
| of a loan| "ns/loan/uid"           | trainer's namespace     | borrowers, and of no other worker   |
| gateway  | key, "gateway"          | operator                | the gateway (statistics)            |
| client   | key, "client"           | RL framework, agents    | the gateway (inference, batches)    |
| loan key | key, "loan"             | operator                | -                                   |
| loan     | loan key, "ns/loan/uid" | trainer SDK, its agents | agents of that loan, loan API       |
| group    | loan key, "group:ns/…"  | SDK of the driver       | loan API, for that group            |
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from pearl_api.names import LABEL_LOAN

KEY_BYTES = 32


def new_key() -> str:
    """A fresh root key: 32 random bytes as 64 hex digits."""
    return secrets.token_hex(KEY_BYTES)


def derive(key: str, purpose: str) -> str:
    """HMAC-SHA256 of `purpose` under `key`, as 64 hex digits.

    Raises:
        ValueError: `key` is empty, so that a missing Secret never yields a guessable token.
    """
    if not key:
        raise ValueError("cannot derive a token from an empty key: is the rollout's Secret mounted?")
    return hmac.new(key.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def root_key(release_key: str, rollout_uid: str) -> str:
    """The key of one rollout: a later rollout of the same name has another."""
    return derive(release_key, f"rollout:{rollout_uid}")


def loan_token(key: str, namespace: str, loan: str, trainer_uid: str) -> str:
    """The token of one loan of one trainer pod: a later pod of the same name has another. `key` is the root key."""
    return derive(derive(key, "loan"), lender(namespace, loan, trainer_uid))


def lender(namespace: str, loan: str | None, trainer_uid: str | None) -> str:
    """Names one loan of one trainer pod; the same for all of its borrower pods."""
    return f"{namespace}/{loan or ''}/{trainer_uid or ''}"


def lender_of(metadata: Mapping[str, Any], home: str | None = None) -> str | None:
    """Whose loan the tokens of a worker pod are limited to; None of the rollout's own workers.

    `home`: the rollout's namespace; None = the pod's. Elsewhere no pod is shown the tokens of the rollout's own
    workers, whatever its labels are.
    """
    namespace, loan = metadata.get("namespace", ""), (metadata.get("labels") or {}).get(LABEL_LOAN)
    if loan is None and home in (None, namespace):
        return None
    return lender(namespace, loan, controller_uid(metadata))


def controller_uid(metadata: Mapping[str, Any]) -> str | None:
    """UID of what controls an object; of a borrower pod its trainer's."""
    return next((one.get("uid") for one in metadata.get("ownerReferences") or [] if one.get("controller")), None)


def of_borrower(token: str, lender_: str | None) -> str:
    """The agent or engine token of a loan's borrowers; `lender_` None = the rollout's own workers, whose it is as such.

    What a trainer's namespace can read, and what is sent to a pod there, opens nothing outside that loan.
    """
    return token if lender_ is None else derive(token, lender_)


def group_token(key: str, namespace: str, group: str) -> str:
    """The token that the driver of a group presents to the loan API; `key` is the root key."""
    return derive(derive(key, "loan"), f"group:{namespace}/{group}")


def matches(presented: str, expected: str) -> bool:
    """Constant-time comparison; False where either side is empty."""
    return bool(presented) and bool(expected) and hmac.compare_digest(presented.encode(), expected.encode())
