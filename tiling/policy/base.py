"""What all policies have in common: they are told queries, and answer with tilings."""

from __future__ import annotations

from typing import Protocol

from vfsd.tiling.policy.query import Query, Retile, Tiling
from vfsd.tiling.policy.world import World


class Policy(Protocol):
    """Decides what to re-tile.

    It has no clock, no randomness and no other source than its world and the queries it is told:
    whoever tells another one the same gets the same answers, so a log of reads is all its state.
    What it advises is taken to be done at once.
    """

    def start(self) -> list[Retile]:
        """What to make before the first query; to be called once, before any other."""

    def tell(self, query: Query) -> list[Retile]:
        """What to make now that this query has been read, by ascending SOT."""


class Tilings:
    """What every SOT has by now."""

    def __init__(self, world: World, byte_seconds: float = 0.0) -> None:
        self._world = world
        self._byte_seconds = byte_seconds
        self._tilings: dict[int, Tiling] = {}

    def __getitem__(self, sot: int) -> Tiling | None:
        """None: nothing but the original."""
        return self._tilings.get(sot)

    def price(self, sot: int, tiling: Tiling) -> float:
        """Seconds, those that its bytes are worth included."""
        return self._world.making(sot, tiling).price(self._byte_seconds)

    def put(self, sot: int, tiling: Tiling) -> Retile:
        """Note that it is made."""
        self._tilings[sot] = tiling
        return Retile(sot, tiling, self.price(sot, tiling))
