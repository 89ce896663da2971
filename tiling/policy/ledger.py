"""`Ledger`, the policy that stores use: a SOT is tiled when the measured and expected cost of its
reads pays for the tiles.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf

from vfsd.errors import UsageError
from vfsd.tiling.policy.interface import (
    AimCombinations,
    Aims,
    CurrentTilings,
    Query,
    Retile,
    Tiling,
    World,
)


@dataclass(frozen=True, slots=True)
class LedgerParameters:
    """Found on videos and queries other than those of `benchmarks.workloads`.

    Raises `UsageError` for figures that promise nothing.
    """

    eta: float = 1.0
    """Seconds that a SOT has been read for each second that its reading pays for."""
    caution: float = 5.0
    """Seconds that a SOT's first sure tiling would have saved for each it costs; 1 at least."""
    lead: float = 2.0
    """How many times as dear as a sure tiling, in all, the one that is there has to be; above 1."""
    stake: float = 0.1
    """Seconds of early tilings for each second that the video has been read, besides what their
    SOTs pay for and what tiles have saved."""
    horizon: float = 50.0
    """Queries of the video that are foreseen, and looked back on for that; 1 foresees nothing."""
    doubt: float = 8.0
    """Reads of a SOT, besides its own, that are taken to look for what the video's look for."""
    byte_seconds: float = 0.0
    """What a stored byte is worth."""
    most: int = 15
    """Candidates of a SOT; what comes up later is not considered."""

    def __post_init__(self) -> None:
        if min(self.eta, self.most) <= 0 or min(self.stake, self.doubt, self.byte_seconds) < 0:
            raise UsageError(f"{self} cannot be kept")
        if self.lead <= 1 or min(self.caution, self.horizon) < 1:
            raise UsageError(f"{self} cannot be kept")

    @property
    def against_never(self) -> float:
        """No more than so many times what no tiles come to."""
        return 1 + self.stake + 1 / self.eta

    def against_at_once(self, candidates: int) -> float:
        """No more than so many times what comes of making one of `candidates` of each SOT, or none,
        before the first query."""
        sure = candidates * self.lead / (self.lead - 1)
        own = sure + self.caution / self.eta
        read = candidates * self.lead + self.caution + 1 + self.eta * (own + 1) + sure
        return 2 * read + own


class ReadForecast:
    """Expects of the next `horizon` queries of a video what the latest were like.

    Each query counts 1 - 1 / `horizon` of what the one after it counts, so that after many of them
    T, all that counts, comes to `horizon`.  Let n be the reads of a SOT that count, m their mean
    over all SOTs and V their variance.  Were all SOTs as likely to be read, n would vary by chance
    alone, as much as Poisson's distribution does: by m R / T, where R is the sum of the squares of
    what queries count.  Only what V has beyond that is a difference between SOTs, so

        reads to come = horizon (1 - 1 / T) (m + w (n - m)) / T,      w = max(0, 1 - m R / T / V)

    which is the empirical Bayes estimate of rates by moments (Marshall, Applied Statistics 40,
    1991).  Where SOTs are read alike it is the mean that tells what to expect of one, however often
    it happened to be read; where some are favoured, their own reads do.  1 - 1 / T is for whether
    there is another query at all, of which the first says nothing.
    """

    def __init__(self, sots: int, horizon: float) -> None:
        self._sots = sots
        self._horizon = horizon
        self.fading = 1 - 1 / horizon  #: what a query counts, of what the one after it counts
        self.number = 0  #: of the last query
        self._reads: dict[int, tuple[float, int]] = {}  #: with the query at which it was so much
        self._aims: dict[Aims, float] = {}
        self._all = 0.0  #: T
        self._all_squared = 0.0  #: R
        self._sum = 0.0  #: of the reads of all SOTs
        self._squares = 0.0  #: of the same

    def tell(self, aims: Aims, touched: Sequence[int]) -> None:
        """A query has read these SOTs."""
        self.number += 1
        self._all = self._all * self.fading + 1
        self._all_squared = self._all_squared * self.fading**2 + 1
        self._sum *= self.fading
        self._squares *= self.fading**2
        for sot in touched:
            reads = self.reads(sot)
            self._reads[sot] = reads + 1, self.number
            self._sum += 1
            self._squares += 2 * reads + 1
        # What counts next to nothing is forgotten, so that there are not ever more of them.
        faded = {these: part * self.fading for these, part in self._aims.items() if part > 1e-3}
        self._aims = faded | {aims: faded.get(aims, 0.0) + 1}

    def reads(self, sot: int) -> float:
        """Reads of a SOT so far, as far as they count."""
        reads, number = self._reads.get(sot, (0.0, self.number))
        return reads * self.fading ** (self.number - number)

    @property
    def mean(self) -> float:
        """The same of all SOTs, those that were not read included."""
        return self._sum / self._sots

    def reads_to_come(self, sot: int) -> float:
        """Reads of a SOT that are to be expected of the next `horizon` queries."""
        variance = self._squares / self._sots - self.mean**2
        chance = self.mean * self._all_squared / self._all
        own = 1 - chance / variance if variance > chance else 0.0
        return self.to_come(self.mean + own * (self.reads(sot) - self.mean))

    def to_come(self, reads: float) -> float:
        """What so many reads of late, as far as they count, let expect."""
        return self._horizon * (1 - 1 / self._all) * reads / self._all

    def share(self, aims: Aims) -> float:
        """The part of the queries that look for nothing but `aims`."""
        return sum(part for these, part in self._aims.items() if these <= aims) / self._all


class SotAccount:
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


@dataclass(slots=True)
class _SotState:
    account: SotAccount
    combinations: AimCombinations = field(default_factory=AimCombinations)
    paid: float = 0.0  #: seconds of tilings that its own reading has paid for
    is_sure: bool = False  #: was surely tiled


class Ledger:
    """Re-tiles a SOT early where that promises to pay, and surely where it has proved to.

    **Early** tilings look ahead.  A candidate is made if the reads of its SOT that `ReadForecast`
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

    Labels and regions are treated alike, several at once by `AimCombinations`.

    *Never tile* comes to D0.  Let D be what reading took, S = D0 - D what was saved, P what SOTs
    have paid for themselves and E what came from funds.  With P <= D / eta, SOT by SOT and so in
    all, and E <= stake D + S, D + P + E <= D0 + stake D + D / eta, and as the original stays and
    the cheaper is read, D <= D0:

        total <= (1 + stake + 1 / eta) D0
        `LedgerParameters.against_never`

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
    well, total <= 2 D + P: `LedgerParameters.against_at_once`.

    That takes for granted that m does not fall as candidates come up, which is so where a layout
    around more is no cheaper to read and to make than one around the part that was asked for; and
    it grows with N, as it must: who reads in one of N states each query that only this state does
    not serve pays N times as much as the best of them, and cannot know which state comes next.
    """

    def __init__(
        self,
        world: World,
        terms: LedgerParameters | None = None,
        outlook: ReadForecast | None = None,
    ) -> None:
        """`outlook`, fresh, stands in for the one with the horizon of `terms`."""
        self._world = world
        self._terms = terms or LedgerParameters()
        self._current = CurrentTilings(world, self._terms.byte_seconds)
        self._outlook = outlook or ReadForecast(len(world.sots), self._terms.horizon)
        self._sots: dict[int, _SotState] = {}
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

    def _book(self, sot: int, query: Query) -> _SotState:
        state = self._sots.get(sot)
        if state is None:
            state = _SotState(SotAccount(self._world, sot, self._outlook.fading))
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

    def _paid(self, sot: int, state: _SotState, tiling: Tiling, own: float) -> Retile:
        """Make it; the SOT's own reading pays so much of it."""
        state.paid += own
        return self._current.put(sot, tiling)

    def _funds(self) -> float:
        """Seconds that all early tilings may have cost by now, besides what SOTs paid."""
        return min(self._terms.stake * self._spent + self._saved, self._spent)

    def _due(self, sot: int, state: _SotState) -> Tiling | None:
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

    def _can_pay(self, sot: int, state: _SotState, due: Tiling) -> bool:
        paid = state.paid + self._current.price(sot, due)
        return self._terms.eta * paid <= state.account.spent

    def _hoped(self, sot: int, state: _SotState) -> tuple[Tiling, float] | None:
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

    def _saving(self, sot: int, account: SotAccount, tiling: Tiling) -> float:
        """Seconds that a read to come is expected to save against no tiles."""
        served = max(self._outlook.share(aims) for aims in account.around(tiling))
        reads = self._outlook.reads(sot) + self._terms.doubt * (1 - served)
        return account.saved_of_late(tiling) / reads
