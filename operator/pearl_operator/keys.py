"""The `Keys` port: root keys from their Secrets, remembered until the rollout goes."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from pearl_api import names
from pearl_operator import kinds
from pearl_operator.errors import Unavailable

if TYPE_CHECKING:
    from pearl_operator.ports import Kube, RolloutKey

KEY_FIELD = "key"
"""Key of the root key in the Secret's data."""


class SecretKeys:
    """See `ports.Keys`; a key never changes while its Secret lives."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._keys: dict[RolloutKey, str] = {}

    async def root_key(self, rollout: RolloutKey) -> str:
        """The root key of the rollout."""
        if rollout not in self._keys:
            self._keys[rollout] = await self._read(rollout)
        return self._keys[rollout]

    async def _read(self, rollout: RolloutKey) -> str:
        name = names.root_secret(rollout.name)
        secret = await self._kube.get(kinds.SECRET, name, rollout.namespace)
        encoded = (secret or {}).get("data", {}).get(KEY_FIELD)
        if not encoded:
            raise Unavailable(f"Secret {rollout.namespace}/{name} has no key `{KEY_FIELD}` yet")
        return base64.b64decode(encoded).decode()

    def forget(self, rollout: RolloutKey) -> None:
        """Called when the rollout is gone, or when its Secret was made anew."""
        self._keys.pop(rollout, None)
