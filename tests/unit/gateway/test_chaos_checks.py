"""What `make chaos-gateway` holds trajectories against sees what is lost, doubled, wrong or wrongly labelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from gateway_chaos.check import Found, check
from gateway_chaos.events import WEIGHTS, schedule
from gateway_chaos.reference import EmulatedReference
from gateway_chaos.traffic import Given, Told

if TYPE_CHECKING:
    from collections.abc import Callable

REFERENCE = EmulatedReference()
PROMPT, TOOL = [5, 6, 7], [8, 9]


async def told() -> Told:
    """Two turns; the second one goes on under version 1 after three tokens."""
    first, _ = await REFERENCE.continues(PROMPT, 0, 6)
    second_prompt = [*PROMPT, *first, *TOOL]
    old, _ = await REFERENCE.continues(second_prompt, 0, 3)
    new, _ = await REFERENCE.continues(second_prompt + old, 1, 4)
    ids = [*second_prompt, *old, *new]
    spans = [(0, 0, 3, 9, "complete"), (1, 0, 11, 14, "workerLost"), (1, 1, 14, 18, "complete")]
    versions, logprobs = [None] * 18, [None] * 18
    for _, version, start, end, _ in spans:
        _, found = await REFERENCE.continues(ids[:start], version, end - start)
        versions[start:end], logprobs[start:end] = [version] * (end - start), found
    export: dict[str, Any] = {
        "tokenIds": ids,
        "lossMask": [0 if one is None else 1 for one in versions],
        "versions": versions,
        "logprobs": logprobs,
        "segments": [
            {"turn": turn, "worker": "w", "prefillWorker": None, "version": v, "start": a, "end": b, "reason": why}
            for turn, v, a, b, why in spans
        ],
    }
    turns = [
        Given(0, PROMPT, 6, (), first, "length"),
        Given(1, second_prompt, 7, (), [*old, *new], "length"),
    ]
    return Told("t", turns, export=export)


async def found(one: Told) -> Found:
    result = Found()
    await check(one, REFERENCE, result, newest=1)
    return result


async def test_whole_trajectory_is_good() -> None:
    result = await found(await told())
    assert (result.good, result.checked_tokens, result.seams) == (True, 13, 1)


def lose_in_log(one: Told) -> None:
    one.turns[0].token_ids = [*one.turns[0].token_ids[:2], 77, *one.turns[0].token_ids[2:]]
    one.turns[0].most += 1


def double_in_log(one: Told) -> None:
    del one.turns[0].token_ids[2]
    one.turns[0].most -= 1


def label_wrongly(one: Told) -> None:
    assert one.export is not None
    one.export["versions"][14:18] = [0] * 4
    one.export["segments"][2]["version"] = 0


def take_back(one: Told) -> None:
    one.turns[1].partials.append((0, [*one.turns[1].token_ids[:1], 77]))


def end_early(one: Told) -> None:
    one.turns[1].most += 2


def run_on(one: Told) -> None:
    text = REFERENCE.text(one.turns[1].token_ids) or ""
    one.turns[1].stops = (text[1:3],)


def change_logprob(one: Told) -> None:
    assert one.export is not None
    one.export["logprobs"][4] -= 0.5


@pytest.mark.parametrize(
    ("spoil", "lost", "doubled", "mismatched"),
    [
        (lose_in_log, 1, 0, 0),
        (double_in_log, 0, 1, 0),
        (label_wrongly, 0, 0, 4),
        (take_back, 0, 0, 1),
        (end_early, 2, 0, 0),
        (run_on, 0, 0, 4),
        (change_logprob, 0, 0, 1),
    ],
)
async def test_what_is_wrong_is_counted(
    spoil: Callable[[Told], None], lost: int, doubled: int, mismatched: int
) -> None:
    one = await told()
    spoil(one)
    result = await found(one)
    assert (result.lost_tokens, result.duplicated_tokens, result.mismatched) == (lost, doubled, mismatched)


async def test_what_a_killed_gateway_had_streamed_is_counted_apart() -> None:
    one = await told()
    one.turns[1].partials.append((1, [77, 78]))
    one.turns[1].began_in, one.turns[1].answered_in = 1, 2
    result = await found(one)
    assert (result.good, result.turns_run_again, result.tokens_run_again) == (True, 1, 2)


def test_the_same_seed_gives_the_same_events() -> None:
    first, again, other = (list(schedule(seed, 50, WEIGHTS)) for seed in ("a", "a", "b"))
    assert first == again != other
