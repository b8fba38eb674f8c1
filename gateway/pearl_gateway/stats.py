"""`GatewayStats`: everything the operator observes of this rollout, in one read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_api.wire.gateway import Counters, GatewayStats, LiveStates, TrajectoryProgress, WorkerView

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pearl_gateway.gateway import Gateway
    from pearl_gateway.tally import Tally
    from pearl_gateway.trajectory import Trajectory

MOST_UNFINISHED = 4096
"""Trajectories of a batch that the statistics tell of."""


def gateway_stats(gateway: Gateway, now: float) -> GatewayStats:
    """The statistics at `now` (the gateway's monotonic clock)."""
    live = [one for one in gateway.sessions.live.values() if not one.ephemeral]
    step = gateway.current_step()
    profile, profile_at = gateway.recorder.profile, gateway.recorder.profile_at
    versions = gateway.fleet.versions()
    return GatewayStats(
        rollout=gateway.settings.rollout,
        uptime_seconds=now - gateway.started_at,
        asked_seconds=gateway.tally.asked_seconds(now),
        profile=None if profile is None else profile.to_dict(),
        profile_age_seconds=None if profile_at is None else now - profile_at,
        batch=gateway.batches.progress(step) if step in gateway.batches.by_step else None,
        unfinished=[] if step is None else unfinished(live, step, now),
        live=live_states(gateway.tally, live),
        workers=worker_views(gateway, live),
        counters=counters(gateway.tally.totals()),
        window=gateway.routing.window,
        local_append_tokens=gateway.routing.local_append_tokens,
        weights_wanted=gateway.fleet.wanted_version(),
        weights_min=min(versions, default=None),
        weights_max=max(versions, default=None),
        ages_at_consumption=dict(gateway.tally.ages_at_consumption),
        refill=gateway.batches.refill,
        consumer=gateway.consumer.view(gateway.batches.ready(), now),
    )


def unfinished(live: list[Trajectory], step: int, now: float) -> list[TrajectoryProgress]:
    """Facts of the batch's trajectories that are under way, at most 4096."""
    of_batch = [one for one in live if one.step == step and one.traffic == "train"]
    return [one.progress(now) for one in of_batch[:MOST_UNFINISHED]]


def live_states(tally: Tally, live: list[Trajectory]) -> LiveStates:
    """What live trajectories do now."""
    return LiveStates(
        queued=tally.turns_queued,
        prefilling=tally.turns_prefilling,
        decoding=max(0, tally.turns_in_flight - tally.turns_queued - tally.turns_prefilling),
        environment=sum(one.idle_since is not None for one in live),
    )


def worker_views(gateway: Gateway, live: list[Trajectory]) -> list[WorkerView]:
    """Every known worker; the role epoch is acknowledged because routing already follows it."""
    resident: dict[str, int] = {}
    for one in live:
        if one.home is not None:
            resident[one.home] = resident.get(one.home, 0) + len(one.ids) - one.context_start
    return [
        WorkerView(
            uid=uid,
            pod=worker.facts.pod,
            role=worker.facts.role,
            acked_epoch=worker.facts.role_epoch,
            activity=worker.facts.activity,
            ready=worker.facts.ready and not worker.ejected,
            in_flight=worker.in_flight,
            resident_tokens=resident.get(uid, 0),
            weight_version=worker.weight_version,
            first_token_in_role_seconds=worker.first_token_in_role_seconds,
        )
        for uid, worker in gateway.fleet.workers.items()
    ]


def counters(totals: Mapping[str, int]) -> Counters:
    """The totals as the statistics tell them."""
    return Counters(**{name: totals[name] for name in Counters.model_fields})
