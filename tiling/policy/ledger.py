"""`Ledger`, the policy of stores.

A SOT is tiled when the measured and expected cost of its reads pays for the tiles.
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
    tilings_around,
)


@dataclass(frozen=True, slots=True)
class LedgerParameters:
    """Tuned on videos and queries other than those of `benchmarks.workloads`.

    Raises `UsageError` for values without a guaranteed bound.
    """

    eta: float = 1.0
    """Seconds of reading a SOT per second of tiling that they pay for."""
    caution: float = 5.0
    """Required savings of a SOT's first sure tiling per second of its price; at least 1."""
    lead: float = 2.0
    """Ratio of the total of the current tiling to that of a sure one that replaces it; above 1."""
    stake: float = 0.1
    """Seconds of early tilings per second of reading the video, in addition to the contributions of
    their SOTs and to past savings.
    """
    horizon: float = 50.0
    """Number of queries that are forecast, and that the forecast is based on; 1: no forecast."""
    persistence: float = 0.0
    """Queries to come for each query so far; counts where that is more than `horizon`."""
    doubt: float = 8.0
    """Weight, in reads, of the assumption that a SOT is read like the rest of the video."""
    byte_seconds: float = 0.0
    """Value of a stored byte in seconds."""
    most: int = 15
    """Maximum number of candidates per SOT; later ones are not considered."""

    def __post_init__(self) -> None:
        if min(self.eta, self.most) <= 0 or (
            min(self.stake, self.doubt, self.byte_seconds, self.persistence) < 0
        ):
            raise UsageError(
                f"eta, most, stake, doubt, byte_seconds or persistence is too small: {self}"
            )
        if self.lead <= 1 or min(self.caution, self.horizon) < 1:
            raise UsageError(
                f"lead must be above 1, and caution and horizon at least 1, got {self}"
            )

    @property
    def bound_untiled(self) -> float:
        """Upper bound of the total cost relative to never tiling."""
        return 1 + self.stake + 1 / self.eta

    def bound_offline(self, candidates: int) -> float:
        """Return an upper bound of the total cost relative to the best choice before the first
        query.

        That choice is one of `candidates` tilings, or none, for each SOT.
        """
        sure = candidates * self.lead / (self.lead - 1)
        own = sure + self.caution / self.eta
        read = candidates * self.lead + self.caution + 1 + self.eta * (own + 1) + sure
        return 2 * read + own


class ReadForecast:
    """Forecasts the next queries of a video from the latest ones.

    Each query has 1 - 1 / `horizon` of the weight of its successor, so the total weight T
    approaches `horizon`.  Let n be the weighted reads of a SOT, m their mean over all SOTs and V
    their variance. If all SOTs were equally likely to be read, n would vary only by chance, like a
    Poisson variable: by m R / T, where R is the sum of squared weights.  Only the excess of V over
    that is a difference between SOTs, so

        reads to come = horizon (1 - 1 / T) (m + w (n - m)) / T,      w = max(0, 1 - m R / T / V)

    This is the empirical Bayes estimate of rates by moments (Marshall, Applied Statistics 40,
    1991).  If SOTs are read alike, the mean is the forecast for each, however often it happened to
    be read.  If some are preferred, their own reads are.  1 - 1 / T is the probability of another
    query at all, about which the first query says nothing.

    With a `persistence`, the number of forecast queries grows with those so far.  This suits
    training, which reads a video again and again.
    """

    def __init__(self, sots: int, horizon: float, persistence: float = 0.0) -> None:
        """`horizon` and `persistence` are those of `LedgerParameters`."""
        self._sots = sots
        self._horizon = horizon
        self._persistence = persistence
        self.fading = 1 - 1 / horizon  #: weight of a query relative to its successor
        self.number = 0  #: number of the last query
        self._reads: dict[
            int, tuple[float, int]
        ] = {}  #: (weighted reads, query number of that value)
        self._aims: dict[Aims, float] = {}
        self._all = 0.0  #: T
        self._all_squared = 0.0  #: R
        self._sum = 0.0  #: sum of the weighted reads of all SOTs
        self._squares = 0.0  #: sum of their squares

    def observe(self, aims: Aims, touched: Sequence[int]) -> None:
        """Record a query that read these SOTs."""
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
        # Negligible weights are dropped, to bound the number of entries.
        faded = {these: part * self.fading for these, part in self._aims.items() if part > 1e-3}
        self._aims = faded | {aims: faded.get(aims, 0.0) + 1}

    def reads(self, sot: int) -> float:
        """Return the weighted reads of a SOT so far."""
        reads, number = self._reads.get(sot, (0.0, self.number))
        return reads * self.fading ** (self.number - number)

    @property
    def mean(self) -> float:
        """Mean of the weighted reads over all SOTs, including those never read."""
        return self._sum / self._sots

    def expected_reads(self, sot: int) -> float:
        """Return the expected reads of a SOT in the forecast queries."""
        variance = self._squares / self._sots - self.mean**2
        chance = self.mean * self._all_squared / self._all
        own = 1 - chance / variance if variance > chance else 0.0
        return self.expected(self.mean + own * (self.reads(sot) - self.mean))

    def expected(self, reads: float) -> float:
        """Return the expected reads for a number of weighted recent reads."""
        coming = max(self._horizon, self._persistence * self.number)
        return coming * (1 - 1 / self._all) * reads / self._all

    def share(self, aims: Aims) -> float:
        """Return the weighted share of queries that have no aims other than `aims`."""
        return sum(part for these, part in self._aims.items() if these <= aims) / self._all


class SotAccount:
    """Seconds spent on a SOT, and the seconds that each candidate would have taken.

    A new candidate is charged for all earlier queries, so the time of its discovery does not
    matter. In addition to the totals, there are recent savings: a query has `fading` of the weight
    of the next query of the video.
    """

    def __init__(self, world: World, sot: int, fading: float) -> None:
        self._world = world
        self._sot = sot
        self._fading = fading
        self._past: list[tuple[int, Query]] = []
        self._now = 0
        self.spent = 0.0  #: seconds of decoding, as read
        self.untiled = 0.0  #: seconds of decoding without tiles
        self._tiled: dict[Tiling, float] = {}
        self._saved: dict[Tiling, float] = {}
        self._around: dict[Tiling, list[Aims]] = {}

    @property
    def candidates(self) -> Collection[Tiling]:
        """All candidates, in order of discovery."""
        return self._tiled.keys()

    def aims_of(self, tiling: Tiling) -> Collection[Aims]:
        """Return all aims with this tiling: several, if some aims do not occur in the SOT."""
        return self._around[tiling]

    def decoding(self, tiling: Tiling) -> float:
        """Return the seconds of all queries so far with a candidate."""
        return self._tiled[tiling]

    def recent_savings(self, tiling: Tiling) -> float:
        """Return the weighted savings of recent queries with a candidate, against no tiles."""
        return self._saved[tiling]

    def book(self, number: int, query: Query, current: Tiling | None) -> float:
        """Record query number `number`, read with the current tiling; return its seconds."""
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
        """Add a candidate, the tiling around `aims`, as if it had existed from the start."""
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
    paid: float = 0.0  #: seconds of tilings paid for by its own reads
    is_sure: bool = False  #: has had a sure tiling


class Ledger:
    """Re-tiles a SOT early if that is expected to pay, and surely once it has proved to pay.

    **Early** tilings look ahead.  A candidate is made if the reads that `ReadForecast` expects
    would save more than its price, best bargains first.  The expected saving of a read is the mean
    over recent reads plus `doubt` more, which save nothing to the extent that queries of the video
    have other aims.  A SOT's first early tiling is paid for by the time spent on reading it.
    Everything else is paid from funds: a small share of all time spent on reading, plus the savings
    of tiles.  So early tilings continue if they turn out well, and stop if not.  A SOT that is due
    for a sure tiling, or had one, gets no more early ones.

    **Sure** tilings consider all queries of a SOT, for workloads that cannot be predicted.  The
    total of a candidate is its price plus the decoding of all queries, as if it had been made
    before the first.  The candidate with the least total is due once it would have saved `caution`
    times its price or, if the SOT has tiles, once their total is `lead` times as high.  It is made
    once the SOT has been read for `eta` times the seconds that its reads have paid for, including
    this tiling.  As totals never decrease, a SOT does not oscillate: replaced tiles must get ahead
    by `lead` to return.

    Labels and regions are treated alike, and combined by `AimCombinations`.  A layout in another
    GOP length is another candidate.

    *Against never tiling*, with cost D0.  Let D be the time of reads, S = D0 - D the savings, P the
    payments of SOTs, and E the payments from funds.  With P <= D / eta for every SOT and in total,
    and E <= stake D + S, we have D + P + E <= D0 + stake D + D / eta.  As the original is kept and
    the cheaper source is read, D <= D0:

        total <= (1 + stake + 1 / eta) D0
        `LedgerParameters.bound_untiled`

    *Against tiling at once*: for one SOT, let m be the least total of its N candidates and of no
    tiles, h the lead and c the caution.  After a query, before anything is made early, the SOT is
    in one of four states.

    (a) Tiled, with at most h times the least total: for each tiling, such queries add up to at most
    h m.  Without tiles and not due: up to c times a price plus the decoding, so at most c m.

    (b) Due, but not read enough: up to the last such query, D <= eta (P + m).

    (c) Surely tiled now: this query took at most as long as making the new tiling, which decodes
    the SOT once.  So all such queries took at most as long as these tilings.

    (d) Best without tiles: such queries took at most as long as without tiles, so m.

    A candidate costs at most its total, which is m when it is surely made.  m has grown h times
    before it is surely made again.  So all sure tilings took at most N m (1 + 1/h + ...) = N m h /
    (h - 1). The SOT paid at most D / eta for its first early tiling, when it had no tiles and was
    not due, so c m / eta.  Therefore P <= N m h / (h - 1) + c m / eta and D <= (N h + c + 1) m +
    eta (P + m) + N m h / (h - 1).  With E <= D, which funds also obey, total <= 2 D + P:
    `LedgerParameters.bound_offline`.

    This assumes that m does not fall with new candidates.  That holds if a layout around more aims
    is not cheaper to read and to make than one around the requested part.  The bound grows with N,
    as it must: a reader that always chooses one of N states that the current tiling does not serve
    pays N times as much as the best of them, and the next state is unpredictable.
    """

    def __init__(
        self,
        world: World,
        terms: LedgerParameters | None = None,
        outlook: ReadForecast | None = None,
    ) -> None:
        """`outlook`, unused so far, replaces the forecast with the horizon of `terms`."""
        self._world = world
        self._terms = terms or LedgerParameters()
        self._current = CurrentTilings(world, self._terms.byte_seconds)
        self._outlook = outlook or ReadForecast(
            len(world.sots), self._terms.horizon, self._terms.persistence
        )
        self._sots: dict[int, _SotState] = {}
        self._spent = 0.0  #: seconds of decoding, of all SOTs
        self._saved = 0.0  #: seconds saved by tiles, of all SOTs
        self._funded = 0.0  #: seconds paid from funds

    def start(self) -> list[Retile]:
        return []

    def observe(self, query: Query) -> list[Retile]:
        touched = self._world.touched(query)
        self._outlook.observe(query.aims, touched)
        books = [(sot, self._book(sot, query)) for sot in touched]
        retiles, proposals = [], []
        for sot, state in books:
            due = self._sure_candidate(sot, state)
            if due is not None:
                if self._can_pay(sot, state, due):
                    state.is_sure = True
                    retiles.append(self._paid(sot, state, due, self._current.price(sot, due)))
            elif (early := self._early_candidate(sot, state)) is not None:
                proposals.append((sot, state, *early))
        # Those that pay back soonest come first.
        for sot, state, tiling, _ in sorted(
            proposals, key=lambda proposal: (-proposal[3], proposal[0])
        ):
            price = self._current.price(sot, tiling)
            is_first = self._current[sot] is None
            own = min(price, state.account.spent / self._terms.eta) if is_first else 0.0
            if self._funded + price - own <= self._funds():
                self._funded += price - own
                retiles.append(self._paid(sot, state, tiling, own))
        return sorted(retiles, key=lambda retile: retile.sot)

    def _book(self, sot: int, query: Query) -> _SotState:
        state = self._sots.get(sot)
        if state is None:
            state = _SotState(SotAccount(self._world, sot, self._outlook.fading))
            self._sots[sot] = state
        seconds = state.account.book(self._outlook.number, query, self._current[sot])
        self._spent += seconds
        self._saved += self._world.decode(sot, query, None) - seconds
        for aims in state.combinations.add(query.aims):
            for tiling in tilings_around(self._world, sot, aims):
                candidates = state.account.candidates
                if tiling in candidates or len(candidates) < self._terms.most:
                    state.account.consider(tiling, aims)
        return state

    def _paid(self, sot: int, state: _SotState, tiling: Tiling, own: float) -> Retile:
        """Make a tiling; `own` seconds are paid by the reads of the SOT."""
        state.paid += own
        return self._current.put(sot, tiling)

    def _funds(self) -> float:
        """Return the seconds that early tilings may cost so far, beyond the payments of SOTs."""
        return min(self._terms.stake * self._spent + self._saved, self._spent)

    def _sure_candidate(self, sot: int, state: _SotState) -> Tiling | None:
        """Return the tiling that has proved to be the best, if it is better by the
        required margin.
        """
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

    def _early_candidate(self, sot: int, state: _SotState) -> tuple[Tiling, float] | None:
        """Return the tiling with the largest expected gain, and its ratio of gain to price."""
        if state.is_sure:
            return None
        current = self._current[sot]
        saved = 0.0 if current is None else self._saving(sot, state.account, current)
        reads = self._outlook.expected_reads(sot)
        best: tuple[float, float, Tiling] | None = None
        for tiling in state.account.candidates:
            price = self._current.price(sot, tiling)
            gain = reads * (self._saving(sot, state.account, tiling) - saved) - price
            if tiling != current and gain >= 0 and (best is None or gain > best[0]):
                best = gain, gain / price if price else inf, tiling
        return None if best is None else (best[2], best[1])

    def _saving(self, sot: int, account: SotAccount, tiling: Tiling) -> float:
        """Return the seconds that a future read is expected to save against no tiles."""
        served = max(self._outlook.share(aims) for aims in account.aims_of(tiling))
        reads = self._outlook.reads(sot) + self._terms.doubt * (1 - served)
        return account.recent_savings(tiling) / reads
