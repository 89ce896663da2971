"""How often a SOT will be read, judged by how often those of its video were read of late."""

from __future__ import annotations

from collections.abc import Sequence

from vfsd.tiling.policy.query import Aims


class Outlook:
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
