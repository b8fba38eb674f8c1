"""What a run may be asked for: every refusal names the option and what to change."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pearl_gateway.load.plan import LOWEST_TOKEN

if TYPE_CHECKING:
    from pearl_gateway.load.run import LoadSpec

_NAME = re.compile(r"[A-Za-z0-9._:/@-]{1,150}")
_WHOLE = {"groups": 1, "group_size": 1, "step": 0, "context": 2, "vocabulary": LOWEST_TOKEN + 1, "most_turns": 1}


def check_spec(spec: LoadSpec) -> None:
    """Raise ValueError for a number or an address with which nothing could be played."""
    for name, least in _WHOLE.items():
        _at_least(name, getattr(spec, name), least)
    style = spec.style
    _at_least("concurrency", style.concurrency, 1)
    for name, value in (("time_scale", style.time_scale), ("temperature", style.temperature)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{_option(name)} {value:g} must be a number from 0")
    for name in ("response_factor", "input_factor", "give_up_seconds"):
        _above_zero(name, getattr(spec, name))
    _above_zero("rate", style.rate)
    if not _NAME.fullmatch(spec.run):
        raise ValueError(f"--run {spec.run!r}: use 1 to 150 of letters, digits and . _ : / @ -")
    _check_address("the gateway's address", spec.url)
    if spec.reference is not None:
        _check_address("--reference", spec.reference)
        if style.temperature > 0:
            raise ValueError("--reference compares with greedy answers: leave --temperature at 0, or the reference out")


def _at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise ValueError(f"{_option(name)} {value} must be {least} or more")


def _above_zero(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{_option(name)} {value:g} must be a number above 0")


def _check_address(what: str, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{what} {url!r} must begin with http:// or https://, for example http://127.0.0.1:8080")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
