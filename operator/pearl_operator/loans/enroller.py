"""Enrols trainer pods: one GPULoan, one Secret and k borrower pods each."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from pearl_api import tokens
from pearl_api.loan import LoanSlot
from pearl_api.wire.loans import RegisterAnswer
from pearl_operator import kinds
from pearl_operator.errors import Conflict, Refused
from pearl_operator.loans import enrol, identity, record
from pearl_operator.loans.problems import LoanProblem, LoanReason
from pearl_operator.loans.world import lease_seconds
from pearl_operator.ports import RolloutKey

if TYPE_CHECKING:
    from pearl_api.wire.loans import RegisterRequest
    from pearl_operator.facts import LoanFact
    from pearl_operator.loans.enrol import Enrolment
    from pearl_operator.loans.world import World

HEARTBEAT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Enroller:
    """Answers `register` and checks loan tokens."""

    world: World

    async def register(self, request: RegisterRequest, token: str) -> RegisterAnswer:
        """Enrols the pod that the token is bound to; a repeat gives the same answer.

        Raises:
            LoanProblem: it may not; the message says what to change.
            OperatorError: the API server does not answer.
        """
        enrolment = await self._allowed(request, token)
        caller = enrolment.caller
        async with self.world.memory((caller.namespace, caller.pod)).lock:
            loan = await self._enrol(enrolment)
        return await self._answer(loan, enrolment)

    async def _allowed(self, request: RegisterRequest, token: str) -> Enrolment:
        settings, store = self.world.settings, self.world.store
        if not settings.cluster_scoped:
            raise LoanProblem(
                LoanReason.LOANS_DISABLED,
                "this operator may not review tokens: set the chart's value rbac.clusterScoped to true",
                HTTPStatus.FORBIDDEN,
            )
        caller = await identity.review(store.kube, token)
        key = RolloutKey(request.rollout_namespace or settings.namespace, request.rollout)
        return enrol.check(
            request,
            caller=caller,
            trainer=await store.kube.get(kinds.POD, caller.pod, caller.namespace),
            rollout=store.index.rollouts.get(key),
            loans=store.index.loans.values(),
            namespaces=settings.namespaces,
        )

    async def _enrol(self, enrolment: Enrolment) -> LoanFact:
        caller, store = enrolment.caller, self.world.store
        known = store.loan(caller.namespace, caller.pod)
        if known is not None and not enrol.same(known, enrolment):
            await self._replace(known)
        loan = await store.create_loan(enrolment)
        await store.ensure_secret(loan, await self.world.keys.root_key(enrolment.rollout.key))
        try:
            pods = await store.ensure_borrowers(loan, enrolment.rollout, enrolment.borrowers)
        except Refused as error:
            raise LoanProblem(
                LoanReason.INVALID_BORROWER,
                f"the API server refuses the borrower pod: {error}; change spec.capacity.borrowed.podTemplate or "
                f"the policies of namespace {loan.namespace}",
            ) from error
        slots = [LoanSlot(pod=pod.address.name, uid=pod.address.uid) for pod in pods]
        return await store.write(loan, record.enrolled(loan.status, slots, gpus=len(loan.spec.gpus)))

    async def _replace(self, known: LoanFact) -> None:
        """Another pod of the same name, or other GPUs: the old enrolment must have ended."""
        if known.status.phase in record.ACTIVE:
            raise LoanProblem(
                LoanReason.ENROLLED_DIFFERENTLY,
                f"GPULoan {known.namespace}/{known.name} is lent with other GPUs or to another rollout: reclaim and "
                "close it before registering anew",
                HTTPStatus.CONFLICT,
            )
        await self.world.store.dismantle(known)
        await self.world.store.delete_loan(known)
        raise Conflict(f"an earlier enrolment of pod {known.name} is being removed", seconds=1.0)

    async def _answer(self, loan: LoanFact, enrolment: Enrolment) -> RegisterAnswer:
        key, spec = enrolment.rollout.key, enrolment.spec
        root = await self.world.keys.root_key(key)
        lease = lease_seconds(spec)
        return RegisterAnswer(
            namespace=loan.namespace,
            name=loan.name,
            token=tokens.loan_token(tokens.derive(root, "loan"), loan.namespace, loan.name),
            slots=enrolment.borrowers,
            agents=self.world.endpoints(loan),
            gateway_url=enrolment.rollout.status.gateway_url or self.world.resolver.gateway(key),
            gateway_token=tokens.derive(root, "client"),
            weights_source=spec.weights.source,
            reclaim_seconds=spec.policy.deadlines.reclaim_seconds,
            heartbeat_seconds=min(HEARTBEAT_SECONDS, lease / 3),
            ttl_seconds=lease,
            epoch=loan.status.epoch,
        )

    async def authorise(self, namespace: str, name: str, token: str) -> LoanFact:
        """The loan whose token this is; raises LoanProblem where there is none or it is another's."""
        loan = self.world.store.loan(namespace, name)
        if loan is None or loan.deleting or loan.status.phase in record.TERMINAL:
            raise LoanProblem(
                LoanReason.LOAN_NOT_FOUND,
                f"GPULoan {namespace}/{name} is not enrolled: register()",
                HTTPStatus.NOT_FOUND,
            )
        root = await self.world.keys.root_key(loan.rollout)
        expected = tokens.loan_token(tokens.derive(root, "loan"), namespace, name)
        if not tokens.matches(token, expected):
            raise LoanProblem(
                LoanReason.WRONG_TOKEN,
                f"the token is not that of GPULoan {namespace}/{name}: use the one that register() answered",
                HTTPStatus.UNAUTHORIZED,
            )
        return loan
