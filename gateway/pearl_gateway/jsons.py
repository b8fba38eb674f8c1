"""JSON of the data path, several times faster than the standard library's, which takes over what the fast one refuses.

Refused are NaN and infinities (read; written, they become null), lone surrogates, whole numbers beyond 64 bits
(written; read, they become floats), nesting deeper than 254 (written), and other encodings than UTF-8.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable


def dumps(content: Any) -> bytes:
    """Compact JSON.

    Raises:
        TypeError, ValueError: there is no JSON for it.
    """
    try:
        return orjson.dumps(content)
    except orjson.JSONEncodeError:
        return json.dumps(content, separators=(",", ":")).encode()


def loads(data: bytes, no_number: Callable[[str], Any] | None = None) -> Any:
    """What `data` says; `no_number` makes something of NaN and infinities, which are no JSON.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data, parse_constant=no_number)
