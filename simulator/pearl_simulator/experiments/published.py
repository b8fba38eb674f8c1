"""Figures of the PEARL paper (section 5) that results are held against."""

from __future__ import annotations

ROLL_RANGE = {"8B": (2.17, 2.37), "30B-A3B": (2.43, 2.79)}
"""PEARL over ROLL: a range per model. A cell is held against the top of it."""
OVER_RLBOOST = {
    "8B S1": 1.059,
    "8B S2": 1.269,
    "8B S3": 1.106,
    "30B-A3B S1": 1.074,
    "30B-A3B S2": 1.363,
    "30B-A3B S3": 1.190,
}
