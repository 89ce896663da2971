"""The figures of a `Ledger`, and what they promise."""

from __future__ import annotations

from dataclasses import dataclass

from vfsd.errors import UsageError


@dataclass(frozen=True, slots=True)
class Terms:
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
