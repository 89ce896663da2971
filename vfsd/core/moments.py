"""Moments: labelled runs of frames without a box; `FrameRun`, `Moment` and `merged_moments`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from vfsd.core.detections import Ints, Source
from vfsd.core.frames import frame_ranges, subtract_ranges
from vfsd.core.label_query import LabelClause


@dataclass(frozen=True, slots=True)
class FrameRun:
    """A run of frames of a video."""

    video: str  #: its name
    frames: range
    span: tuple[Fraction, Fraction]  #: seconds from the first frame, the end exclusive

    @property
    def name(self) -> str:
        """The frames as a key of views: ``video.views.open(moment.name + ".mp4")`` plays them."""
        return f"frames={self.frames.start}-{self.frames.stop}"


@dataclass(frozen=True, slots=True)
class Moment(FrameRun):
    """A labelled run of frames."""

    label: str
    source: Source
    confidence: float | None = None  #: on the scale of the source; None: unknown
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MomentRow:
    """A moment as the catalog stores it."""

    frames: range
    label: str
    confidence: float | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


def merged_moments(rows: Iterable[MomentRow]) -> list[MomentRow]:
    """Return `rows` with those of one label joined where they overlap or follow each other.

    A joined moment keeps the confidence and the attributes that all of its parts agree on.
    """
    found: list[MomentRow] = []
    for row in sorted(rows, key=lambda one: (one.label, one.frames.start, one.frames.stop)):
        last = found[-1] if found else None
        if last is None or last.label != row.label or row.frames.start > last.frames.stop:
            found.append(row)
            continue
        agreed = {
            key: value
            for key, value in last.attributes.items()
            if key in row.attributes and row.attributes[key] == value
        }
        found[-1] = MomentRow(
            range(last.frames.start, max(last.frames.stop, row.frames.stop)),
            row.label,
            row.confidence if row.confidence == last.confidence else None,
            agreed,
        )
    return sorted(found, key=lambda one: (one.frames.start, one.frames.stop, one.label))


def renumbered_moment(row: MomentRow, new_of: Ints) -> MomentRow | None:
    """Return a moment whose frame ``i`` has become ``new_of[i]``; negative: it is gone.

    The new run reaches from the first to the last frame that is left; None if there is none.
    """
    numbers = new_of[row.frames.start : row.frames.stop]
    numbers = numbers[numbers >= 0]
    if not len(numbers):
        return None
    return replace(row, frames=range(int(numbers.min()), int(numbers.max()) + 1))


def matches_clauses(rows: Sequence[Moment], clauses: Sequence[LabelClause]) -> list[Moment]:
    """Return the moments that satisfy an expression of `label_query`.

    As an object may have several boxes, a run of frames may have several labels: ``a & b`` are
    the moments labelled a or b whose frames have both labels, whatever their sources.
    """
    if not clauses:
        return list(rows)
    of_run: dict[tuple[str, range], list[Moment]] = {}
    for row in rows:
        of_run.setdefault((row.video, row.frames), []).append(row)
    wanted = [clause for clause in clauses if not clause.negated]
    found = []
    for row in rows:
        together = of_run[row.video, row.frames]
        holds = all(
            any(_holds(clause, other) for other in together) != clause.negated for clause in clauses
        )
        if holds and (not wanted or any(_holds(clause, row) for clause in wanted)):
            found.append(row)
    return found


def _holds(clause: LabelClause, row: Moment) -> bool:
    if row.label in clause.labels:
        return True
    return any(
        key in row.attributes and _is_same(row.attributes[key], value)
        for key, value in clause.attributes
    )


def _is_same(one: object, other: object) -> bool:
    """Compare as JSON does: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def unlabelled_windows(
    windows: Iterable[range], labelled: Iterable[range], examined: Iterable[range]
) -> list[range]:
    """Return the windows without a labelled frame that were not examined in full.

    Windows ascend and do not overlap; the other ranges may, in any order.
    """
    busy, looked = frame_ranges(list(labelled)), frame_ranges(list(examined))
    found = []
    for window in windows:
        whole = [(window.start, window.stop)]
        if subtract_ranges(whole, busy) == whole and subtract_ranges(whole, looked):
            found.append(window)
    return found
