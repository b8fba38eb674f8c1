"""What both clients share: settings, enrolment arguments, and where gateway and weights are. No I/O but token files."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pearl_trainer import settings as settings_module
from pearl_trainer.core import Identity, LoanCore
from pearl_trainer.errors import ConfigurationError
from pearl_trainer.gateway import GatewayApi, no_gateway
from pearl_trainer.gpus import MemoryProbe, check_uuids, gpu_uuids
from pearl_trainer.messages import GroupRequest, RegisterAnswer, RegisterRequest
from pearl_trainer.ranks import Part, RankedLoan
from pearl_trainer.weights import Files, Published, publish, published_version, source_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_trainer.ranks import Hooks
    from pearl_trainer.settings import Settings

log = logging.getLogger("pearl_trainer")


@dataclass(frozen=True)
class Enrolment:
    """Arguments of `register`."""

    rollout: str
    gpus: Sequence[str] | None = None
    rollout_namespace: str | None = None
    group: str | None = None
    members: int | None = None


class Session:
    """State of one client, whichever driver it uses.

    Args:
        settings: From the environment.
        clock: Seconds that never go back.
        new_id: A fresh unique string at each call.
        probe: Reads the pod's GPUs.
    """

    def __init__(
        self, settings: Settings, *, clock: Callable[[], float], new_id: Callable[[], str], probe: MemoryProbe
    ) -> None:
        self.settings = settings
        self.gateway = GatewayApi(self.where, clock)
        self._clock = clock
        self._new_id = new_id
        self._probe = probe
        self._loans: list[LoanCore] = []
        self._told: tuple[str, str | None] | None = None

    def join(self, enrolment: Enrolment, hooks: Hooks) -> RankedLoan:
        """The loan of this pod, or this pod's part in a group; not yet enrolled.

        Raises:
            ConfigurationError: an argument must be changed.
        """
        settings, group, members = self.settings, enrolment.group, enrolment.members
        if members is not None and (group is None or settings.rank is None):
            raise ConfigurationError(
                "members is for a group of pods that all run this script under torchrun (RANK is set): pass group= "
                "too, or call register_group() in the driver instead"
            )
        gpus = enrolment.gpus
        found = gpu_uuids(settings.visible_devices) if gpus is None else check_uuids(gpus)
        pod = self._core(RegisterRequest(enrolment.rollout, found, enrolment.rollout_namespace, group))
        local = max(settings.local_world_size, settings.local_rank + 1)
        first = settings.local_rank == 0
        if group is None:
            part = Part(pod, leads=first, processes=local)
        elif members is None:
            why_not = f"this pod is one of group {group}, whose driver lends and reclaims"
            part = Part(pod, leads=False, processes=local, member=pod if first else None, why_not=why_not)
        else:
            whole = self._core(_group_request(enrolment))
            processes = max(settings.world_size, members)
            part = Part(whole, leads=settings.rank == 0, processes=processes, member=pod if first else None)
        return RankedLoan(part, hooks, present=settings.operator_url is not None)

    def drive(self, enrolment: Enrolment, hooks: Hooks) -> RankedLoan:
        """The loan of all pods of a group, held by its driver; not yet enrolled.

        Raises:
            ConfigurationError: an argument must be changed.
        """
        part = Part(self._core(_group_request(enrolment)), leads=True, processes=1)
        return RankedLoan(part, hooks, present=self.settings.operator_url is not None)

    def _core(self, request: RegisterRequest | GroupRequest) -> LoanCore:
        if not request.rollout:
            raise ConfigurationError("rollout is empty: pass the name of the PearlRollout that shall borrow")
        identity = Identity(self.settings.operator_url, self._token, request)
        # A driver's own reading says nothing about the GPUs of the other pods.
        probe = MemoryProbe(lambda: None) if isinstance(request, GroupRequest) else self._probe
        core = LoanCore(identity, clock=self._clock, new_id=self._new_id, probe=probe)
        self._loans.append(core)
        return core

    def publish(self, version: int, files: Files, source: str | None, options: dict[str, Any]) -> Published | None:
        """Publishes weights; None where PEARL is absent, so that nobody would read them.

        Raises:
            ConfigurationError: the rollout has no weights source, or another argument must be changed.
        """
        found = source or self._weights_source()
        if found is not None:
            return publish(found, version, files, **options)
        if self._registration() is not None:
            raise ConfigurationError(
                "the PearlRollout names no weights source: set its spec.weights.source, or pass source="
            )
        log.warning("weights version %d was not published: PEARL could not be reached yet", version)
        return None

    def published(self) -> int | None:
        """Version that the manifest names; None where nobody has said where weights go.

        Raises:
            ConfigurationError: the source is no directory here, or its manifest is damaged.
        """
        source = self._weights_source()
        return None if source is None else published_version(source_directory(source))

    def _weights_source(self) -> str | None:
        registration = self._registration()
        return self.settings.weights_source or (registration.weights_source if registration else None)

    def _registration(self) -> RegisterAnswer | None:
        return next((core.registration for core in reversed(self._loans) if core.registration is not None), None)

    def _token(self) -> str:
        return settings_module.read_token(self.settings.token_file, "PEARL_TOKEN_FILE")

    def where(self) -> tuple[str, str | None]:
        """URL of the gateway and its bearer token (None = no authentication).

        Raises:
            ConfigurationError: nobody has said where it is.
        """
        registration, settings = self._registration(), self.settings
        if self._told is not None:
            return self._told
        url = settings.gateway_url or (registration.gateway_url if registration else None)
        if url is None:
            raise no_gateway()
        if settings.gateway_token_file is not None:
            return url, settings_module.read_token(settings.gateway_token_file, "PEARL_GATEWAY_TOKEN_FILE")
        return url, registration.gateway_token if registration else None

    def tell_gateway(self, url: str, token: str | None) -> None:
        """Where the gateway is, as another rank knows it: only one of them registers."""
        self._told = (url, token)


def _group_request(enrolment: Enrolment) -> GroupRequest:
    if not enrolment.group or enrolment.members is None or enrolment.members < 1:
        raise ConfigurationError(
            f"group is {enrolment.group!r} and members {enrolment.members!r}: pass the name that the GPU pods register "
            "with, and how many pods they are"
        )
    return GroupRequest(enrolment.rollout, enrolment.group, enrolment.members, enrolment.rollout_namespace)
