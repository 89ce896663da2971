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
    """Seconds that a SOT has been read for each second of its sure tilings."""
    caution: float = 3.0
    """How many times what a SOT's first sure tiling would still have decoded counts; 1 at least."""
    lead: float = 1.25
    """How many times cheaper in all a sure tiling has to be than the one that is there; above 1."""
    stake: float = 0.1
    """Seconds of early tilings for each second that the video has been read, besides what tiles
    have saved."""
    early_eta: float = 1.0
    """Seconds that the video has been read for each second of early tilings, whatever was saved."""
    payback: float = 3.0
    """Most queries in which an early tiling has to pay for itself."""
    least_saving: float = 0.5
    """The share of recent reading that an early tiling has to save."""
    half_life: float = 200.0
    """Queries of the video after which one counts half for early tilings."""
    byte_seconds: float = 0.0
    """What a stored byte is worth."""
    most: int = 15
    """Candidates of a SOT; what comes up later is not considered."""

    def __post_init__(self) -> None:
        positive = (self.eta, self.early_eta, self.half_life, self.most)
        if min(positive) <= 0 or min(self.stake, self.byte_seconds) < 0:
            raise UsageError(f"{self} cannot be kept")
        if self.lead <= 1 or self.caution < 1:
            raise UsageError(f"{self} cannot be kept")

    @property
    def against_never(self) -> float:
        """No more than so many times what no tiles come to."""
        return 1 + self.stake + 1 / self.eta

    def against_at_once(self, candidates: int) -> float:
        """No more than so many times what comes of making one of `candidates` of each SOT, or none,
        before the first query."""
        paid = candidates * self.lead / (self.lead - 1)
        read = candidates * self.lead + self.caution + 1 + self.eta * (paid + 1) + paid
        return read * (1 + 1 / self.early_eta) + paid
