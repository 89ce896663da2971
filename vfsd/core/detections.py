"""Labelled boxes from detectors and people, as single values and as columns.

A box is ``x1, y1, x2, y2`` in pixels of the displayed full frame, the second corner exclusive.  It
may be fractional and may extend outside the frame.  Frames are counted from 0 in display order.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from vfsd.errors import ExtraMissingError, UsageError
from vfsd.tiling import Rect, Region
from vfsd.validation import MAX_JSON_DEPTH, is_too_deep, require_storable_text, with_python_scalars

if TYPE_CHECKING:
    import pandas
    import pyarrow

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Box = tuple[float, float, float, float]
Area = Region | Iterable[float] | npt.NDArray[Any]
"""As `Region`, with fractions allowed."""
Attributes = Mapping[str, Any]

NO_TRACK = -1
"""Value in a column of tracks: the box has no track."""

NO_SOURCE = -1
"""Value in a column of sources: the source of the box is unknown."""

MAX_COORDINATE = 1_000_000.0
"""Largest distance in pixels of a coordinate from the frame's corner, in either direction."""

MAX_TEXT_LENGTH = 255
"""Maximum length of a label, and of each text that describes a source."""

_A_BOX = "a box needs x1 < x2 and y1 < y2, in pixels with the second corner exclusive"
_PARAMETERS = (
    'give a dict of JSON values, for example {"every": 5}, nested at most '
    f"{MAX_JSON_DEPTH} levels deep"
)
_A_WORD = f"give 1 to {MAX_TEXT_LENGTH} printable characters without a space at either end"


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of detections: a model of some version with its settings, or people.

    Two sources are equal when all four fields agree.
    """

    name: str
    model: str = ""
    version: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        require_word(self.name, "the name of a source")
        for value in (self.model, self.version):
            if value:
                require_word(value, "the model or version of a source")
        object.__setattr__(self, "parameters", with_python_scalars(self.parameters))
        _require_parameters(self.parameters)

    def __str__(self) -> str:
        return " ".join(word for word in (self.name, self.model, self.version) if word)

    def record(self) -> dict[str, Any]:
        """Return name, model and version for JSON."""
        return {"name": self.name, "model": self.model, "version": self.version}


@dataclass(frozen=True, slots=True)
class Detection:
    """One labelled box on one frame."""

    frame: int
    label: str
    box: Box
    confidence: float | None = None  #: finite, on the scale of its source, usually 0 to 1
    track: int | None = None  #: number of the tracked object, within its source
    source: Source | None = None  #: always set on detections read from a catalog
    attributes: Attributes = field(default_factory=dict, hash=False)  #: JSON values

    def clipped(self, width: int, height: int) -> Detection | None:
        """Return the part inside a frame of width x height pixels, or None if there is none."""
        x1, y1, x2, y2 = self.box
        box = (max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height)))
        if box[0] >= box[2] or box[1] >= box[3]:
            return None
        return dataclasses.replace(self, box=box)

    def rect(self, width: int, height: int) -> Rect | None:
        """Return the whole pixels of a width x height frame that the box touches, or None."""
        inside = self.clipped(width, height)
        if inside is None:
            return None
        x1, y1, x2, y2 = inside.box
        return Rect(math.floor(x1), math.floor(y1), math.ceil(x2), math.ceil(y2))


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """Counts for one label of a video."""

    label: str
    boxes: int
    frames: int  #: with at least one such box
    tracks: int  #: distinct (track, source) pairs
    first_frame: int
    end_frame: int  #: one past the last


class BoxTotal(NamedTuple):
    """The number of boxes with a label from a source."""

    label: str
    source: Source | None  #: None: of several together, like the video
    video: str | None  #: its name
    boxes: int


@dataclass(frozen=True, slots=True)
class Examined:
    """A run of frames that a source has examined: where it reported nothing, it found nothing."""

    source: Source
    frames: range


@dataclass(frozen=True, slots=True, eq=False)
class DetectionColumns:
    """Many detections, with one numpy array for each property.  Create them with `of`, which
    checks.

    Indexing with an int and iteration give `Detection`s.  A slice, a mask or an index array gives
    columns, like `select`.
    """

    frames: Ints
    codes: Ints  #: index into `names`
    names: tuple[str, ...]  #: the distinct labels
    boxes: Floats  #: N x 4
    confidences: Floats  #: NaN: none
    tracks: Ints  #: `NO_TRACK`: none
    attributes: tuple[Attributes | None, ...] | None = None  #: None: no row has any
    source_codes: Ints | None = None  #: index into `sources`, or `NO_SOURCE`; None: no row has one
    sources: tuple[Source, ...] = ()

    @classmethod
    def of(
        cls,
        frames: Sequence[int] | npt.NDArray[Any],
        labels: str | Sequence[str] | npt.NDArray[Any],
        boxes: Sequence[Sequence[float]] | npt.NDArray[Any],
        confidences: Sequence[float | None] | npt.NDArray[Any] | None = None,
        tracks: Sequence[int | None] | npt.NDArray[Any] | None = None,
        attributes: Sequence[Attributes | None] | None = None,
    ) -> DetectionColumns:
        """Build columns from sequences or arrays of equal length.

        Raises `UsageError` with the first invalid row: lengths that differ, a box without area or
        out of range, a negative frame or track, an invalid label.

        Args:
            frames: Frame numbers.
            labels: One label for each row, or a `str` for all rows.
            boxes: N x 4, as x1, y1, x2, y2.
            confidences: None (or an element None): unknown.
            tracks: None (or an element None): no track.
            attributes: A dict of JSON values for each row.
        """
        numbers = _integers(frames, "frames")
        count = len(numbers)
        if isinstance(labels, str):
            names: tuple[str, ...] = (labels,)
            codes = np.zeros(count, dtype=np.int64)
        else:
            codes, names = _encoded(labels)
        made = cls(
            numbers,
            codes,
            names,
            _corners(boxes),
            _confidences(confidences, count),
            _tracks(tracks, count),
            None
            if attributes is None or not any(attributes)
            else tuple(map(with_python_scalars, attributes)),
        )
        made.check()
        return made

    @classmethod
    def from_detections(cls, detections: Iterable[Detection]) -> DetectionColumns:
        """Build columns from `Detection`s, in their order.  Raises `UsageError` as `of` does."""
        rows = _several(detections, "detections", "DetectionColumns.of takes arrays")
        for row in rows:
            if not isinstance(row, Detection):
                raise UsageError(
                    f"detections must be of type Detection, got {shown(row)}",
                    hint="give Detection(frame, label, box), or arrays to DetectionColumns.of",
                )
            if row.confidence is not None and row.confidence != row.confidence:
                raise UsageError(
                    f"confidence of a box on frame {row.frame!r} must be a number, got nan",
                    hint="give None where the confidence is unknown",
                )
        made = cls.of(
            [row.frame for row in rows],
            [row.label for row in rows],
            [row.box for row in rows],
            [row.confidence for row in rows],
            [row.track for row in rows],
            [row.attributes or None for row in rows],
        )
        return made.with_sources([row.source for row in rows])

    @classmethod
    def concat(cls, parts: Iterable[DetectionColumns]) -> DetectionColumns:
        """Concatenate columns."""
        kept = [part for part in parts if len(part)]
        if len(kept) == 1:
            return kept[0]
        labels = [label for part in kept for label in part.labels]
        some = any(part.attributes is not None for part in kept)
        made = cls.of(
            np.concatenate([part.frames for part in kept]) if kept else [],
            labels,
            np.concatenate([part.boxes for part in kept]) if kept else [],
            np.concatenate([part.confidences for part in kept]) if kept else None,
            np.concatenate([part.tracks for part in kept]) if kept else None,
            [row for part in kept for row in part.attributes or [None] * len(part)]
            if some
            else None,
        )
        return made.with_sources([part.source_of(i) for part in kept for i in range(len(part))])

    def with_sources(self, sources: Sequence[Source | None]) -> DetectionColumns:
        """Return the same rows with a source for each; None: unknown."""
        known: dict[Source, int] = {}
        codes = [NO_SOURCE if one is None else known.setdefault(one, len(known)) for one in sources]
        if len(codes) != len(self):
            raise UsageError(f"sources must be one for each of {len(self)} boxes, got {len(codes)}")
        return dataclasses.replace(
            self,
            source_codes=np.asarray(codes, dtype=np.int64) if known else None,
            sources=tuple(known),
        )

    def check(self) -> None:
        """Raises `UsageError` that names the first invalid row."""
        count = len(self.frames)
        if self.boxes.ndim != 2 or self.boxes.shape[1:] != (4,):
            raise UsageError(
                f"boxes must be of shape N x 4, got {self.boxes.shape}",
                hint="give x1, y1, x2, y2 for each box",
            )
        lengths = {
            "labels": len(self.codes),
            "boxes": len(self.boxes),
            "confidences": len(self.confidences),
            "tracks": len(self.tracks),
            "attributes": count if self.attributes is None else len(self.attributes),
        }
        for name, length in lengths.items():
            if length != count:
                raise UsageError(f"{name} must be one for each of {count} frames, got {length}")
        for name in self.names:
            require_word(name, "a label")
        for row in self.attributes or ():
            check_attributes({} if row is None else row)
        for wrong, what, hint in (
            (self.frames < 0, "the frame number is negative", "frames count from 0"),
            (
                ~(np.abs(self.boxes) <= MAX_COORDINATE).all(axis=1),
                "the box is too far outside the frame",
                _A_BOX,
            ),
            (
                (self.boxes[:, 0] >= self.boxes[:, 2]) | (self.boxes[:, 1] >= self.boxes[:, 3]),
                "the box has no area",
                _A_BOX,
            ),
            (
                np.isinf(self.confidences),
                "the confidence is infinite",
                "give None where the confidence is unknown",
            ),
            (self.tracks < NO_TRACK, "the track number is negative", "give None for no track"),
        ):
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                raise UsageError(
                    f"row {at}: {what} (frame {self.frames[at]}, box {self.boxes[at].tolist()})",
                    hint=hint,
                )

    def __len__(self) -> int:
        return len(self.frames)

    @overload
    def __getitem__(self, at: int) -> Detection: ...
    @overload
    def __getitem__(self, at: slice | npt.NDArray[Any] | list[int]) -> DetectionColumns: ...

    def __getitem__(
        self, at: int | slice | npt.NDArray[Any] | list[int]
    ) -> Detection | DetectionColumns:
        if isinstance(at, np.ndarray) and at.ndim == 0:
            at = int(at)
        if isinstance(at, (slice, list, np.ndarray)):
            return self.select(at)
        confidence, track = float(self.confidences[at]), int(self.tracks[at])
        x1, y1, x2, y2 = self.boxes[at].tolist()
        return Detection(
            int(self.frames[at]),
            self.names[self.codes[at]],
            (x1, y1, x2, y2),
            None if math.isnan(confidence) else confidence,
            None if track == NO_TRACK else track,
            self.source_of(at),
            self.attributes_of(at),
        )

    def __iter__(self) -> Iterator[Detection]:
        return (self[at] for at in range(len(self)))

    @property
    def labels(self) -> npt.NDArray[Any]:
        """The label of each row, as an object array of `str`."""
        return np.array([*self.names, ""], dtype=object)[self.codes]

    def source_of(self, at: int) -> Source | None:
        code = NO_SOURCE if self.source_codes is None else int(self.source_codes[at])
        return None if code == NO_SOURCE else self.sources[code]

    def by_source(self) -> list[tuple[Source, DetectionColumns]]:
        """Return the rows of each source.  Raises `UsageError` if a row has no source."""
        if not len(self):
            return []
        if self.source_codes is None or (self.source_codes == NO_SOURCE).any():
            raise UsageError("every box must have a source", hint="give a source")
        return [
            (source, self.select(self.source_codes == code))
            for code, source in enumerate(self.sources)
        ]

    def attributes_of(self, at: int) -> Attributes:
        return {} if self.attributes is None else self.attributes[at] or {}

    def select(self, rows: npt.NDArray[Any] | slice | list[int]) -> DetectionColumns:
        """Return the rows of a mask, a slice or an index array, in that order."""
        chosen = np.arange(len(self))[rows]
        return dataclasses.replace(
            self,
            frames=self.frames[chosen],
            codes=self.codes[chosen],
            boxes=self.boxes[chosen],
            confidences=self.confidences[chosen],
            tracks=self.tracks[chosen],
            attributes=None
            if self.attributes is None
            else tuple(self.attributes[at] for at in chosen),
            source_codes=None if self.source_codes is None else self.source_codes[chosen],
        )

    def sorted_by_frame(self) -> DetectionColumns:
        """Return the rows sorted by frame, stable within a frame."""
        if (np.diff(self.frames) >= 0).all():
            return self
        return self.select(np.argsort(self.frames, kind="stable"))

    def isin(self, others: DetectionColumns) -> npt.NDArray[np.bool_]:
        """Return for each row whether `others` has a row with the same frame, label, box,
        confidence and track.
        """
        known: dict[str, int] = {}
        mine, theirs = (rows._numbers(known) for rows in (self, others))
        return np.isin(mine, theirs)

    def clipped(self, width: int, height: int) -> DetectionColumns:
        """Return the rows clipped to a frame of width x height pixels, without boxes outside it."""
        limits = np.array([width, height, width, height], dtype=np.float64)
        boxes = np.clip(self.boxes, 0, limits)
        inside = (boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3])
        return dataclasses.replace(self, boxes=boxes).select(inside)

    def to_arrow(self) -> pyarrow.Table:
        """Return a table with one row per box.  Raises `ExtraMissingError` without pyarrow.

        The columns are those of the table "detections" (docs/reference/tables.md), without `name`
        and `seconds`.
        """
        from vfsd.core.arrow_tables import detections_batch, require_pyarrow

        return require_pyarrow().Table.from_batches([detections_batch(self)])

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with one row per box.  Raises `ExtraMissingError` without pandas."""
        try:
            import pandas
        except ImportError:
            raise _missing("pandas", "pandas") from None
        columns = self._flat()
        columns["label"] = pandas.Categorical.from_codes(
            self.codes.astype(np.int32), list(self.names)
        )
        columns["track"] = pandas.array(self.tracks, dtype="Int64")
        columns["track"][_is_no_track(self.tracks)] = pandas.NA
        return pandas.DataFrame(columns)

    def _numbers(self, known: dict[str, int]) -> npt.NDArray[Any]:
        """Return the fields that `isin` compares, as one structured value per row."""
        codes = np.array([known.setdefault(name, len(known)) for name in self.names], np.float64)
        names = ("frame", "label", "x1", "y1", "x2", "y2", "confidence", "track")
        rows = np.empty(len(self), [(name, np.float64) for name in names])
        rows["frame"], rows["label"] = self.frames, codes[self.codes]
        for at, name in enumerate(("x1", "y1", "x2", "y2")):
            rows[name] = self.boxes[:, at] + 0.0  # turns -0.0 into 0.0
        # Unlike NaN, infinity equals itself, and no confidence is infinite.
        rows["confidence"] = np.where(np.isnan(self.confidences), np.inf, self.confidences)
        rows["track"] = self.tracks
        return rows

    def _flat(self) -> dict[str, Any]:
        corners = {name: self.boxes[:, at] for at, name in enumerate(("x1", "y1", "x2", "y2"))}
        codes = self.source_codes  # `NO_SOURCE` is the last one: the empty text
        codes = np.full(len(self), NO_SOURCE) if codes is None else codes
        return {
            "frame": self.frames,
            "label": self.labels,
            **corners,
            "confidence": self.confidences,
            "track": self.tracks,
            **{
                column: np.array([*(getattr(one, name) for one in self.sources), ""], object)[codes]
                for column, name in (("source", "name"), ("model", "model"), ("version", "version"))
            },
        }


def check_attributes(attributes: Attributes) -> None:
    """Raises `UsageError` for attributes that would not survive a round trip through JSON."""
    if not isinstance(attributes, Mapping):
        raise UsageError(
            f"attributes must be a dict, got {shown(attributes)}", hint='for example {"lane": 3}'
        )
    for key, value in attributes.items():
        require_word(key, "the name of an attribute")
        if value is not None and not isinstance(value, (str, bool, int, float)):
            raise UsageError(
                f"attribute {key!r} must be a number, a str, a bool or None, got {shown(value)}",
                hint="give nested values as JSON text",
            )
        if isinstance(value, str):
            require_storable_text(value, f"the attribute {key!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"attribute {key!r} must be finite, got {value!r}")


def _require_parameters(parameters: object) -> None:
    """Raises `UsageError` unless JSON can hold them, not too deep: sources differ by them."""
    try:
        if isinstance(parameters, Mapping) and not is_too_deep(parameters):
            json.dumps(dict(parameters), sort_keys=True)
            return
    except (TypeError, ValueError):
        pass
    raise UsageError(
        f"parameters must be a dict that JSON can hold, got {shown(parameters)}", hint=_PARAMETERS
    )


def source_from(source: str | Source) -> Source:
    """Return `source`, or a `Source` with that name and nothing else."""
    return source if isinstance(source, Source) else Source(source)


def contiguous_ranges(frames: Ints | Sequence[int]) -> list[range]:
    """Return the maximal ranges that strictly ascending numbers make up."""
    frames = np.asarray(frames, np.int64)
    if not len(frames):
        return []
    cuts = np.flatnonzero(np.diff(frames) > 1)
    starts = [int(frames[0]), *frames[cuts + 1].tolist()]
    lasts = [*frames[cuts].tolist(), int(frames[-1])]
    return [range(start, last + 1) for start, last in zip(starts, lasts, strict=True)]


def require_word(text: object, what: str) -> None:
    """Raises `UsageError` unless `text` can be a label, or the name of a source or attribute."""
    if (
        not isinstance(text, str)
        or not text.isprintable()
        or text != text.strip()
        or not 0 < len(text) <= MAX_TEXT_LENGTH
    ):
        raise UsageError(
            f"{what} must be printable text, got {text!r}",
            hint=_A_WORD,
        )


def _several(values: Any, what: str, hint: str) -> list[Any]:
    """Return a list of several values.  Raises `UsageError` for a single value, and for text."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UsageError(f"{what} must be several values, got {shown(values)}", hint=hint)
    return list(values)


def _integers(values: Sequence[int] | npt.NDArray[Any], what: str) -> Ints:
    try:
        found = np.asarray(values)
    except ValueError:  # lists of several lengths
        raise UsageError(
            f"{what} must be whole numbers, got {shown(values)}", hint="give whole numbers"
        ) from None
    if found.size and found.dtype.kind not in "iu":
        raise UsageError(
            f"{what} must be whole numbers, got {found.dtype}", hint="give whole numbers"
        )
    return found.astype(np.int64).reshape(-1)


def _encoded(labels: Sequence[str] | npt.NDArray[Any]) -> tuple[Ints, tuple[str, ...]]:
    values = labels.tolist() if isinstance(labels, np.ndarray) else labels
    known: dict[str, int] = {}
    codes = []
    for label in _several(values, "labels", "give one label for all boxes, or one for each"):
        if not isinstance(label, str):
            raise UsageError(f"a label must be a str, got {shown(label)}", hint=_A_WORD)
        codes.append(known.setdefault(label, len(known)))
    return np.asarray(codes, dtype=np.int64), tuple(known)


def _corners(boxes: Any) -> Floats:
    """Return an array of any shape; an empty one gets four columns."""
    try:
        corners = np.asarray(boxes, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"boxes must be numbers, got {shown(boxes)}", hint=_A_BOX) from None
    return corners.reshape(-1, 4) if corners.size == 0 else corners


def _confidences(values: Any, count: int) -> Floats:
    if values is None:
        return np.full(count, np.nan)
    try:
        if not isinstance(values, np.ndarray):
            values = [math.nan if value is None else value for value in values]
        found = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        found = np.empty((0, 0))
    except OverflowError:
        raise UsageError("confidence does not fit into 64 bits") from None
    if found.ndim != 1:
        raise UsageError(
            f"confidences must be a number for each box, or None, got {shown(values)}",
            hint="give a number for each box, or None",
        )
    return found


def _tracks(values: Any, count: int) -> Ints:
    """Return whole numbers, with `NO_TRACK` for None and for the NaN of pandas."""
    if values is None:
        return np.full(count, NO_TRACK, dtype=np.int64)
    if isinstance(values, np.ndarray) and values.dtype.kind == "i":
        return values.astype(np.int64)
    try:
        each = _several(values, "tracks", "give a whole number for each box, or None")
        return np.array([_track(value) for value in each], dtype=np.int64)
    except OverflowError:
        raise UsageError("a track number does not fit into 64 bits") from None


def _track(value: Any) -> int:
    number: int | None
    try:
        if value is None or value != value:
            return NO_TRACK
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or number != value:
        raise UsageError(f"track must be a whole number or None, got {value!r}")
    return number


def _is_no_track(tracks: Ints) -> npt.NDArray[np.bool_]:
    return np.asarray(tracks == NO_TRACK)


def _missing(package: str, extra: str) -> ExtraMissingError:
    return ExtraMissingError(f"{package} is not installed", hint=f"pip install 'vfsd[{extra}]'")
