"""Our policy: tiles are paid for out of what reading has cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from vfsd.tiling.policy.account import Account
from vfsd.tiling.policy.advice import Tilings
from vfsd.tiling.policy.candidates import Combinations
from vfsd.tiling.policy.query import Query, Retile, Tiling
from vfsd.tiling.policy.world import World


@dataclass(frozen=True, slots=True)
class Terms:
    """The figures of a `Ledger`."""

    eta: float = 1.0  #: seconds that a SOT has been read for each second of its sure tilings
    early_eta: float = 1.0  #: seconds that the video has been read for each of early tilings
    lead: float = 1.5  #: how many times cheaper in all a sure tiling has to be than what there is
    hope: float = 4.0  #: how many times what was saved lately may be saved yet
    least_saving: float = 0.5  #: the share of recent reading that an early tiling has to save
    half_life: float = 200.0  #: queries, after which one counts half for early tilings
    byte_seconds: float = 0.0  #: what a stored byte is worth
    most: int = 15  #: candidates of a SOT


@dataclass(slots=True)
class _Sot:
    account: Account
    combinations: Combinations = field(default_factory=Combinations)
    sure: float = 0.0  #: seconds paid for sure tilings


class Ledger:
    """..."""

    def __init__(self, world: World, terms: Terms | None = None) -> None:
        self._world = world
        self._terms = terms or Terms()
        self._current = Tilings(world, self._terms.byte_seconds)
        self._sots: dict[int, _Sot] = {}
        self._number = 0
        self._spent = 0.0  #: decoding, of all SOTs
        self._early = 0.0  #: paid for early tilings

    def start(self) -> list[Retile]:
        return []

    def tell(self, query: Query) -> list[Retile]:
        self._number += 1
        touched = [(sot, self._book(sot, query)) for sot in self._world.touched(query)]
        made, wishes = [], []
        for sot, state in touched:
            sure = self._sure(sot, state)
            if sure is not None:
                made.append(self._current.put(sot, sure))
                state.sure += made[-1].price
            elif self._current[sot] is None and (hoped := self._hoped(sot, state)) is not None:
                wishes.append((sot, *hoped))
        # Those first that pay back soonest.
        for sot, tiling, _ in sorted(wishes, key=lambda wish: (-wish[2], wish[0])):
            price = self._current.price(sot, tiling)
            if self._terms.early_eta * (self._early + price) <= self._spent:
                self._early += price
                made.append(self._current.put(sot, tiling))
        return sorted(made, key=lambda retile: retile.sot)

    def _book(self, sot: int, query: Query) -> _Sot:
        state = self._sots.get(sot)
        if state is None:
            state = _Sot(Account(self._world, sot, self._terms.half_life))
            self._sots[sot] = state
        self._spent += state.account.book(self._number, query, self._current[sot])
        for aims in state.combinations.add(query.aims):
            tiling = self._world.around(sot, aims)
            if tiling is not None and len(list(state.account.candidates)) < self._terms.most:
                state.account.consider(tiling)
        return state

    def _total(self, sot: int, state: _Sot, tiling: Tiling) -> float:
        """What it would have come to by now, made before the first query."""
        return state.account.decoding(tiling) + self._current.price(sot, tiling)

    def _sure(self, sot: int, state: _Sot) -> Tiling | None:
        """The tiling that has proved to be the best, if it is better by far and paid for."""
        totals = {one: self._total(sot, state, one) for one in state.account.candidates}
        if not totals:
            return None
        best = min(totals, key=lambda tiling: totals[tiling])
        current = self._current[sot]
        present = state.account.untiled if current is None else totals[current]
        if best == current or totals[best] >= state.account.untiled:
            return None
        if present < self._terms.lead * totals[best]:
            return None
        paid = state.sure + self._current.price(sot, best)
        return best if self._terms.eta * paid <= state.account.spent else None

    def _hoped(self, sot: int, state: _Sot) -> tuple[Tiling, float] | None:
        """The tiling that would gain most if queries go on as of late, and gain / price."""
        account = state.account
        best: tuple[float, float, Tiling] | None = None
        for tiling in account.candidates:
            saving, price = account.recent_saving(tiling), self._current.price(sot, tiling)
            gain = self._terms.hope * saving - price
            if gain < 0 or saving < self._terms.least_saving * account.recent_untiled:
                continue
            if best is None or gain > best[0]:
                best = gain, gain / price, tiling
        return None if best is None else (best[2], best[1])
