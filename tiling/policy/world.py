"""What a policy asks: what a query costs with tiles that may not exist, and what making them costs.

It is TASM's what-if interface (section IV-A).  How tiles are read, and which are made, is the
world's to say, so that the same policy runs in that of a store and in that of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vfsd.tiling.policy.query import Aims, Query, Tiling


@dataclass(frozen=True, slots=True)
class Making:
    """What it takes to make a tiling of a SOT."""

    seconds: float  #: of CPU: decoding the source once, and encoding
    bytes: float  #: that are stored

    def price(self, byte_seconds: float) -> float:
        """In seconds, where a stored byte is worth `byte_seconds`."""
        return self.seconds + byte_seconds * self.bytes


class World(Protocol):
    """A video cut into SOTs, numbered by time from 0.  Answers never change."""

    @property
    def sots(self) -> range:
        """All of them."""

    def touched(self, query: Query) -> Sequence[int]:
        """The SOTs on which a query has to decode something, ascending."""

    def labels(self, sot: int) -> Aims:
        """All that is known to be there."""

    def around(self, sot: int, aims: Aims) -> Tiling | None:
        """The tiling around what is there of `aims`; None where there is nothing to cut."""

    def decode(self, sot: int, query: Query, tiling: Tiling | None) -> float:
        """Seconds in which a query reads its part of a SOT that has this tiling, or (None) none."""

    def pixels(self, sot: int, query: Query, tiling: Tiling | None) -> int:
        """TASM's P: pixels decoded, if all that can be comes from tiles."""

    def making(self, sot: int, tiling: Tiling) -> Making:
        """At least as many seconds as any query decodes of that SOT without tiles."""
