"""TASM's "incremental, regret" (section IV-C, Fig. 6)."""

from __future__ import annotations

from dataclasses import dataclass, field

from vfsd.tiling.policy.base import Tilings
from vfsd.tiling.policy.candidates import Combinations
from vfsd.tiling.policy.fixed import ALPHA
from vfsd.tiling.policy.query import Aims, Query, Retile
from vfsd.tiling.policy.world import World


@dataclass(slots=True)
class _Sot:
    past: list[tuple[Query, float]] = field(default_factory=list)
    """Queries that touched it, each with the seconds it took in what the SOT had then."""
    regret: dict[Aims, float] = field(default_factory=dict)
    barred: set[Aims] = field(default_factory=set)


class IncrementalRegret:
    """A SOT is re-tiled as soon as that would have saved `eta` times its price.

    The regret of a layout is what past queries would have saved with it.  One that was not thought
    of earlier gets it for all queries so far, each against the layout of its time.  Re-tiling a
    SOT sets its regrets to nothing.  A layout is barred from a SOT for good once any query there
    decodes `alpha` of the untiled pixels or more with it.

    It follows the paper, not its code: regrets are exact, of equals the first by size and name is
    taken, and a combination counts once.
    """

    def __init__(self, world: World, eta: float = 1.0, alpha: float = ALPHA) -> None:
        self._world = world
        self._eta = eta
        self._alpha = alpha
        self._current = Tilings(world)
        self._alternatives = Combinations()
        self._sots: dict[int, _Sot] = {}

    def start(self) -> list[Retile]:
        return []

    def tell(self, query: Query) -> list[Retile]:
        for aims in self._alternatives.add(query.aims):
            for sot, state in self._sots.items():
                state.regret[aims] = 0.0
                for past, seconds in state.past:
                    self._credit(sot, state, aims, past, seconds)
        for sot in self._world.touched(query):
            state = self._sots.setdefault(sot, _Sot())
            seconds = self._world.decode(sot, query, self._current[sot])
            state.past.append((query, seconds))
            for aims in self._alternatives:
                self._credit(sot, state, aims, query, seconds)
        # A combination that has just come up may be due anywhere.
        due = ((sot, self._due(sot, state)) for sot, state in sorted(self._sots.items()))
        return [self._retile(sot, aims) for sot, aims in due if aims is not None]

    def _credit(self, sot: int, state: _Sot, aims: Aims, query: Query, seconds: float) -> None:
        tiling = self._world.around(sot, aims)
        if tiling is None or aims in state.barred:
            return
        untiled = self._world.pixels(sot, query, None)
        if self._world.pixels(sot, query, tiling) >= self._alpha * untiled:
            state.barred.add(aims)
            state.regret.pop(aims, None)
            return
        saved = seconds - self._world.decode(sot, query, tiling)
        state.regret[aims] = state.regret.get(aims, 0.0) + saved

    def _due(self, sot: int, state: _Sot) -> Aims | None:
        """The combination of most regret, if that is enough for it."""
        open_to = [
            aims
            for aims in state.regret
            if self._world.around(sot, aims) not in (None, self._current[sot])
        ]
        if not open_to:
            return None
        best = max(open_to, key=lambda aims: state.regret[aims])
        tiling = self._world.around(sot, best)
        assert tiling is not None
        enough = state.regret[best] > self._eta * self._current.price(sot, tiling)
        return best if enough else None

    def _retile(self, sot: int, aims: Aims) -> Retile:
        tiling = self._world.around(sot, aims)
        assert tiling is not None
        self._sots[sot].regret.clear()
        return self._current.put(sot, tiling)
