"""What was said up to the end of a turn, as digests: enough to see that a request goes on from there.

The texts themselves are the client's; the gateway keeps token ids.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

_SHAPES_PROMPT = ("tools", "tool_choice", "chat_template", "chat_template_kwargs", "documents", "add_special_tokens")


@dataclass(frozen=True, slots=True)
class Said:
    """A conversation with its last answer, or a text with its completion."""

    length: int
    """Messages, or characters."""
    digest: str
    shape: str | None
    """Of everything beside the messages that the template sees; None of a text."""

    def begins_chat(self, body: dict[str, Any]) -> bool:
        """Whether a chat request goes on from here, with the same tools and template."""
        messages = body["messages"]
        return (
            self.shape is not None
            and len(messages) > self.length
            and self.shape == shape_of(body)
            and self.digest == _messages_digest(messages[: self.length])
        )

    def begins_text(self, prompt: str) -> bool:
        """Whether a text prompt goes on from here."""
        return self.shape is None and self.digest == digest_of(prompt[: self.length])


@dataclass(frozen=True, slots=True)
class Base:
    """Where a request goes on from: the ids up to there, and what they mean to the client if that is known."""

    ids: list[int]
    said: Said | None


def said_chat(body: dict[str, Any], answer: dict[str, Any]) -> Said:
    """After `answer` (an assistant message) to the request `body`."""
    messages = [*body["messages"], answer]
    return Said(len(messages), _messages_digest(messages), shape_of(body))


def said_text(text: str) -> Said:
    """After a text prompt and its completion."""
    return Said(len(text), digest_of(text), None)


def asked(body: dict[str, Any]) -> str:
    """Digest of what makes a prompt: a request of the same key and digest is a retry, and need not be rendered."""
    return digest_of(json.dumps([body.get("prompt"), body.get("messages"), shape_of(body)], sort_keys=True))


def shape_of(body: dict[str, Any]) -> str:
    """Digest of everything beside the messages that the template sees."""
    return digest_of(json.dumps([body.get(name) for name in _SHAPES_PROMPT], sort_keys=True))


def digest_of(text: str) -> str:
    """Equal texts have equal ones."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _messages_digest(messages: list[dict[str, Any]]) -> str:
    return digest_of("\n".join(map(_canonical, messages)))


def _canonical(message: dict[str, Any]) -> str:
    """A message without what clients add, drop or fill with defaults."""
    found = message.get("tool_calls")
    functions = [_object(_object(call).get("function")) for call in found] if isinstance(found, list) else []
    calls = [[function.get("name"), function.get("arguments")] for function in functions]
    said = [message.get("role"), message.get("content") or "", calls, message.get("tool_call_id") or ""]
    return json.dumps(said, sort_keys=True)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
