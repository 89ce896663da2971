"""The books of one SOT: what its queries have cost, and would have in every candidate."""

from __future__ import annotations

from collections.abc import Collection

from vfsd.tiling.policy.query import Query, Tiling
from vfsd.tiling.policy.world import World


class Account:
    """Seconds spent on a SOT, and those that each candidate would have taken.

    A candidate that comes up late is booked for all earlier queries, so that it does not matter
    when it came up.  Beside the full totals there are recent ones: of these a query counts half
    after `half_life` more queries of the video, a quarter after twice as many.
    """

    def __init__(self, world: World, sot: int, half_life: float) -> None:
        self._world = world
        self._sot = sot
        self._half_life = half_life
        self._past: list[tuple[int, Query]] = []
        self._now = 0
        self.spent = 0.0  #: decoding, as it was read
        self.untiled = 0.0  #: decoding, had there been no tiles
        self.recent_untiled = 0.0  #: decoding of recent queries, had there been no tiles
        self.recent_queries = 0.0
        self._tiled: dict[Tiling, float] = {}
        self._saved: dict[Tiling, float] = {}

    @property
    def candidates(self) -> Collection[Tiling]:
        """In the order in which they came up."""
        return self._tiled.keys()

    def decoding(self, tiling: Tiling) -> float:
        """What all queries so far would have taken."""
        return self._tiled[tiling]

    def recent_saving(self, tiling: Tiling) -> float:
        """What recent queries would have saved against no tiles."""
        return self._saved[tiling]

    def book(self, number: int, query: Query, current: Tiling | None) -> float:
        """A query of that number, read with the current tiling; what that took."""
        seconds = self._world.decode(self._sot, query, current)
        untiled = self._world.decode(self._sot, query, None)
        fading = 2.0 ** ((self._now - number) / self._half_life)
        self._now = number
        self._past.append((number, query))
        self.spent += seconds
        self.untiled += untiled
        self.recent_untiled = self.recent_untiled * fading + untiled
        self.recent_queries = self.recent_queries * fading + 1
        for tiling in self._tiled:
            tiled = self._world.decode(self._sot, query, tiling)
            self._tiled[tiling] += tiled
            self._saved[tiling] = self._saved[tiling] * fading + untiled - tiled
        return seconds

    def consider(self, tiling: Tiling) -> None:
        """Take up a candidate, as if it had been there from the start."""
        if tiling in self._tiled:
            return
        total = saved = 0.0
        for number, query in self._past:
            tiled = self._world.decode(self._sot, query, tiling)
            untiled = self._world.decode(self._sot, query, None)
            total += tiled
            saved += (untiled - tiled) * 2.0 ** ((number - self._now) / self._half_life)
        self._tiled[tiling], self._saved[tiling] = total, saved
