"""What PEARL promises, held against the record: each line of the report's first table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.common.promises import Promise, of_training

if TYPE_CHECKING:
    from collections.abc import Mapping

    from examples.demo.facts import Record


def check(
    record: Record,
    *,
    uids_before: Mapping[str, str],
    uids_after: Mapping[str, str],
    lost_turns: int,
    wanted_steps: int,
) -> None:
    """Append every promise with whether it was kept and what was seen."""
    say = record.checks.append
    none_lost = lost_turns == 0 and all(not load.lost_turns for load in record.loads)
    say(Promise("No turn is lost", none_lost, f"{lost_turns} lost"))
    checked = record.loads_checked
    if checked is not None:
        wrong = checked.mismatched_turns
        seen = f"{checked.turns} turns compared with an undisturbed engine, an engine killed meanwhile: {wrong} differ"
        say(Promise("Every token is right", wrong == 0, seen))
    shapes = list(dict.fromkeys(d.shape for d in record.decisions if d.rollout == "agents"))
    say(Promise("The shape follows the work", len(shapes) > 1, " → ".join(shapes)))
    same = dict(uids_before) == dict(uids_after)
    seen = f"{len(uids_after)} pods, the same UIDs" if same else "pods changed"
    say(Promise("Role changes replace no pod", same, seen))
    record.checks.extend(of_training(record.frozen, record.steps, wanted_steps=wanted_steps))
