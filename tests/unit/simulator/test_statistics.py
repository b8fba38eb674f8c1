import math

import pytest

from pearl_simulator.reporting.statistics import (
    Interval,
    mean_interval,
    mean_upper,
    quantile,
    ratio_interval,
    t_quantile,
    within,
)


@pytest.mark.parametrize(
    ("chance", "freedom", "expected"),
    [  # printed tables of Student's t
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 4, 2.776),
        (0.975, 9, 2.262),
        (0.95, 5, 2.015),
        (0.95, 199, 1.653),
        (0.975, 30, 2.042),
    ],
)
def test_quantiles_of_students_t_are_those_of_the_printed_tables(chance: float, freedom: int, expected: float) -> None:
    assert t_quantile(chance, freedom) == pytest.approx(expected, abs=6e-4)


def test_half_of_students_t_with_one_degree_lies_within_one() -> None:
    assert within(1.0, 1) == pytest.approx(0.5)


def test_the_interval_of_a_mean_is_the_textbook_one() -> None:
    # mean 4, s = 2, n = 3: 4 ± 4.3027 · 2/√3
    found = mean_interval([2.0, 4.0, 6.0])
    assert found.value == 4.0
    assert found.high == pytest.approx(4.0 + 4.3027 * 2 / math.sqrt(3), abs=1e-3)
    assert found.low == pytest.approx(4.0 - 4.3027 * 2 / math.sqrt(3), abs=1e-3)
    assert found.n == 3


def test_a_ratio_is_taken_pair_by_pair_so_that_common_luck_cancels() -> None:
    found = ratio_interval([20.0, 200.0, 2.0], [10.0, 100.0, 1.0])
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0)
    assert found.above_one
    assert not found.below_one


def test_ratios_are_averaged_geometrically() -> None:
    # ratios 1 and 4: mean 2, log deviation ln 2 each, s = √2·ln 2, half width 12.706·s/√2 = 12.706·ln 2
    found = ratio_interval([1.0, 4.0], [1.0, 1.0])
    assert found.value == pytest.approx(2.0)
    assert found.high == pytest.approx(2.0 * 2**12.7062, rel=1e-3)
    assert not found.above_one


def test_one_seed_gives_a_value_without_an_interval() -> None:
    assert ratio_interval([3.0], [2.0]) == Interval(1.5, None, None, 1)
    assert mean_upper([1.0]) is None


def test_pairs_that_cannot_be_compared_are_an_error_when_none_is_left() -> None:
    with pytest.raises(ValueError, match="no pair"):
        ratio_interval([0.0], [1.0])


def test_the_upper_bound_of_a_mean_is_one_sided() -> None:
    # mean 2, s = 1, n = 3: 2 + 2.920/√3
    assert mean_upper([1.0, 2.0, 3.0]) == pytest.approx(2 + 2.920 / math.sqrt(3), abs=1e-3)


def test_quantiles_are_linear_between_neighbours() -> None:
    assert quantile([10.0, 0.0], 0.95) == pytest.approx(9.5)
    assert quantile([5.0], 0.5) == 5.0
