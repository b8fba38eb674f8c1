"""Tokens derived from a rollout's key."""

from __future__ import annotations

import pytest

from pearl_api.tokens import derive, group_token, loan_token, matches, new_key

# RFC 4231, test case 2: key "Jefe", data "what do ya want for nothing?".
KEY, DATA = "Jefe", "what do ya want for nothing?"
DIGEST = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"


def test_a_token_is_the_hmac_of_its_purpose() -> None:
    assert derive(KEY, DATA) == DIGEST


def test_an_empty_key_yields_no_token() -> None:
    with pytest.raises(ValueError, match="is the rollout's Secret mounted"):
        derive("", "agent")


def test_no_two_loans_and_groups_share_a_token() -> None:
    key = new_key()
    made = [
        loan_token(key, "a", "trainer-0", "uid-1"),
        loan_token(key, "b", "trainer-0", "uid-1"),
        loan_token(key, "a", "trainer-0", "uid-2"),  # a later pod of that name
        group_token(key, "a", "trainer-0/uid-1"),
        group_token(key, "a", "trainer-0"),
    ]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    ("presented", "expected", "same"), [("x", "x", True), ("x", "y", False), ("", "", False), ("ä", "x", False)]
)
def test_only_equal_tokens_match_and_nothing_matches_nothing(presented: str, expected: str, same: bool) -> None:
    assert matches(presented, expected) is same
