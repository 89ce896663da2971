"""The books of one SOT: what its queries have cost, and would have in every candidate."""

from __future__ import annotations

from collections.abc import Collection

from vfsd.tiling.policy.query import Aims, Query, Tiling
from vfsd.tiling.policy.world import World


class Account:
    """Seconds spent on a SOT, and those that each candidate would have taken.

    A candidate that comes up late is booked for all earlier queries, so that it does not matter
    when it came up.  Beside the full totals there is what candidates saved of late: a query counts
    `fading` of what it counted one query of the video earlier.
    """

    def __init__(self, world: World, sot: int, fading: float) -> None:
        self._world = world
        self._sot = sot
        self._fading = fading
        self._past: list[tuple[int, Query]] = []
        self._now = 0
        self.spent = 0.0  #: decoding, as it was read
        self.untiled = 0.0  #: decoding, had there been no tiles
        self._tiled: dict[Tiling, float] = {}
        self._saved: dict[Tiling, float] = {}
        self._around: dict[Tiling, list[Aims]] = {}

    @property
    def candidates(self) -> Collection[Tiling]:
        """In the order in which they came up."""
        return self._tiled.keys()

    def around(self, tiling: Tiling) -> Collection[Aims]:
        """All that a candidate is the tiling around: something may be nowhere in the SOT."""
        return self._around[tiling]

    def decoding(self, tiling: Tiling) -> float:
        """What all queries so far would have taken."""
        return self._tiled[tiling]

    def saved_of_late(self, tiling: Tiling) -> float:
        """What queries would have saved against no tiles, as far as they count."""
        return self._saved[tiling]

    def book(self, number: int, query: Query, current: Tiling | None) -> float:
        """A query of that number, read with the current tiling; what that took."""
        seconds = self._world.decode(self._sot, query, current)
        untiled = self._world.decode(self._sot, query, None)
        fading = self._fading ** (number - self._now)
        self._now = number
        self._past.append((number, query))
        self.spent += seconds
        self.untiled += untiled
        for tiling in self._tiled:
            tiled = self._world.decode(self._sot, query, tiling)
            self._tiled[tiling] += tiled
            self._saved[tiling] = self._saved[tiling] * fading + untiled - tiled
        return seconds

    def consider(self, tiling: Tiling, aims: Aims) -> None:
        """Take up a candidate, the tiling around `aims`, as if it had been there from the start."""
        self._around.setdefault(tiling, []).append(aims)
        if tiling in self._tiled:
            return
        total = saved = 0.0
        for number, query in self._past:
            tiled = self._world.decode(self._sot, query, tiling)
            untiled = self._world.decode(self._sot, query, None)
            total += tiled
            saved += (untiled - tiled) * self._fading ** (self._now - number)
        self._tiled[tiling], self._saved[tiling] = total, saved
