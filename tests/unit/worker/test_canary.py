"""What a canary's answer must look like for a worker to serve."""

from __future__ import annotations

from typing import Any

import pytest

from pearl_worker.engine_http import _checked_version
from pearl_worker.ports import CanaryError


def answer(*logprobs: Any, tokens: int = 4, versions: tuple[str, ...] = ("7",)) -> Any:
    spans = [{"version": version, "start": 0, "end": tokens} for version in versions]
    content = [{"logprob": logprob} for logprob in logprobs]
    return {"choices": [{"token_ids": [5] * tokens, "logprobs": {"content": content}, "weight_versions": spans}]}


def test_a_good_answer_tells_its_version() -> None:
    assert _checked_version(answer(-0.1, 0.0, -2.0, -11.0)) == "7"


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (answer(-0.1, -9999.0, -0.1, -0.1), "weights are damaged"),  # how vLLM writes NaN
        (answer(-0.1, float("nan"), -0.1, -0.1), "weights are damaged"),
        (answer(-0.1, None, -0.1, -0.1), "weights are damaged"),
        (answer(-0.1, tokens=1), "asked for 4 tokens"),
        (answer(-0.1, versions=("6", "7")), "not whole"),
        (answer(-0.1, versions=()), "not whole"),
        ({"choices": []}, "not whole"),
        ({"choices": [{"token_ids": [1], "logprobs": None, "weight_versions": []}]}, "not whole"),
        ("Internal Server Error", "not whole"),
    ],
)
def test_any_other_answer_is_a_fault(bad: Any, sentence: str) -> None:
    with pytest.raises(CanaryError, match=sentence):
        _checked_version(bad)
