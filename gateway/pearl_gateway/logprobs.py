"""Log-probabilities of text answers as the engine's own answers have them, where its derender endpoints differ.

They ignore `return_tokens_as_token_ids`, show the sampled token as the top one where none was asked for, count
offsets in streams by another text, and leave them out of streams where there are parsers (`tokens_out` asks again).
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

Json = dict[str, Any]

LOGPROB_CONTEXT = 4
"""Tokens before one that may be needed to name it: a character is at most four bytes."""


def for_derender(body: Json, entries: list[Json], *, chat: bool) -> Json:
    """`logprobs` of a token answer that is to become the text answer to `body`; `entries`: one per token."""
    if chat and not body.get("top_logprobs"):
        return {"content": [{**entry, "top_logprobs": []} for entry in entries]}
    return {"content": entries}


def named(body: Json, found: Json | None, entries: list[Json]) -> Json | None:
    """Log-probabilities of the text answer to `body`, tokens named by text or, where it asks for that, by id.

    Args:
        body: The client's request.
        found: As derendered: `content` of a chat, or the lists of a completion.
        entries: What it was derendered from.
    """
    if found is None or not entries or not body.get("return_tokens_as_token_ids"):
        return found
    if "content" in found:
        return {"content": [_spoken(one, entry) for one, entry in zip(found["content"], entries, strict=True)]}
    names = [_name(entry) for entry in entries]
    tops = [{_name(top): top["logprob"] for top in entry.get("top_logprobs") or ()} for entry in entries]
    return {**found, "text_offset": offsets(names), "tokens": names, "top_logprobs": tops}


def offsets(names: list[str], start: int = 0) -> list[int]:
    """Where each token begins if their names are written one after the other, from `start` on."""
    return list(accumulate(map(len, names[:-1]), initial=start)) if names else []


def _spoken(one: Json, entry: Json) -> Json:
    tops = zip(one["top_logprobs"], entry.get("top_logprobs") or (), strict=False)
    return {**one, "token": _name(entry), "top_logprobs": [_top(top, _name(from_)) for top, from_ in tops]}


def _top(top: Json, name: str) -> Json:
    return {**top, "token": name, "bytes": list(name.encode())}


def _name(entry: Json) -> str:
    return f"token_id:{entry['token_id']}"
