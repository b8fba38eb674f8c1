"""Enrols trainer pods (one GPULoan, one Secret and k borrower pods each), gives out handles, checks tokens."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from pearl_api import tokens
from pearl_api.loan import LoanSlot
from pearl_api.wire.loans import AccessOption, RegisterAnswer
from pearl_operator import kinds
from pearl_operator.errors import Conflict, Refused
from pearl_operator.loans import enrol, identity, record
from pearl_operator.loans.devices import UNKNOWN, look
from pearl_operator.loans.limits import Calls
from pearl_operator.loans.problems import LoanProblem, LoanReason
from pearl_operator.loans.units import Unit, is_over, members_of, unit_of
from pearl_operator.loans.world import lease_seconds
from pearl_operator.ports import RolloutKey

if TYPE_CHECKING:
    from pearl_api.rollout import PearlRolloutSpec
    from pearl_api.wire.loans import AccessAnswer, AccessRequest, GroupRequest, LendRequest, RegisterRequest
    from pearl_operator.facts import LoanFact, RolloutFact
    from pearl_operator.loans.devices import Devices
    from pearl_operator.loans.enrol import Enrolment
    from pearl_operator.loans.identity import Caller
    from pearl_operator.loans.world import World
    from pearl_operator.ports import Object

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
        root = await self.world.keys.root_key(loan.rollout)
        token = tokens.loan_token(root, loan.namespace, loan.name, loan.spec.trainer.uid)
        return await self._answer(unit_of(loan), enrolment.rollout, enrolment.spec, token)

    async def _allowed(self, request: RegisterRequest, token: str) -> Enrolment:
        caller, trainer = await self._caller_and_pod(token)
        return enrol.check(
            request,
            caller=caller,
            trainer=trainer,
            rollout=self.world.store.index.rollouts.get(self._rollout_key(request)),
            loans=self.world.store.index.loans.values(),
            namespaces=self.world.settings.namespaces,
            devices=await self._devices(trainer),
            visible_allowed=self.world.settings.may_use_visible_devices(caller.namespace),
        )

    async def access(self, request: AccessRequest, token: str) -> AccessAnswer:
        """How borrowers would reach the GPUs of the pod that the token is bound to; enrols nothing.

        Raises:
            LoanProblem: it may not lend at all; the message says what to change.
            OperatorError: the API server does not answer.
        """
        caller, trainer = await self._caller_and_pod(token)
        return enrol.access_of(
            request,
            caller=caller,
            trainer=trainer,
            rollout=self.world.store.index.rollouts.get(self._rollout_key(request)),
            namespaces=self.world.settings.namespaces,
            devices=await self._devices(trainer),
            visible_allowed=self.world.settings.may_use_visible_devices(caller.namespace),
        )

    async def _caller_and_pod(self, token: str) -> tuple[Caller, Object | None]:
        """Who asks, and the pod as the API server has it now."""
        caller = await self._caller(token)
        return caller, await self.world.store.kube.get(kinds.POD, caller.pod, caller.namespace)

    async def _devices(self, trainer: Object | None) -> Devices:
        return UNKNOWN if trainer is None else await look(self.world.store.kube, trainer)

    async def _caller(self, token: str) -> Caller:
        """The pod of a projected token, as the API server reviews it."""
        if not self.world.settings.cluster_scoped:
            raise LoanProblem(
                LoanReason.LOANS_DISABLED,
                "this operator may not review tokens: set the chart's value rbac.clusterScoped to true",
                HTTPStatus.FORBIDDEN,
            )
        self._count(Calls.REGISTER, hashlib.sha256(token.encode()).hexdigest())
        self._count(Calls.REVIEW, "")
        return await identity.review(self.world.store.kube, token)

    def _rollout_key(self, request: RegisterRequest | GroupRequest | AccessRequest) -> RolloutKey:
        return RolloutKey(request.rollout_namespace or self.world.settings.namespace, request.rollout)

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
        access = [option.record() for option in enrolment.access.options]
        status = record.enrolled(loan.status, slots, gpus=len(loan.spec.gpus), access=access)
        return await self.world.write(loan, status)

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

    async def _answer(self, unit: Unit, rollout: RolloutFact, spec: PearlRolloutSpec, token: str) -> RegisterAnswer:
        root = await self.world.keys.root_key(rollout.key)
        lease = lease_seconds(spec)
        return RegisterAnswer(
            namespace=unit.namespace,
            name=unit.name,
            path=unit.path,
            token=token,
            slots=sum(len(loan.spec.gpus) // spec.engine.tensor_parallel for loan in unit.loans),
            agents=await self.world.endpoints(unit),
            gateway_url=rollout.status.gateway_url or self.world.resolver.gateway(rollout.key),
            gateway_token=tokens.derive(root, "client"),
            weights_source=spec.weights.source,
            reclaim_seconds=spec.policy.deadlines.reclaim_seconds,
            heartbeat_seconds=min(HEARTBEAT_SECONDS, lease / 3),
            ttl_seconds=lease,
            epoch=unit.epoch,
            access=[AccessOption(**each.model_dump()) for loan in unit.loans[:1] for each in loan.status.access],
        )

    async def register_group(self, request: GroupRequest, token: str) -> RegisterAnswer:
        """Gives the pod that the token is bound to the handle of a group, whoever had it before.

        Raises:
            LoanProblem: it may not; the message says what to change.
            OperatorError: the API server does not answer.
        """
        caller, trainer = await self._caller_and_pod(token)
        key = self._rollout_key(request)
        loans = members_of(self.world.store.index.loans.values(), caller.namespace, request.group)
        rollout, spec = enrol.check_driver(
            request,
            caller=caller,
            trainer=trainer,
            rollout=self.world.store.index.rollouts.get(key),
            members=loans,
            namespaces=self.world.settings.namespaces,
        )
        unit = Unit(namespace=caller.namespace, name=request.group, rollout=key, loans=loans, group=True)
        root = await self.world.keys.root_key(key)
        return await self._answer(unit, rollout, spec, tokens.group_token(root, unit.namespace, unit.name))

    async def authorised(self, namespace: str, name: str, token: str, calls: Calls, *, group: bool) -> Unit:
        """The loan or group whose token this is; a call of it is counted.

        Raises:
            LoanProblem: there is none, the token is another's, or it calls too often.
        """
        unit = self._group(namespace, name) if group else self._loan(namespace, name)
        root = await self.world.keys.root_key(unit.rollout)
        uid = unit.loans[0].spec.trainer.uid
        expected = tokens.group_token(root, namespace, name) if group else tokens.loan_token(root, namespace, name, uid)
        if not tokens.matches(token, expected):
            raise LoanProblem(
                LoanReason.WRONG_TOKEN,
                f"the token is not that of {unit.path}: use the one that register() of this very pod answered",
                HTTPStatus.UNAUTHORIZED,
            )
        self._count(calls, unit.path)
        return unit

    def _loan(self, namespace: str, name: str) -> Unit:
        loan = self.world.store.loan(namespace, name)
        if loan is None or loan.deleting or is_over(loan):
            raise LoanProblem(
                LoanReason.LOAN_NOT_FOUND,
                f"GPULoan {namespace}/{name} is not enrolled: register()",
                HTTPStatus.NOT_FOUND,
            )
        return unit_of(loan)

    def _group(self, namespace: str, name: str) -> Unit:
        loans = members_of(self.world.store.index.loans.values(), namespace, name)
        if not loans:
            raise LoanProblem(
                LoanReason.GROUP_NOT_FOUND,
                f"no GPU pod of {namespace} has registered with group {name} (yet): register them with this group, "
                "then register the group again",
                HTTPStatus.NOT_FOUND,
            )
        return Unit(namespace=namespace, name=name, rollout=loans[0].rollout, loans=loans, group=True)

    def check_may_lend(self, unit: Unit, request: LendRequest) -> None:
        """Raises LoanProblem where this handle cannot lend at all."""
        group = None if unit.group else unit.loans[0].spec.group
        if group is not None:
            raise LoanProblem(
                LoanReason.MEMBER_OF_GROUP,
                f"pod {unit.name} is registered with group {group}, which is lent as a whole: lend from its driver "
                f"(/v1/groups/{unit.namespace}/{group}/lend), or register without a group",
                HTTPStatus.CONFLICT,
            )
        if unit.group and request.members is None:
            raise LoanProblem(
                LoanReason.INVALID_BODY, "body.members: say how many GPU pods the group has, as in /v1/groups/register"
            )

    def _count(self, calls: Calls, caller: str) -> None:
        seconds = self.world.limits.wait_seconds(calls, caller, self.world.clock.monotonic())
        if seconds > 0:
            raise LoanProblem(
                LoanReason.TOO_MANY_CALLS,
                f"more than {calls.value.per_second:g} calls of this kind per second ({calls.value.burst:g} at once): "
                f"wait {seconds:.1f} s; is the trainer calling in a loop?",
                HTTPStatus.TOO_MANY_REQUESTS,
                seconds,
            )
