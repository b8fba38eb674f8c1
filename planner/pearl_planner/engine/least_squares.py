"""Robust ridge regression with non-negative coefficients, for a handful of them, in plain Python.

Minimised (docs/models.md, "Calibration") are the *relative* residuals of the points under Huber's loss, plus a pull
towards prior values:

    Σ w·ρ((x·β − t)/(σ·t)) + Σ ((β − prior)/deviation)²

by iteratively reweighted normal equations; σ is the median absolute residual, scaled to a normal distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_planner.numbers import median

if TYPE_CHECKING:
    from collections.abc import Sequence

HUBER = 1.345
"""Residuals beyond so many σ count linearly (95 % efficiency for normal noise)."""
ITERATIONS = 40
SMALLEST_SIGMA = 1e-3
DEPENDENT = 1e-4
"""A column of whose (normalised) square less than this is left after the other columns are taken out adds nothing."""
_NORMAL_MAD = 1.4826


@dataclass(frozen=True, slots=True)
class Point:
    """One observation: what the coefficients are multiplied with, the result, and how much it counts."""

    columns: tuple[float, ...]
    result: float
    """Positive."""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Prior:
    """Where coefficients are pulled to; `inf` deviation = no pull, 0 = pinned."""

    values: tuple[float, ...]
    deviations: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients with their covariance; `sigma` is the typical relative residual."""

    values: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    sigma: float


def fit(points: Sequence[Point], prior: Prior, free: Sequence[int], nonnegative: Sequence[bool]) -> Fit:
    """Fit the coefficients `free`; the others keep their prior value. Raises ValueError when the points do not do.

    Columns are scaled to a mean square of 1 inside, so any units do.
    """
    if not points or not free:
        raise ValueError("nothing to fit: give at least one point and one free coefficient")
    rows = [tuple(value / point.result for value in point.columns) for point in points]
    scale = [_norm([row[j] for row in rows]) or 1.0 for j in range(len(prior.values))]
    scaled = [tuple(value / scale[j] for j, value in enumerate(row)) for row in rows]
    center = [value * scale[j] for j, value in enumerate(prior.values)]
    spread = [value * scale[j] for j, value in enumerate(prior.deviations)]
    weights = [point.weight for point in points]
    problem = _Problem(scaled, center, spread, tuple(free), tuple(nonnegative))
    beta, sigma = problem.solve(weights, sigma=0.1), 0.1
    for _ in range(ITERATIONS):
        residuals = [sum(x * b for x, b in zip(row, beta, strict=True)) - 1.0 for row in scaled]
        sigma = max(SMALLEST_SIGMA, _NORMAL_MAD * (median([abs(r) for r in residuals]) or 0.0))
        robust = [w * min(1.0, HUBER * sigma / max(abs(r), 1e-12)) for w, r in zip(weights, residuals, strict=True)]
        before, beta = beta, problem.solve(robust, sigma)
        weights_now = robust
        if max(abs(a - b) for a, b in zip(before, beta, strict=True)) < 1e-9:  # noqa: PLR2004 - relative to 1
            break
    covariance = problem.covariance(weights_now, sigma, beta)
    size = range(len(beta))
    return Fit(
        values=tuple(value / scale[j] for j, value in enumerate(beta)),
        covariance=tuple(tuple(covariance[i][j] / (scale[i] * scale[j]) for j in size) for i in size),
        sigma=sigma,
    )


def independent(points: Sequence[Point]) -> list[bool]:
    """For each column: whether the points tell it apart from the columns before it (pivots of the Gram matrix)."""
    if not points:
        return []
    rows = [tuple(value / point.result for value in point.columns) for point in points]
    size = len(points[0].columns)
    norms = [_norm([row[j] for row in rows]) for j in range(size)]
    gram = [
        [
            sum(row[i] * row[j] for row in rows) / (len(rows) * norms[i] * norms[j]) if norms[i] and norms[j] else 0.0
            for j in range(size)
        ]
        for i in range(size)
    ]
    found = []
    for k in range(size):
        pivot = gram[k][k]
        found.append(pivot > DEPENDENT)
        if not found[-1]:
            continue
        for i in range(k + 1, size):
            factor = gram[i][k] / pivot
            for j in range(k, size):
                gram[i][j] -= factor * gram[k][j]
    return found


@dataclass(frozen=True, slots=True)
class _Problem:
    rows: Sequence[tuple[float, ...]]
    center: Sequence[float]
    spread: Sequence[float]
    free: tuple[int, ...]
    nonnegative: tuple[bool, ...]

    def solve(self, weights: Sequence[float], sigma: float) -> list[float]:
        """Active set: the most negative coefficient is held at 0 until none is, then those that want back return."""
        matrix, right = self._normal_equations(weights, sigma)
        held: set[int] = set()
        beta = list(self.center)
        for _ in range(4 * len(self.free) + 1):
            active = [j for j in self.free if j not in held]
            beta = list(self.center)
            for j in held:
                beta[j] = 0.0
            solved = _solve([[matrix[i][j] for j in active] for i in active], [right[i] for i in active])
            for j, value in zip(active, solved, strict=True):
                beta[j] = value
            negative = [j for j in active if self.nonnegative[j] and beta[j] < 0]
            if negative:
                held.add(min(negative, key=lambda j: beta[j]))
                continue
            wanting = {j: right[j] - sum(matrix[j][i] * beta[i] for i in self.free) for j in held}
            most = max(wanting, key=lambda j: wanting[j], default=None)
            if most is None or wanting[most] <= 1e-9:  # noqa: PLR2004 - scaled columns
                break
            held.discard(most)
        return [max(value, 0.0) if self.nonnegative[j] else value for j, value in enumerate(beta)]

    def covariance(self, weights: Sequence[float], sigma: float, beta: Sequence[float]) -> list[list[float]]:
        """σ²·(XᵀWX + Λ)⁻¹ over the coefficients that are fitted; those at a bound keep the variance they would have."""
        size = len(beta)
        matrix, _ = self._normal_equations(weights, sigma)
        result = [[0.0] * size for _ in range(size)]
        for column, j in enumerate(self.free):
            unit = [1.0 if i == column else 0.0 for i in range(len(self.free))]
            solved = _solve([[matrix[a][b] for b in self.free] for a in self.free], unit)
            for i, value in zip(self.free, solved, strict=True):
                result[i][j] = value * sigma * sigma
        return result

    def _normal_equations(self, weights: Sequence[float], sigma: float) -> tuple[list[list[float]], list[float]]:
        size = len(self.center)
        matrix = [[0.0] * size for _ in range(size)]
        right = [0.0] * size
        fixed = [j for j in range(size) if j not in self.free]
        for row, weight in zip(self.rows, weights, strict=True):
            target = 1.0 - sum(row[j] * self.center[j] for j in fixed)
            for i in self.free:
                right[i] += weight * row[i] * target
                for j in self.free:
                    matrix[i][j] += weight * row[i] * row[j]
        for j in self.free:
            if 0 < self.spread[j] < math.inf:
                pull = (sigma / self.spread[j]) ** 2
                matrix[j][j] += pull
                right[j] += pull * self.center[j]
        return matrix, right


def _norm(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss with pivoting; raises ValueError on a singular matrix."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for k in range(size):
        pivot = max(range(k, size), key=lambda i: abs(rows[i][k]))
        rows[k], rows[pivot] = rows[pivot], rows[k]
        if abs(rows[k][k]) < 1e-12:  # noqa: PLR2004 - scaled columns
            raise ValueError("the points do not determine the coefficients: add points that differ, or a prior")
        for i in range(k + 1, size):
            factor = rows[i][k] / rows[k][k]
            for j in range(k, size + 1):
                rows[i][j] -= factor * rows[k][j]
    result = [0.0] * size
    for k in reversed(range(size)):
        result[k] = (rows[k][size] - sum(rows[k][j] * result[j] for j in range(k + 1, size))) / rows[k][k]
    return result
