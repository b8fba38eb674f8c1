"""How many workers fit into a number of GPUs where workers of different roles may be of different sizes.

docs/models.md, "Sizes per stage". GPUs are counted in units: the largest number of GPUs that divides the size of every
worker. In a fleet of one size a unit is a worker, and everything here is counting workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pearl_planner.types import Role, Shape, Zone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_planner.types import Budget, Slot


class Units(NamedTuple):
    """Units of one worker, by its role."""

    colocated: int = 1
    prefill: int = 1
    decode: int = 1

    def of(self, role: Role) -> int:
        """Of a worker of this role."""
        return {Role.COLOCATED: self.colocated, Role.PREFILL: self.prefill, Role.DECODE: self.decode}[role]


ONE_SIZE = Units()
"""Every worker is a unit."""


def unit_gpus(budget: Budget) -> int:
    """GPUs of one unit."""
    return math.gcd(*(budget.gpus_of(role) for role in Role))


def units_of(budget: Budget) -> Units:
    """The sizes of the budget in units."""
    unit = unit_gpus(budget)
    return Units(*(budget.gpus_of(role) // unit for role in (Role.COLOCATED, Role.PREFILL, Role.DECODE)))


@dataclass(frozen=True, slots=True)
class Room:
    """Units of the fleet's own zones, and how many workers are lent. A worker lies in one zone."""

    reserved: int
    elastic: int = 0
    borrowed: int = 0
    """Workers, whose size is their trainer's affair: each may have every role."""
    units: Units = ONE_SIZE

    def with_elastic(self, elastic: int) -> Room:
        """The same with so many elastic units."""
        return replace(self, elastic=elastic)

    @property
    def size(self) -> int:
        """Units in all; a lent worker is one of the size of colocated workers."""
        return self.reserved + self.elastic + self.borrowed * self.units.colocated

    @property
    def colocated(self) -> int:
        """Most colocated workers."""
        return self._fitting(self.units.colocated) + self.borrowed

    @property
    def own_decode(self) -> int:
        """Most decode workers beside lent ones."""
        return self._fitting(self.units.decode)

    @property
    def splits(self) -> int:
        """How many disaggregated shapes fill the room: one for each number of decode workers from 1."""
        decode = self.own_decode + self.borrowed
        while decode > 0 and self.prefill_beside(decode) < 1:
            decode -= 1
        return decode

    def prefill_beside(self, decode: int) -> int:
        """Prefill workers that fit beside so many decode workers; negative where not even those fit.

        Lent workers prefill, as long as the other GPUs have room for the decode workers.
        """
        own = min(decode, self.own_decode)
        reserved = min(own, self.reserved // self.units.decode)
        left = (self.reserved - reserved * self.units.decode, self.elastic - (own - reserved) * self.units.decode)
        return sum(one // self.units.prefill for one in left) + self.borrowed - (decode - own)

    def split_at(self, place: int) -> Shape:
        """The disaggregated shapes in order, 1 to `splits`: more prefill and fewer decode workers."""
        decode = self.splits + 1 - place
        return Shape(0, self.prefill_beside(decode), decode)

    def _fitting(self, units: int) -> int:
        return self.reserved // units + self.elastic // units


Many = int | Room
"""Workers of one size, or room for workers of several sizes."""


def room_of(many: Many) -> Room:
    """A number of workers as the room that they fill."""
    return many if isinstance(many, Room) else Room(max(many, 0))


def units_held(slots: Iterable[Slot], budget: Budget) -> dict[Zone, int]:
    """Units of the fleet's own zones that these slots take."""
    units, held = units_of(budget), {Zone.RESERVED: 0, Zone.ELASTIC: 0}
    for slot in slots:
        if slot.zone in held:
            held[slot.zone] += units.of(slot.role)
    return held
