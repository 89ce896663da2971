"""Policies that tile what is queried, whatever that costs."""

from __future__ import annotations

from vfsd.tiling.policy.base import Tilings
from vfsd.tiling.policy.query import Aims, Query, Retile
from vfsd.tiling.policy.world import World


class IncrementalMore:
    """TASM's "incremental, more" (section IV-C): after each query, every SOT that it touched is
    tiled around all that was ever queried there."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._current = Tilings(world)
        self._asked: dict[int, Aims] = {}

    def start(self) -> list[Retile]:
        return []

    def tell(self, query: Query) -> list[Retile]:
        made = []
        for sot in self._world.touched(query):
            self._asked[sot] = self._asked.get(sot, Aims()) | query.aims
            tiling = self._world.around(sot, self._asked[sot])
            if tiling is not None and tiling != self._current[sot]:
                made.append(self._current.put(sot, tiling))
        return made


class Lazy:
    """A SOT is tiled when it is first queried, around that, and stays so.

    Early versions of TASM's paper name it beside its eager and edge variants.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._current = Tilings(world)

    def start(self) -> list[Retile]:
        return []

    def tell(self, query: Query) -> list[Retile]:
        made = []
        for sot in self._world.touched(query):
            tiling = self._world.around(sot, query.aims)
            if tiling is not None and self._current[sot] is None:
                made.append(self._current.put(sot, tiling))
        return made
