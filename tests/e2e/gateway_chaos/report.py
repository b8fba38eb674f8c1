"""The figures of a run, and how to play it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway_chaos.events import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway_chaos.run import Result

_SHOWN = 20
_GATEWAY_KINDS = (Kind.GATEWAY_KILL, Kind.GATEWAY_RESTART)


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Sums over all acts."""
    found = [one.found for one in results]
    return {
        "events": sum(sum(one.events.values()) for one in results),
        "trajectories": sum(one.trajectories for one in found),
        "lost_turns": sum(len(one.lost_turns) for one in results),
        "lost_tokens": sum(one.lost_tokens for one in found),
        "duplicated_tokens": sum(one.duplicated_tokens for one in found),
        "mismatched": sum(one.mismatched for one in found),
    }


def details(results: Sequence[Result]) -> dict[str, Any]:
    """Everything else."""
    kinds: dict[str, int] = {}
    for one in results:
        for kind, count in one.events.items():
            kinds[str(kind)] = kinds.get(str(kind), 0) + count
    return {
        "gateway_kills": {
            "kills": sum(one.events.get(kind, 0) for one in results for kind in _GATEWAY_KINDS),
            "turns_run_again": sum(one.found.turns_run_again for one in results),
            "tokens_run_again": sum(one.found.tokens_run_again for one in results),
            "not_handed_out": sum(one.not_handed_out for one in results),
        },
        "events_by_kind": dict(sorted(kinds.items())),
        "acts": [_act(one) for one in results],
        "problems": problems(results),
    }


def problems(results: Sequence[Result]) -> list[str]:
    """All that must not be."""
    return [
        f"{one.act.name}: {text}" for one in results for text in (*one.problems, *one.lost_turns, *one.found.problems)
    ]


def text(results: Sequence[Result], again: str) -> str:
    """For people."""
    told = problems(results)
    lines = [f"{name}: {value}" for name, value in summary(results).items()]
    lines += [f"gateway_kills: {details(results)['gateway_kills']}", *told[:_SHOWN]]
    if len(told) > _SHOWN:
        lines.append(f"… and {len(told) - _SHOWN} more, see --json")
    if told:
        lines.append(f"play it again: {again}")
    return "\n".join(lines)


def _act(one: Result) -> dict[str, Any]:
    found = one.found
    return {
        "name": one.act.name,
        "seconds": round(one.seconds, 1),
        "events": sum(one.events.values()),
        "seconds_per_event": round(one.seconds / max(1, sum(one.events.values())), 3),
        "trajectories": found.trajectories,
        "turns": one.turns,
        "checked_tokens": found.checked_tokens,
        "unchecked_tokens": found.unchecked_tokens,
        "unlabelled_tokens": found.unlabelled_tokens,
        "seams": found.seams,
        "segment_reasons": dict(sorted(found.reasons.items())),
        "repeats": one.repeats,
        "longest_turn_seconds": round(one.longest_turn[0], 2),
        "longest_turn": one.longest_turn[1],
        "versions": one.versions,
        "late_handoffs": one.late_handoffs,
        "gateway_counters": one.gateway,
    }
