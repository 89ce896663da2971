"""Our policy: tiles are paid for out of what reading has cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from vfsd.tiling.policy.base import Tilings
from vfsd.tiling.policy.candidates import Combinations
from vfsd.tiling.policy.parameters import Terms
from vfsd.tiling.policy.query import Query, Retile, Tiling
from vfsd.tiling.policy.read_rate import Outlook
from vfsd.tiling.policy.sot_account import Account
from vfsd.tiling.policy.world import World


@dataclass(slots=True)
class _Sot:
    account: Account
    combinations: Combinations = field(default_factory=Combinations)
    paid: float = 0.0  #: seconds of tilings that its own reading has paid for
    is_sure: bool = False  #: was surely tiled


class Ledger:
    """Re-tiles a SOT early where that promises to pay, and surely where it has proved to.

    **Early** tilings look ahead.  A candidate is made if the reads of its SOT that `Outlook`
    expects would save more than it costs; the best bargains first.  What a read would save is the
    mean of those of late, and of `doubt` reads more, which save nothing as far as queries of the
    video look for something else.  A SOT's first early tiling is paid for by what has been spent on
    reading it; the rest, and all later ones, from funds: a small share of all that was spent on
    reading, and what tiles have saved.  So they go on where they turn out well, and end where not.
    A SOT that is due for a sure tiling, or had one, is beyond speculation.

    **Sure** tilings look at all queries of a SOT, and are for what cannot be foreseen.  The total
    of a candidate is what they would have taken, had it been made before the first: its price and
    their decoding.  The candidate with the least total is due once it would have saved `caution`
    times its price, or, where there are tiles, once their total is `lead` times as much; it is made
    once the SOT has been read for `eta` times what its reading pays for, this one included.  As
    totals never fall, a SOT does not go to and fro: tiles that were left have to get ahead by
    `lead`.

    Labels and regions are treated alike, several at once by `Combinations`.

    *Never tile* comes to D0.  Let D be what reading took, S = D0 - D what was saved, P what SOTs
    have paid for themselves and E what came from funds.  With P <= D / eta, SOT by SOT and so in
    all, and E <= stake D + S, D + P + E <= D0 + stake D + D / eta, and as the original stays and
    the cheaper is read, D <= D0:

        total <= (1 + stake + 1 / eta) D0                               `Terms.against_never`

    *At once*: of one SOT, let m be the least total of its N candidates and of no tiles, h the lead
    and c the caution.  After a query, before anything is made early, the SOT is (a) tiled, at most
    h times as dear in total as the least: for each tiling such queries add up to h m at most;
    without tiles, and not due for any: to c times a price and the decoding, so c m at most; or (b)
    due, but not read enough: up to the last such query D <= eta (P + m); or (c) surely tiled now:
    this query took no more than the new tiling, for which the SOT is decoded once, so all such took
    what these did; or (d) best without tiles: such queries took no more than that, so m.

    A candidate costs no more than its total, which is m when it is surely made, and m has grown h
    times before it is surely made again, so all sure ones took N m (1 + 1/h + ...), which is
    N m h / (h - 1).  What the SOT paid for its first early tiling is D / eta at most, when it had
    no tiles and was not due, so c m / eta.  Together P is no more than N m h / (h - 1) + c m / eta,
    D than (N h + c + 1) m + eta (P + m) + N m h / (h - 1), and with E <= D, which funds keep to as
    well, total <= 2 D + P: `Terms.against_at_once`.

    That takes for granted that m does not fall as candidates come up, which is so where a layout
    around more is no cheaper to read and to make than one around the part that was asked for; and
    it grows with N, as it must: who reads in one of N states each query that only this state does
    not serve pays N times as much as the best of them, and cannot know which state comes next.
    """

    def __init__(
        self, world: World, terms: Terms | None = None, outlook: Outlook | None = None
    ) -> None:
        """`outlook`, fresh, stands in for the one with the horizon of `terms`."""
        self._world = world
        self._terms = terms or Terms()
        self._current = Tilings(world, self._terms.byte_seconds)
        self._outlook = outlook or Outlook(len(world.sots), self._terms.horizon)
        self._sots: dict[int, _Sot] = {}
        self._spent = 0.0  #: decoding, of all SOTs
        self._saved = 0.0  #: decoding, of all SOTs, by tiles
        self._funded = 0.0  #: paid from funds

    def start(self) -> list[Retile]:
        return []

    def tell(self, query: Query) -> list[Retile]:
        touched = self._world.touched(query)
        self._outlook.tell(query.aims, touched)
        books = [(sot, self._book(sot, query)) for sot in touched]
        made, wishes = [], []
        for sot, state in books:
            due = self._due(sot, state)
            if due is not None:
                if self._can_pay(sot, state, due):
                    state.is_sure = True
                    made.append(self._paid(sot, state, due, self._current.price(sot, due)))
            elif (hoped := self._hoped(sot, state)) is not None:
                wishes.append((sot, state, *hoped))
        # Those first that pay back soonest.
        for sot, state, tiling, _ in sorted(wishes, key=lambda wish: (-wish[3], wish[0])):
            price = self._current.price(sot, tiling)
            is_first = self._current[sot] is None
            own = min(price, state.account.spent / self._terms.eta) if is_first else 0.0
            if self._funded + price - own <= self._funds():
                self._funded += price - own
                made.append(self._paid(sot, state, tiling, own))
        return sorted(made, key=lambda retile: retile.sot)

    def _book(self, sot: int, query: Query) -> _Sot:
        state = self._sots.get(sot)
        if state is None:
            state = _Sot(Account(self._world, sot, self._outlook.fading))
            self._sots[sot] = state
        seconds = state.account.book(self._outlook.number, query, self._current[sot])
        self._spent += seconds
        self._saved += self._world.decode(sot, query, None) - seconds
        for aims in state.combinations.add(query.aims):
            tiling = self._world.around(sot, aims)
            known = state.account.candidates
            if tiling is not None and (tiling in known or len(known) < self._terms.most):
                state.account.consider(tiling, aims)
        return state

    def _paid(self, sot: int, state: _Sot, tiling: Tiling, own: float) -> Retile:
        """Make it; the SOT's own reading pays so much of it."""
        state.paid += own
        return self._current.put(sot, tiling)

    def _funds(self) -> float:
        """Seconds that all early tilings may have cost by now, besides what SOTs paid."""
        return min(self._terms.stake * self._spent + self._saved, self._spent)

    def _due(self, sot: int, state: _Sot) -> Tiling | None:
        """The tiling that has proved to be the best, if it is better by far."""
        account, current = state.account, self._current[sot]
        totals = {
            one: account.decoding(one) + self._current.price(sot, one) for one in account.candidates
        }
        if not totals:
            return None
        best = min(totals, key=lambda tiling: totals[tiling])
        if best == current or totals[best] >= account.untiled:
            return None
        if current is None:
            saved = account.untiled - account.decoding(best)
            is_due = saved >= self._terms.caution * self._current.price(sot, best)
        else:
            is_due = totals[current] >= self._terms.lead * totals[best]
        return best if is_due else None

    def _can_pay(self, sot: int, state: _Sot, due: Tiling) -> bool:
        paid = state.paid + self._current.price(sot, due)
        return self._terms.eta * paid <= state.account.spent

    def _hoped(self, sot: int, state: _Sot) -> tuple[Tiling, float] | None:
        """The tiling that gains most if queries go on as of late, and its gain / price."""
        if state.is_sure:
            return None
        current = self._current[sot]
        saved = 0.0 if current is None else self._saving(sot, state.account, current)
        reads = self._outlook.reads_to_come(sot)
        best: tuple[float, float, Tiling] | None = None
        for tiling in state.account.candidates:
            price = self._current.price(sot, tiling)
            gain = reads * (self._saving(sot, state.account, tiling) - saved) - price
            if tiling != current and gain >= 0 and (best is None or gain > best[0]):
                best = gain, gain / price if price else inf, tiling
        return None if best is None else (best[2], best[1])

    def _saving(self, sot: int, account: Account, tiling: Tiling) -> float:
        """Seconds that a read to come is expected to save against no tiles."""
        served = max(self._outlook.share(aims) for aims in account.around(tiling))
        reads = self._outlook.reads(sot) + self._terms.doubt * (1 - served)
        return account.saved_of_late(tiling) / reads
