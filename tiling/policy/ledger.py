"""Our policy: tiles are paid for out of what reading has cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from vfsd.tiling.policy.account import Account
from vfsd.tiling.policy.advice import Tilings
from vfsd.tiling.policy.candidates import Combinations
from vfsd.tiling.policy.query import Query, Retile, Tiling
from vfsd.tiling.policy.terms import Terms
from vfsd.tiling.policy.world import World


@dataclass(slots=True)
class _Sot:
    account: Account
    combinations: Combinations = field(default_factory=Combinations)
    sure: float = 0.0  #: seconds paid for sure tilings


class Ledger:
    """Re-tiles a SOT early where that promises to pay, and surely where it has proved to.

    **Sure** tilings look at all queries of a SOT.  The total of a candidate is what they would have
    taken, had it been made before the first: its price and their decoding.  The candidate with the
    least total is made once reading without tiles came to its price and `caution` times its
    decoding, or, where there are tiles, once their total is `lead` times as much; and only if the
    SOT has been read for `eta` times what its sure tilings, this one included, cost.  As totals
    never fall, a SOT does not go to and fro: tiles that were left have to get ahead by `lead`.

    **Early** tilings look at recent queries.  A candidate is made if it saves a good share of their
    time and would pay for itself within `payback` queries like them; the best bargains first, and
    only from funds: a small share of all that was spent on reading, and what tiles have saved.  So
    they go on where they turn out well, and end where not.  A SOT that was surely tiled is beyond
    speculation.

    Labels and regions are treated alike, several at once by `Combinations`.

    *Never tile* comes to D0.  Let D be what reading took, S = D0 - D what was saved, E and P what
    was paid early and surely.  With E <= stake D + S and P <= D / eta, SOT by SOT and so in all,
    D + E + P <= D0 + stake D + D / eta, and as the original stays and the cheaper is read, D <= D0:

        total <= (1 + stake + 1 / eta) D0                               `Terms.against_never`

    *At once*: of one SOT, let m be the least total of its N candidates and of no tiles, h the lead
    and c the caution.  After a query, the SOT is (a) tiled, at most h times as dear in total as the
    least: for each tiling such queries add up to h m at most; without tiles, and not due for any:
    to c m; or (b) due, but not read enough: up to the last such query D <= eta (P + m); or (c) it
    changes: this query took no more than the new tiling, for which the SOT is decoded once, so all
    such took P; or (d) best without tiles: such queries took no more than that, so m.  A candidate
    costs no more than its total, which is m when it is surely made, and m has grown h times before
    it is made again, so P <= N m (1 + 1/h + ...) = N m h / (h - 1).  Together
    D <= (N h + c) m + m + eta (P + m) + P, and E <= D / early_eta: `Terms.against_at_once`.

    That takes for granted that m does not fall as candidates come up, which is so where a layout
    around more is no cheaper to read and to make than one around the part that was asked for; and
    it grows with N, as it must: who reads in one of N states each query that only this state does
    not serve pays N times as much as the best of them, and cannot know which state comes next.
    """

    def __init__(self, world: World, terms: Terms | None = None) -> None:
        self._world = world
        self._terms = terms or Terms()
        self._current = Tilings(world, self._terms.byte_seconds)
        self._sots: dict[int, _Sot] = {}
        self._number = 0
        self._spent = 0.0  #: decoding, of all SOTs
        self._saved = 0.0  #: decoding, of all SOTs, by tiles
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
            elif (hoped := self._hoped(sot, state)) is not None:
                wishes.append((sot, *hoped))
        # Those first that pay back soonest.
        for sot, tiling, _ in sorted(wishes, key=lambda wish: (-wish[2], wish[0])):
            price = self._current.price(sot, tiling)
            if self._early + price <= self._funds():
                self._early += price
                made.append(self._current.put(sot, tiling))
        return sorted(made, key=lambda retile: retile.sot)

    def _book(self, sot: int, query: Query) -> _Sot:
        state = self._sots.get(sot)
        if state is None:
            state = _Sot(Account(self._world, sot, self._terms.half_life))
            self._sots[sot] = state
        seconds = state.account.book(self._number, query, self._current[sot])
        self._spent += seconds
        self._saved += self._world.decode(sot, query, None) - seconds
        for aims in state.combinations.add(query.aims):
            tiling = self._world.around(sot, aims)
            if tiling is not None and len(state.account.candidates) < self._terms.most:
                state.account.consider(tiling)
        return state

    def _funds(self) -> float:
        """Seconds that all early tilings may have cost by now."""
        terms = self._terms
        return min(terms.stake * self._spent + self._saved, self._spent / terms.early_eta)

    def _total(self, sot: int, state: _Sot, tiling: Tiling) -> float:
        """What it would have come to by now, made before the first query."""
        return state.account.decoding(tiling) + self._current.price(sot, tiling)

    def _sure(self, sot: int, state: _Sot) -> Tiling | None:
        """The tiling that has proved to be the best, if it is better by far and paid for."""
        account, terms = state.account, self._terms
        totals = {one: self._total(sot, state, one) for one in account.candidates}
        if not totals:
            return None
        best = min(totals, key=lambda tiling: totals[tiling])
        current, price = self._current[sot], self._current.price(sot, best)
        if best == current or totals[best] >= account.untiled:
            return None
        if current is None:
            is_due = account.untiled >= price + terms.caution * account.decoding(best)
        else:
            is_due = totals[current] >= terms.lead * totals[best]
        is_paid = terms.eta * (state.sure + price) <= account.spent
        return best if is_due and is_paid else None

    def _hoped(self, sot: int, state: _Sot) -> tuple[Tiling, float] | None:
        """The tiling that gains most if queries go on as of late, and its gain / price."""
        account, terms = state.account, self._terms
        if state.sure:
            return None
        current = self._current[sot]
        saved = 0.0 if current is None else account.recent_saving(current)
        least = terms.least_saving * (account.recent_untiled - saved)
        best: tuple[float, float, Tiling] | None = None
        for tiling in account.candidates:
            saving = account.recent_saving(tiling) - saved
            price = self._current.price(sot, tiling)
            is_worth_it = terms.payback * saving >= price * account.recent_queries
            if tiling == current or saving < least or not is_worth_it:
                continue
            gain = terms.payback * saving - price
            if best is None or gain > best[0]:
                best = gain, gain / price, tiling
        return None if best is None else (best[2], best[1])
