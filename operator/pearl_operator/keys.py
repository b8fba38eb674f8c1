"""The `Keys` port: one Secret holds the release's key, and the root key of each rollout derives from it.

So the operator reads one Secret, whose name its Role gives, and no other.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from pearl_api import names, tokens
from pearl_operator import kinds
from pearl_operator.errors import AlreadyExists, Unavailable
from pearl_operator.resources.secrets import KEY_FIELD, release_secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_operator.ports import Kube, RolloutKey


class SecretKeys:
    """See `ports.Keys`. A rollout's key depends on its UID: a later rollout of the same name has another."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        uid_of: Callable[[RolloutKey], str | None],
        new_key: Callable[[], str] = tokens.new_key,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._uid_of = uid_of
        self._new_key = new_key
        self._release: str | None = None

    async def root_key(self, rollout: RolloutKey) -> str:
        """The root key of the rollout."""
        uid = self._uid_of(rollout)
        if uid is None:
            raise Unavailable(f"PearlRollout {rollout} is not there")
        if self._release is None:
            await self.keep()
        return tokens.root_key(self._release or "", uid)

    async def keep(self) -> None:
        """Makes the Secret where it is missing, with the key in use; takes over the one that is there."""
        secret = await self._kube.get(kinds.SECRET, names.RELEASE_SECRET, self._namespace)
        if secret is None:
            key = self._release or self._new_key()
            try:
                await self._kube.create(kinds.SECRET, release_secret(self._namespace, key))
            except AlreadyExists as error:
                raise Unavailable(str(error), seconds=0.2) from error
            self._release = key
            return
        encoded = (secret.get("data") or {}).get(KEY_FIELD)
        if not encoded:
            raise Unavailable(f"Secret {self._namespace}/{names.RELEASE_SECRET} has no `{KEY_FIELD}`: delete it")
        self._release = base64.b64decode(encoded).decode()
