"""`python -m pearl_operator.uninstall`: the chart's pre-delete hook.

Stops the operator and deletes what it made for the release's PearlRollouts (worker pods, gateways, Services, budgets,
Secrets, its Lease); the PearlRollouts and GPULoans stay, and an operator that is installed again picks them up.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pearl_api import names
from pearl_operator import kinds
from pearl_operator.calls import Calls
from pearl_operator.clock import SystemClock
from pearl_operator.errors import OperatorError, RetryAfter
from pearl_operator.kube import KubeClient, load_client
from pearl_operator.loans.enrol import loan_secret
from pearl_operator.settings import from_env

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pearl_operator.kinds import Kind
    from pearl_operator.ports import Clock, Kube, Object
    from pearl_operator.settings import Settings

OPERATOR: Final = "pearl-operator"
_OPERATOR_PODS: Final = {"app.kubernetes.io/name": OPERATOR}
_OURS: Final = {"app.kubernetes.io/managed-by": OPERATOR, names.LABEL_ROLLOUT: ""}
_KINDS: Final = (kinds.DEPLOYMENT, kinds.POD, kinds.SERVICE, kinds.DISRUPTION_BUDGET)
_SECRETS: Final = (names.worker_secret, names.gateway_secret, names.client_secret)
_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Uninstall:
    """One run; every step may be repeated."""

    kube: Kube
    clock: Clock
    settings: Settings

    async def run(self) -> int:
        """Does all of it and returns how many objects were deleted.

        It ends when the pods are gone; the Job's deadline bounds it.
        """
        await self._stop_operator()
        deleted = await self._delete(self.settings.namespace, _KINDS, _OURS)
        for namespace in self._trainer_namespaces():
            deleted += await self._delete(namespace, (kinds.POD,), self._borrowed())
        deleted += await self._delete_secrets()
        await self.kube.delete(kinds.LEASE, self.settings.lease_name, self.settings.namespace)
        await self._wait_until_gone(self.settings.namespace, _OURS)
        for namespace in self._trainer_namespaces():
            await self._wait_until_gone(namespace, self._borrowed())
        return deleted

    def _trainer_namespaces(self) -> tuple[str, ...]:
        return tuple(name for name in self.settings.trainer_namespaces if name != self.settings.namespace)

    def _borrowed(self) -> dict[str, str]:
        return {**_OURS, **self._rollouts_here()}

    def _rollouts_here(self) -> dict[str, str]:
        return {names.LABEL_ROLLOUT_NAMESPACE: self.settings.namespace}

    async def _stop_operator(self) -> None:
        """A running operator would make everything anew."""
        namespace = self.settings.namespace
        if await self.kube.get(kinds.DEPLOYMENT, OPERATOR, namespace) is not None:
            stopped: Object = {"metadata": {"name": OPERATOR, "namespace": namespace}, "spec": {"replicas": 0}}
            await self.kube.apply(kinds.DEPLOYMENT, stopped, manager="pearl-uninstall")
        await self._wait_until_gone(namespace, _OPERATOR_PODS)

    async def _delete(self, namespace: str, which: tuple[Kind, ...], labels: Mapping[str, str]) -> int:
        deleted = 0
        for kind in which:
            for item in await self.kube.list(kind, namespace, labels):
                await self.kube.delete(kind, item["metadata"]["name"], namespace, uid=item["metadata"]["uid"])
                deleted += 1
        return deleted

    async def _delete_secrets(self) -> int:
        """By name: nobody may list Secrets."""
        home = self.settings.namespace
        found = [(home, names.RELEASE_SECRET)]
        for rollout in await self.kube.list(kinds.ROLLOUT, home):
            found += [(home, secret(rollout["metadata"]["name"])) for secret in _SECRETS]
        for namespace in self.settings.namespaces:
            for loan in await self.kube.list(kinds.LOAN, namespace, self._rollouts_here()):
                found.append((namespace, loan_secret(loan["metadata"]["name"])))
        for namespace, name in found:
            await self.kube.delete(kinds.SECRET, name, namespace)
        return len(found)

    async def _wait_until_gone(self, namespace: str, labels: Mapping[str, str]) -> None:
        while await self.kube.list(kinds.POD, namespace, labels):
            await self.clock.sleep(_PAUSE_SECONDS)


async def _until_done(settings: Settings) -> int:
    clock = SystemClock()
    async with await load_client() as api:
        uninstall = Uninstall(
            KubeClient(api, Calls(clock), timeout_seconds=settings.call_timeout_seconds), clock, settings
        )
        while True:
            try:
                return await uninstall.run()
            except RetryAfter as error:
                sys.stderr.write(f"trying again: {error}\n")
                await clock.sleep(error.seconds)


def main() -> int:
    """0 = done; 1 = refused, with the API server's sentence on stderr."""
    try:
        deleted = asyncio.run(_until_done(from_env()))
    except OperatorError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"deleted {deleted} objects; PearlRollouts and GPULoans stay\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
