"""Token counts of answers, and when a stream tells them."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pearl_gateway.turn_state import Turn


class StreamUsage(Enum):
    """When a stream tells its token counts."""

    NEVER = "never"
    AT_THE_END = "at the end"
    ALWAYS = "always"
    """With every event, and at the end."""


def stream_usage(body: dict[str, Any]) -> StreamUsage:
    """What `stream_options` ask for."""
    options = body.get("stream_options") or {}
    if not options.get("include_usage"):
        return StreamUsage.NEVER
    return StreamUsage.ALWAYS if options.get("continuous_usage_stats") else StreamUsage.AT_THE_END


def usage(turns: list[Turn], samples: int = 1) -> dict[str, int]:
    """Tokens of an answer; a prompt counts once for all its `samples`, as the engine counts it."""
    prompt = sum(len(turn.prompt) for turn in turns[::samples])
    return usage_of(prompt, sum(len(turn.token_ids) for turn in turns))


def usage_of(prompt: int, completion: int) -> dict[str, int]:
    """Token counts as OpenAI clients read them."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
