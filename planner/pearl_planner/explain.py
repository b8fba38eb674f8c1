"""The numbers behind a decision in one or two sentences, for the status, an Event and a log line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_planner.types import Reason, Role, Shape

if TYPE_CHECKING:
    from pearl_planner.choice.choose import Verdict
    from pearl_planner.prediction.predict import Forecast
    from pearl_planner.types import Budget
    from pearl_planner.workload.profile import Profile


def compared(verdict: Verdict, present: Forecast, profile: Profile, dwell_left_seconds: float = 0.0) -> str:
    """What was predicted for the chosen shape against its best rival, and from what."""
    rival = _rival(verdict, present)
    parts = [f"{verdict.chosen.prediction.shape}: {_value(verdict.chosen)} predicted"]
    if rival is not None:
        parts.append(
            f" against {_value(rival, unit=False)} {rival.prediction.shape} ({_percent(verdict.chosen, rival)})"
        )
    cost = _cost(verdict, rival)
    if cost:
        parts.append(f", switch cost {cost:.1f} s")
    parts.append(_why_not(verdict, rival, dwell_left_seconds))
    return "".join(parts) + f"; {workload(profile)}"


def workload(profile: Profile) -> str:
    """From how many turns the numbers are, and the mean turn."""
    return (
        f"from {profile.turns} turns, prefill {profile.appended.mean:.0f} tokens and generation "
        f"{profile.generated.mean:.0f} tokens a turn, context {profile.context.mean:.0f}"
    )


def kept(shape: Shape, cause: str) -> str:
    """Why nothing optional changes."""
    return f"{describe(shape)} stays: {cause}"


def describe(shape: Shape) -> str:
    """A shape for people; the empty one too."""
    return str(shape) if shape.workers else "no workers"


def sizes(budget: Budget) -> str:
    """GPUs of one worker, by role where they differ."""
    if not budget.staged:
        return str(budget.gpus_per_worker)
    words = (f"{budget.gpus_of(role)} ({role.value})" for role in (Role.PREFILL, Role.DECODE, Role.COLOCATED))
    return ", ".join(words)


def _rival(verdict: Verdict, present: Forecast) -> Forecast | None:
    """The present shape when it is left, otherwise the best other one."""
    if verdict.chosen.prediction.shape != present.prediction.shape:
        return present
    others = [one for one in verdict.finalists if one.prediction.shape != present.prediction.shape]
    return next((one for one in others if one.prediction.feasible), None)


def _cost(verdict: Verdict, rival: Forecast | None) -> float:
    costs = [verdict.chosen.prediction.switch_cost_seconds]
    costs += [rival.prediction.switch_cost_seconds] if rival else []
    return max(costs)


def _value(forecast: Forecast, *, unit: bool = True) -> str:
    prediction = forecast.prediction
    if not prediction.feasible:
        return prediction.note or "not feasible"
    if prediction.makespan_seconds is not None:
        return f"rest of batch {prediction.makespan_seconds:.1f} s" if unit else f"{prediction.makespan_seconds:.1f} s"
    return f"{prediction.turns_per_second or 0:.3g} turns/s" if unit else f"{prediction.turns_per_second or 0:.3g}"


def _percent(chosen: Forecast, rival: Forecast) -> str:
    """By how much the chosen one is better (less time, or more turns)."""
    if not (chosen.prediction.feasible and rival.prediction.feasible):
        return "no comparison"
    if chosen.prediction.makespan_seconds is not None and rival.prediction.makespan_seconds:
        change = chosen.prediction.makespan_seconds / rival.prediction.makespan_seconds - 1
    else:
        change = (chosen.prediction.turns_per_second or 0) / (rival.prediction.turns_per_second or 1) - 1
    return f"{change * 100:+.0f} %".replace("-", "−")


def _why_not(verdict: Verdict, rival: Forecast | None, dwell_left_seconds: float) -> str:
    """Why a better shape is not taken; nothing where the chosen one is the best."""
    if verdict.reason is Reason.COOLING_DOWN:
        return f", waits {dwell_left_seconds:.0f} s after the last change"
    if verdict.reason is Reason.SWITCH_COST_TOO_HIGH:
        return ", the switch would cost more than it saves"
    if verdict.reason is Reason.WITHIN_DEADBAND and rival and rival.value_seconds < verdict.chosen.value_seconds:
        return ", the other is not better by the threshold"
    return ""
