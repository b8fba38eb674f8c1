"""Where a turn goes: a pure choice."""

from __future__ import annotations

from typing import Any

import pytest

from pearl_api.names import Role
from pearl_gateway.router import Ask, Candidate, Route, RouteKind, choose
from pearl_gateway.versions import Accepted

C, P, D = Role.COLOCATED, Role.PREFILL, Role.DECODE


def worker(uid: str, role: Role, load: float = 0.0, **more: Any) -> Candidate:
    return Candidate(uid=uid, role=role, load=load, **more)


def test_nobody_there_is_no_route() -> None:
    assert choose([], Ask(prompt_tokens=10)) is None


def test_least_busy_colocated_worker_is_taken() -> None:
    fleet = [worker("a", C, 3), worker("b", C, 1), worker("c", C, 2)]
    assert choose(fleet, Ask(prompt_tokens=10)) == Route(RouteKind.COLOCATED, "b")


def test_worker_with_the_context_is_kept_until_it_is_much_busier() -> None:
    ask = Ask(prompt_tokens=10, home="a")
    # Kept up to 2 × the idlest + 4: with the idlest at 1, that is 6.
    assert choose([worker("a", C, 6), worker("b", C, 1)], ask).worker == "a"
    assert choose([worker("a", C, 6.1), worker("b", C, 1)], ask).worker == "b"


def test_group_member_goes_where_the_groups_prompt_is() -> None:
    assert choose([worker("a", C), worker("b", C, 1)], Ask(prompt_tokens=10, group_home="b")).worker == "b"


def test_both_sides_present_is_a_handoff() -> None:
    fleet = [worker("p", P), worker("q", P, 2), worker("d", D, 1), worker("e", D)]
    assert choose(fleet, Ask(prompt_tokens=100)) == Route(RouteKind.HANDOFF, "e", "p")


@pytest.mark.parametrize(("cached", "kind"), [(90, RouteKind.LOCAL_APPEND), (89, RouteKind.HANDOFF)])
def test_local_append_up_to_the_threshold(cached: int, kind: RouteKind) -> None:
    ask = Ask(prompt_tokens=100, cached_tokens=cached, home="d", local_append_tokens=10)
    assert choose([worker("p", P), worker("d", D)], ask).kind is kind


def test_what_another_decode_worker_has_cached_does_not_count() -> None:
    ask = Ask(prompt_tokens=100, cached_tokens=95, home="gone", local_append_tokens=10)
    assert choose([worker("p", P), worker("d", D)], ask).kind is RouteKind.HANDOFF


@pytest.mark.parametrize("role", [P, D])
def test_one_side_missing_is_served_degraded_by_the_other(role: Role) -> None:
    assert choose([worker("a", role)], Ask(prompt_tokens=100)) == Route(RouteKind.DEGRADED, "a")


def test_broken_link_is_avoided_and_with_no_other_the_decode_worker_computes_itself() -> None:
    ask = Ask(prompt_tokens=100, bad_links=frozenset({("p", "d")}))
    assert choose([worker("p", P), worker("q", P, 3), worker("d", D)], ask).prefill == "q"
    assert choose([worker("p", P), worker("d", D)], ask) == Route(RouteKind.DEGRADED, "d")


def test_worker_that_just_failed_is_used_only_if_it_is_the_only_one() -> None:
    ask = Ask(prompt_tokens=10, home="a", excluded=frozenset({"a"}))
    assert choose([worker("a", C), worker("b", C, 9)], ask).worker == "b"
    assert choose([worker("a", C)], ask).worker == "a"


def test_first_turn_of_a_batch_waits_for_its_weight_version() -> None:
    old, new = worker("a", C, version=1), worker("b", C, 5, version=2)
    ask = Ask(prompt_tokens=10, weights=Accepted(2))
    assert choose([old, new], ask).worker == "b"
    assert choose([old], ask) is None


def test_while_roles_change_the_context_stays_where_it_is() -> None:
    fleet = [worker("a", C, 2), worker("p", P), worker("d", D)]
    assert choose(fleet, Ask(prompt_tokens=100, home="a")).worker == "a"
    assert choose(fleet, Ask(prompt_tokens=100, home="d")) == Route(RouteKind.HANDOFF, "d", "p")


def test_kv_never_goes_between_different_weights() -> None:
    fleet = [worker("p", P, version=1), worker("q", P, 3, version=2), worker("d", D, version=2)]
    assert choose(fleet, Ask(prompt_tokens=100)).prefill == "q"
    assert choose(fleet[:1] + fleet[2:], Ask(prompt_tokens=100)) == Route(RouteKind.DEGRADED, "d")
