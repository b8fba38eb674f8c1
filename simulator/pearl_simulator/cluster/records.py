"""What the gateway records of turns and trajectories, and the profile that it keeps of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_planner.workload.profile import TrajectoryRecord, TurnRecord, update

if TYPE_CHECKING:
    from pearl_planner.workload.profile import Profile
    from pearl_simulator.cluster.jobs import Job


class Records:
    """Records since the last look; the profile is brought up to date only when somebody looks."""

    __slots__ = ("_news", "_profile")

    def __init__(self) -> None:
        self._news: list[TurnRecord | TrajectoryRecord] = []
        self._profile: Profile | None = None

    def turn(self, job: Job, now: float, version: int) -> None:
        """The present turn of a trajectory is complete."""
        turn = job.script.turns[job.turn]
        before = job.script.turns[job.turn - 1] if job.turn else None
        self._news.append(
            TurnRecord(
                trajectory=job.name,
                turn=job.turn + 1,
                appended_tokens=turn.appended_tokens,
                generated_tokens=turn.generated_tokens,
                context_tokens=job.prompt,
                group=job.group.name,
                previous_generated_tokens=None if before is None else before.generated_tokens,
                retained_tokens=None if before is None else before.retained_tokens,
                environment_seconds=None if before is None else before.environment_seconds,
                route=job.route,
                moved=job.moved,
                cached_tokens=min(job.cached, job.prompt),
                inter_token_seconds=(now - job.first_token_at) / max(turn.generated_tokens - 1, 1),
                first_token_seconds=job.first_token_at - job.requested_at,
                weight_version=version,
            )
        )
        job.moved = False

    def trajectory(self, job: Job, cause: str) -> None:
        """A trajectory is over."""
        script = job.script
        made = script.turns[: job.turn]
        self._news.append(
            TrajectoryRecord(
                trajectory=job.name,
                turns=job.turn,
                group=job.group.name,
                cause=cause,
                generated_tokens=sum(turn.generated_tokens for turn in made),
                appended_tokens=sum(turn.appended_tokens for turn in made[1:]),
                reset_seconds=script.reset_seconds,
                reward_seconds=made[-1].environment_seconds if len(made) == len(script.turns) else None,
            )
        )

    def profile(self) -> Profile | None:
        """With everything up to now."""
        if self._news:
            self._profile = update(self._profile, self._news)
            self._news.clear()
        return self._profile
