"""Bearer tokens: derived from one HMAC key per rollout and checked offline by whoever holds the sub-key.

| token    | derived from            | holder                  | accepted by                         |
|----------|-------------------------|-------------------------|-------------------------------------|
| agent    | key, "agent"            | operator, gateway       | worker agents                       |
| engine   | key, "engine"           | gateway, worker agent   | the engine guard (inference paths)  |
| gateway  | key, "gateway"          | operator                | the gateway (statistics)            |
| client   | key, "client"           | RL framework, agents    | the gateway (inference, batches)    |
| loan key | key, "loan"             | operator, worker agents | -                                   |
| loan     | loan key, "ns/loan"     | the trainer's SDK       | worker agents, loan API             |
"""

import hashlib
import hmac
import secrets

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


def loan_token(loan_key: str, namespace: str, loan: str) -> str:
    """The token that a trainer presents for its loan; `loan_key` is `derive(key, "loan")`."""
    return derive(loan_key, f"{namespace}/{loan}")


def matches(presented: str, expected: str) -> bool:
    """Constant-time comparison; False where either side is empty."""
    return bool(presented) and bool(expected) and hmac.compare_digest(presented.encode(), expected.encode())
