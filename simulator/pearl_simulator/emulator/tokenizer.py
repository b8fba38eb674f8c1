"""The tokenizer and the chat template of the project's tiny test models: bytes, and four special tokens.

A token is one byte; ids order the bytes as the characters that byte-level BPE writes for them (printable Latin-1 first,
then the rest), which is how the `tiny` recipe of the worker image numbers them. So the emulator and a real engine that
serves `tiny` render the same ids for the same text, without any tokenizer library.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SPECIAL = {"<|im_end|>": 256, "<|pad|>": 257, "<|endoftext|>": 258, "<|im_start|>": 259}
END = SPECIAL["<|im_end|>"]
SIZE = 260
_NAMES = {number: name for name, number in SPECIAL.items()}
_SPLIT = re.compile("(" + "|".join(re.escape(name) for name in SPECIAL) + ")")
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in set(_PRINTABLE)]
_BYTES = bytes(_PRINTABLE + _OTHERS)
"""id → byte."""
_LETTERS = [*map(chr, _PRINTABLE), *(chr(256 + at) for at in range(len(_OTHERS)))]
"""id → the character that byte-level BPE writes for its byte."""
_IDS = bytes(_BYTES.index(byte) for byte in range(256))
"""byte → id."""


def encode(text: str) -> list[int]:
    """Token ids of a text; the names of special tokens are those tokens."""
    ids: list[int] = []
    for part in _SPLIT.split(text):
        special = SPECIAL.get(part)
        ids += [special] if special is not None else part.encode().translate(_IDS)
    return ids


def decode(token_ids: Iterable[int], *, keep_special: bool = False) -> str:
    """Text of token ids; ids without a text are left out, bytes that are no UTF-8 become U+FFFD."""
    return spelled(token_ids, keep_special=keep_special).decode("utf-8", "replace")


def spelled(token_ids: Iterable[int], *, keep_special: bool = False) -> bytes:
    """Bytes of token ids."""
    known = (one for one in token_ids if one in _NAMES or one < len(_BYTES))
    return b"".join(
        (_NAMES[one].encode() if keep_special else b"") if one in _NAMES else _BYTES[one : one + 1] for one in known
    )


def letter(token_id: int) -> str:
    """How a vocabulary file writes this token."""
    return _NAMES.get(token_id) or (_LETTERS[token_id] if token_id < len(_LETTERS) else "")


def of_letters(names: Iterable[str]) -> list[int]:
    """Ids of tokens written so; unknown ones are left out."""
    found = [_LETTERS.index(name) if name in _LETTERS else SPECIAL.get(name) for name in names]
    return [one for one in found if one is not None]


def complete_part(found: bytes) -> int:
    """How many leading bytes can be shown already: all but the start of a character that may still be completed."""
    for back in range(1, min(3, len(found)) + 1):
        lead = found[-back]
        if lead >= 0xC0:  # noqa: PLR2004 - the first byte of a longer character
            needed = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4  # noqa: PLR2004 - UTF-8's lengths
            return len(found) - back if needed > back else len(found)
        if lead < 0x80:  # noqa: PLR2004 - ASCII
            break
    return len(found)


def render_chat(
    messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, continue_final: bool = False
) -> str:
    """ChatML, as the recipe's template writes it."""
    text = "".join(f"<|im_start|>{one['role']}\n{_content(one)}<|im_end|>\n" for one in messages)
    if continue_final:
        return text.removesuffix("<|im_end|>\n")
    return text + "<|im_start|>assistant\n" if add_generation_prompt else text


def _content(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(str(part.get("text", "")) for part in content)
    calls = message.get("tool_calls") or []
    return content + "".join(f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in calls)
