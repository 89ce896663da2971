"""`Unit`, a piece of work that takes about half a minute, and `Outcome`, its result.

Both are JSON objects of plain values.  A unit names no secret and no path of a host, except for
the sources of an ingest, which all workers must be able to read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

VERBS: Final = (
    "ingest",
    "retile",
    "render",
    "detect",
    "verify",
    "scrub",
    "compress",
    "replace",
    "tune",
    "backup",
)
"""Commands that can be planned in units."""

MADE, SKIPPED, OUTDATED, TAKEN = "made", "skipped", "outdated", "taken"
FAILED, REFUSED, CANCELLED = "failed", "refused", "cancelled"


class LeaveRunning(KeyboardInterrupt):
    """Raised by a callback of `Order.run`: return, and let processes of this machine go on."""


OnProgress = Callable[[int, int], None]
"""Called with (done, all) several times a second; may raise to stop."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of work on one video, a file to be ingested, or objects to be copied.

    If the video has other bytes by then, the outcome is "outdated".
    """

    verb: str
    video: int | None  #: id of the video; None for ingest and backup
    digest: str | None  #: BLAKE3 of its bytes when the order was planned
    frames: tuple[int, int] | None  #: half-open, in display order; all frames for whole files
    spec: Mapping[str, Any]  #: arguments of the verb
    cost: float  #: expected CPU seconds
    order: str = ""  #: id of the order; empty: the results are not stored
    number: int = 0  #: from 0, in the order

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "frames": None if self.frames is None else list(self.frames)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], order: str = "", number: int = 0) -> Unit:
        """Return the unit of `to_json`, or of a row of the catalog without order and number."""
        given = {"order": order, "number": number, **value}
        frames = given["frames"]
        return cls(**{**given, "frames": None if frames is None else tuple(frames)})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a unit."""

    outcome: str
    """made, skipped (nothing was left to do), outdated, taken (the name has another file), failed,
    refused or cancelled."""
    made: int = 0  #: new segments, boxes or videos, or checked files
    skipped: int = 0  #: segments or frames that existed already
    frames: int = 0  #: frames of the unit that were worked on
    bytes_read: int = 0  #: of originals, approximately
    bytes_written: int = 0
    cpu_seconds: float = 0.0
    error: str | None = None
    exit_code: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.outcome in (MADE, SKIPPED, OUTDATED)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
