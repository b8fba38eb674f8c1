"""GPULoans, their Secrets and borrower pods in the API server; what is written goes into the index at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pearl_api import names
from pearl_operator import kinds
from pearl_operator.errors import AlreadyExists, Conflict
from pearl_operator.facts import loan_fact
from pearl_operator.loans import borrowers, enrol

if TYPE_CHECKING:
    from pearl_api.loan import GPULoanStatus
    from pearl_operator.facts import LoanFact, PodFact, RolloutFact
    from pearl_operator.index import Index
    from pearl_operator.loans.enrol import Enrolment
    from pearl_operator.ports import Kube, RolloutKey


@dataclass(frozen=True, slots=True)
class Store:
    """What the loan service keeps in the cluster."""

    kube: Kube
    index: Index
    numbering: dict[RolloutKey, set[int]] = field(default_factory=dict)
    """Slots of borrowers that are being made."""

    def loan(self, namespace: str, name: str) -> LoanFact | None:
        """The loan as indexed; own writes are in it at once."""
        return self.index.loans.get((namespace, name))

    def borrowers(self, loan: LoanFact) -> list[PodFact]:
        """Its borrower pods, by slot."""
        found = (
            pod
            for pod in self.index.pods.values()
            if pod.loan == loan.name
            and pod.address.namespace == loan.namespace
            and pod.owner_uid == loan.spec.trainer.uid
        )
        return sorted(found, key=lambda pod: pod.rank)

    def borrowers_of_group(self, namespace: str, group: str) -> list[PodFact]:
        """All borrower pods of a group, those of trainer pods that are gone too."""
        found = (
            pod
            for pod in self.index.pods.values()
            if pod.group == group and pod.address.namespace == namespace and pod.loan
        )
        return sorted(found, key=lambda pod: (pod.loan or "", pod.rank))

    async def create_loan(self, enrolment: Enrolment) -> LoanFact:
        """The GPULoan of this enrolment, made if it is missing.

        Raises:
            Conflict: an object of that name belongs to another enrolment.
        """
        body = borrowers.loan_object(enrolment)
        meta = body["metadata"]
        try:
            stored = await self.kube.create(kinds.LOAN, body)
        except AlreadyExists:
            found = await self.kube.get(kinds.LOAN, meta["name"], meta["namespace"])
            fact = loan_fact(found) if found is not None else None
            if found is None or fact is None or not enrol.same(fact, enrolment):
                raise Conflict(
                    f"GPULoan {meta['namespace']}/{meta['name']} is of an earlier enrolment and still going away"
                ) from None
            stored = found
        return self._indexed(stored)

    def _indexed(self, body: dict[str, object]) -> LoanFact:
        fact = self.index.put_loan(body)
        if fact is None:
            raise Conflict("the stored GPULoan cannot be read: are operator and CRDs of one release?")
        return fact

    async def write(self, loan: LoanFact, status: GPULoanStatus) -> LoanFact:
        """Stores a status; nothing is sent where it is unchanged."""
        if status == loan.status:
            return loan
        body = {
            "apiVersion": kinds.LOAN.api_version,
            "kind": kinds.LOAN.kind,
            "metadata": {"name": loan.name, "namespace": loan.namespace, "uid": loan.uid},
            "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        return self._indexed(await self.kube.apply_status(kinds.LOAN, body, manager=names.FIELD_MANAGER))

    async def delete_loan(self, loan: LoanFact) -> None:
        """Removes an enrolment that is another one now."""
        await self.kube.delete(kinds.LOAN, loan.name, loan.namespace, uid=loan.uid)

    async def ensure_secret(self, loan: LoanFact, root_key: str) -> None:
        """The Secret that the borrowers mount."""
        body = borrowers.secret_object(loan, root_key)
        await self.kube.apply(kinds.SECRET, body, manager=names.FIELD_MANAGER)

    async def ensure_borrowers(self, loan: LoanFact, rollout: RolloutFact, count: int) -> list[PodFact]:
        """Makes the borrower pods that are missing.

        Raises:
            Refused: the API server does not take the pod; the message is its sentence.
        """
        there = {pod.address.name: pod for pod in self.borrowers(loan)}
        wanted = [names.borrower_pod(loan.name, index) for index in range(count)]
        missing = [index for index, name in enumerate(wanted) if name not in there]
        making = self.numbering.setdefault(rollout.key, set())
        taken = {pod.slot for pod in self.index.workers_of(rollout.key) if pod.slot is not None}
        slots = borrowers.free_slots(taken | making, len(missing))
        making.update(slots)  # trainers enrol side by side
        try:
            for index, slot in zip(missing, slots, strict=True):
                await self._create_borrower(loan, rollout, index, slot)
        finally:
            making.difference_update(slots)
        return self.borrowers(loan)

    async def _create_borrower(self, loan: LoanFact, rollout: RolloutFact, index: int, slot: int) -> None:
        node = self.index.nodes.get(loan.spec.node)
        labels = dict(node.labels) if node is not None else {}
        hostname = labels.get(borrowers.HOSTNAME_LABEL, loan.spec.node)
        body = borrowers.borrower_pod(loan, rollout, index=index, slot=slot, hostname=hostname)
        try:
            stored = await self.kube.create(kinds.POD, body)
        except AlreadyExists:
            found = await self.kube.get(kinds.POD, body["metadata"]["name"], loan.namespace)
            if found is None:
                return  # it was going away; the next look makes it
            stored = found
        self.index.put_pod(stored)

    async def delete_borrower(self, pod: PodFact) -> None:
        """Removes one borrower pod; its agent stops the engine first."""
        address = pod.address
        await self.kube.delete(kinds.POD, address.name, address.namespace, uid=address.uid)
        self.index.mark_deleting(address.namespace, address.name, address.uid)

    async def dismantle(self, loan: LoanFact) -> None:
        """Removes borrowers and Secret; the GPULoan stays and tells what was."""
        for pod in self.borrowers(loan):
            if not pod.deleting:
                await self.delete_borrower(pod)
        await self.kube.delete(kinds.SECRET, enrol.loan_secret(loan.name), loan.namespace)
