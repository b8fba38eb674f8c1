from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_gateway.jsons import dumps, loads

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES)
def test_it_says_what_the_standard_library_says(value: Any) -> None:
    said = dumps(value)
    assert json.loads(said) == loads(said) == loads(json.dumps(value).encode())


def test_what_only_the_standard_library_takes() -> None:
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    for value in (2**80, {1: "one"}, "\ud800", deep):
        assert json.loads(dumps(value)) == json.loads(json.dumps(value))
    assert math.isnan(loads(b"[NaN]")[0])
    assert dumps([math.nan, math.inf]) == b"[null,null]"  # no JSON has them
    assert loads(b'"\\ud800"') == "\ud800"
    assert loads("Zürich".encode("utf-16-le").join((b'"\x00', b'"\x00'))) == "Zürich"


def test_refusals() -> None:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number of JSON")

    with pytest.raises(ValueError, match="Infinity is no number"):
        loads(b'{"temperature": Infinity}', refuse)
    with pytest.raises(ValueError, match="Expecting value: line 1 column 8"):
        loads(b'{"a": [')
    with pytest.raises(RecursionError):
        loads(b"[" * 100_000)
    with pytest.raises(TypeError):
        dumps(object())
