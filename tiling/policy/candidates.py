"""What a SOT may be tiled around, as far as the queries so far let one imagine it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations

from vfsd.tiling.policy.query import Aim, Aims, in_order

FEW = 4
"""So many aims have 15 combinations."""


class Combinations:
    """The sets of aims that are worth a thought, in the order in which they came up.

    Every non-empty subset of what was seen (TASM, Fig. 6), as long as there are few aims; from then
    on what each query looked for, and all of it together, as TASM's code has it.
    """

    def __init__(self, few: int = FEW) -> None:
        self._few = few
        self._seen = Aims()
        self._known: dict[Aims, None] = {}

    def add(self, aims: Aims) -> list[Aims]:
        """Take up what a query looked for; gives the combinations that are new."""
        if aims in self._known and aims <= self._seen:
            return []  # so is every other one
        self._seen |= aims
        fresh = [one for one in self._with(aims) if one not in self._known]
        self._known.update(dict.fromkeys(fresh))
        return fresh

    def __iter__(self) -> Iterator[Aims]:
        return iter(self._known)

    def _with(self, aims: Aims) -> list[Aims]:
        if len(self._seen) > self._few:
            return list(dict.fromkeys((aims, self._seen)))
        order: list[Aim] = sorted(self._seen, key=str)
        some = (combinations(order, count) for count in range(1, len(order) + 1))
        return sorted(map(frozenset, chain.from_iterable(some)), key=_small_first)


def _small_first(aims: Aims) -> tuple[int, tuple[str, ...]]:
    return len(aims), in_order(aims)
