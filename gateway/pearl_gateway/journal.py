"""Turns as lines of the journal, and trajectories from these lines: the token log across a restart of the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pearl_api.wire.gateway import SegmentReason
from pearl_gateway.chunks import Span
from pearl_gateway.said import Said
from pearl_gateway.trajectory import Trajectory
from pearl_gateway.turn_state import Piece, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable


def turn_line(trajectory: Trajectory, turn: Turn) -> dict[str, Any]:
    """One turn that is about to enter the log; call it before `Trajectory.commit`."""
    extends = trajectory.extends(turn.prompt)
    return {
        "trajectory": trajectory.id,
        "group": trajectory.group,
        "class": trajectory.traffic,
        "step": trajectory.step,
        "turn": turn.number,
        "attempt": turn.attempt,
        "parent": turn.parent,
        "asked": turn.asked,
        "extends": extends,
        "new": turn.prompt[len(trajectory.context) :] if extends else turn.prompt,
        "answer": turn.token_ids,
        "logprobs": turn.logprobs,
        "finish": [turn.finish_reason, turn.stop_reason],
        "pieces": [
            {
                "worker": piece.worker,
                "prefill": piece.prefill_worker,
                "spans": [[span.version, span.start, span.end] for span in piece.spans],
                "range": [piece.start, piece.end],
                "reason": piece.reason.value,
                "experts": piece.routed_experts,
            }
            for piece in turn.pieces
        ],
    }


def said_line(trajectory: Trajectory, number: int, said: Said) -> dict[str, Any]:
    """What was said up to the end of a turn whose line is there already."""
    return {"trajectory": trajectory.id, "said": [number, said.length, said.digest, said.shape]}


def restore(lines: Iterable[dict[str, Any]], now: float) -> dict[str, Trajectory]:
    """Live trajectories as their lines tell, idle since `now`."""
    found: dict[str, Trajectory] = {}
    for line in lines:
        name = line["trajectory"]
        trajectory = found.get(name)
        if "said" in line:
            if trajectory is not None:
                number, *rest = line["said"]
                trajectory.said[number] = Said(*rest)
            continue
        if trajectory is None:
            trajectory = found[name] = Trajectory(
                id=name,
                group=line["group"],
                traffic=line["class"],
                step=line["step"],
                created_at=now,
                last_activity=now,
                idle_since=now,
            )
        _replay(trajectory, line)
    return found


def _replay(trajectory: Trajectory, line: dict[str, Any]) -> None:
    former = trajectory.turns.get(line["turn"])
    if former is not None and former.attempt < line["attempt"]:
        trajectory.withdraw(former)
    turn = Turn(
        trajectory=trajectory.id,
        number=line["turn"],
        attempt=line["attempt"],
        prompt=[*trajectory.context, *line["new"]] if line["extends"] else line["new"],
        sampling={},
        parent=line.get("parent"),
        asked=line.get("asked", ""),
        token_ids=line["answer"],
        logprobs=line["logprobs"],
        pieces=[_piece(one) for one in line["pieces"]],
        visible=len(line["answer"]),
        settled=True,
    )
    turn.finish_reason, turn.stop_reason = line["finish"]
    trajectory.commit(turn)
    trajectory.turns[turn.number] = turn
    if turn.complete:
        trajectory.turns_done += 1
        trajectory.slim(turn)


def _piece(line: dict[str, Any]) -> Piece:
    spans = tuple(Span(*span) for span in line["spans"])
    start, end = line["range"]
    reason = SegmentReason(line["reason"])
    return Piece(line["worker"], line["prefill"], spans, start, end, reason, line.get("experts"))
