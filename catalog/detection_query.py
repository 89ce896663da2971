"""Finding boxes by label, time and region, the way that reads least."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles

from vfsd.catalog.box_grid import MASK, SHIFTS, cells_of, units
from vfsd.catalog.detections import Detections
from vfsd.catalog.schema import detections
from vfsd.catalog.statements import json_equals, require_json_keys
from vfsd.core.detections import (
    MAX_COORDINATE,
    NO_TRACK,
    Area,
    Box,
    Detection,
    DetectionColumns,
    Ints,
    Source,
)
from vfsd.core.label_query import Clauses, Labels, clauses_of
from vfsd.core.model import LogicalVideo
from vfsd.errors import NotFoundError, UsageError, VfsdError
from vfsd.tiling import Rect

if TYPE_CHECKING:
    import pandas
    import pyarrow

_MOST_CELLS = 512
"""A region of more is so large that the boxes elsewhere may be looked at, too."""

_MOST_CONDITIONS = 100
"""Clauses of labels, and attributes, that are asked for at once: with a thousand SQLite takes half
a minute, PostgreSQL five."""

_MOST_SEEKS = 2000
"""Cells times labels; beyond that it is first seen how many boxes the time alone leaves."""

_OUT_OF_RANGE = MAX_COORDINATE + 1

_FEW_ROWS = 4000
_FRAMES_AT_ONCE = 500
_ROWS_AT_ONCE = 50_000

_Frames = range | tuple[int, ...] | None
_Rows = sa.FromClause

_INDEX = "ix_detections_video_id_label_id_cell_frame_bounds"


@dataclass(frozen=True, slots=True)
class DetectionFilter:
    """What a box has to be; everything given must hold.

    A box satisfies `labels` when each of the clauses holds for it, and its own label is in one of
    them.  A clause holds when a box with one of its labels is the same object: the same box on the
    same frame, or the same track of the same source.  The other conditions are about the box alone.
    """

    labels: Clauses = ()  #: none: whatever it is labelled
    frames: range | tuple[int, ...] | None = None  #: ascending; None: all
    region: Box | None = None  #: shares a part of it that has an area
    source: str | Source | None = None  #: a `str`: every source of that name
    min_confidence: float | None = None  #: boxes without one are left out
    track: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)  #: the same values


def _box(region: Area) -> Box:
    rect = Rect.parse(region) if isinstance(region, str) else region
    given = (rect.x1, rect.y1, rect.x2, rect.y2) if isinstance(rect, Rect) else rect
    try:
        x1, y1, x2, y2 = map(float, given)
    except (TypeError, ValueError):
        raise UsageError(
            f"region must be (x1, y1, x2, y2), a Rect or text, got {shown(region)}",
            hint='for example (600, 0, 1000, 300) or "400x300+600+0"',
        ) from None
    if not (x1 < x2 and y1 < y2):
        raise UsageError(
            f"region must have an area, got {region}",
            hint="a region is (x1, y1, x2, y2) with x1 < x2 and y1 < y2",
        )
    # Nothing lies farther away, and what is without end has no cell.
    x1, y1, x2, y2 = (min(max(edge, -_OUT_OF_RANGE), _OUT_OF_RANGE) for edge in (x1, y1, x2, y2))
    return x1, y1, x2, y2


def _track(number: int) -> int:
    try:
        found = operator.index(number)
    except TypeError:
        raise UsageError(f"the number of a track is {number!r}", hint="it is whole") from None
    if found >= 1 << 63 or found < 0:
        raise UsageError(
            f"the number of a track is {found}", hint="it is not negative, and has up to 63 bits"
        )
    return found


def _confidence(number: SupportsFloat) -> float:
    """Text would be larger than any number to SQLite, and find nothing."""
    try:
        found = math.nan if isinstance(number, (str, bytes)) else float(number)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if math.isnan(found):
        raise UsageError(
            f"confidence must be a number such as 0.5, got {shown(number)}",
            hint="give a number, as in 0.5",
        )
    return found


def make_filter(
    labels: Labels | None,
    frames: range | Ints | None,
    region: Area | None,
    source: str | Source | None,
    min_confidence: float | None,
    track: int | None,
    attributes: Mapping[str, Any] | None,
) -> DetectionFilter:
    """From what callers give.  Raises `UsageError`, also for more than a hundred clauses of labels,
    or attributes."""
    clauses, wanted = clauses_of(labels), require_json_keys(attributes)
    for several, what in ((clauses, "lists of labels"), (wanted, "attributes")):
        if len(several) > _MOST_CONDITIONS:
            raise UsageError(
                f"{len(several)} {what} are too many to hold for one box",
                hint=f"give {_MOST_CONDITIONS} at most; one list of labels may have any number",
            )
    box = None if region is None else _box(region)
    chosen: range | tuple[int, ...] | None
    if frames is None or isinstance(frames, range):
        chosen = frames
    else:
        chosen = tuple(np.unique(frames).tolist())
    return DetectionFilter(
        clauses,
        chosen,
        box,
        source,
        None if min_confidence is None else _confidence(min_confidence),
        None if track is None else _track(track),
        wanted,
    )


class DetectionQuery:
    """The boxes of a video that a filter lets through, by frame, then in order of arrival.

    Asks when it is asked: every answer is one snapshot of the catalog.  Iterating and `columns`
    hold the whole answer in memory, about 100 bytes a box.  Raises `NotFoundError` when the
    video is gone or its bytes are others by now.
    """

    def __init__(
        self,
        reading: Callable[[], AbstractContextManager[Connection]],
        video: LogicalVideo,
        what: DetectionFilter,
    ) -> None:
        self._reading = reading
        self._video = video
        self._filter = what

    def __repr__(self) -> str:
        try:
            count = f"{len(self)} boxes"
        except VfsdError as error:  # a repr is for looking around, and must not fail
            count = str(error)
        return f"<DetectionQuery of {self._video.name!r}: {count}>"

    def __iter__(self) -> Iterator[Detection]:
        return iter(self.columns())

    def __len__(self) -> int:
        """How many there are."""
        with self._reading() as connection:
            search = _Search(connection, self._video, self._filter)
            return sum(
                connection.execute(sa.select(sa.func.count()).select_from(one.subquery())).scalar()
                or 0
                for one in search.statements(ordered=False)
            )

    def __bool__(self) -> bool:
        return self.first() is not None

    def first(self) -> Detection | None:
        """The earliest, or None."""
        with self._reading() as connection:
            search = _Search(connection, self._video, self._filter)
            for one in search.statements():
                found = search.columns([one.limit(1)])
                if len(found):
                    return found[0]
        return None

    def frames(self) -> Ints:
        """The numbers of the frames that have such a box, ascending, each once."""
        with self._reading() as connection:
            search = _Search(connection, self._video, self._filter)
            found = [
                row[0]
                for one in search.statements(ordered=False)
                for row in connection.execute(
                    sa.select(one.subquery().c.frame).distinct().order_by("frame")
                )
            ]
        return np.array(found, dtype=np.int64)

    def columns(self) -> DetectionColumns:
        """All of them as numpy arrays."""
        with self._reading() as connection:
            search = _Search(connection, self._video, self._filter)
            return search.columns(search.statements())

    def to_arrow(self) -> pyarrow.Table:
        """One row a box.  Raises `ExtraMissingError` where pyarrow is not installed."""
        return self.columns().to_arrow()

    def to_pandas(self) -> pandas.DataFrame:
        """One row a box.  Raises `ExtraMissingError` where pandas is not installed."""
        return self.columns().to_pandas()


def require_same_bytes(index: Detections, video: LogicalVideo) -> None:
    """Boxes are about pixels, on frames that are counted.  Raises `NotFoundError` when those of
    `video` are no more, or are counted in another way."""
    digest = index.digest(video.id)
    if digest is None:
        raise NotFoundError(f"the video {video.name!r} was removed")
    if digest != video.digest:
        raise NotFoundError(
            f"the bytes of {video.name!r} have changed since it was opened",
            hint="open it again; boxes that were made for the old pixels are gone",
        )
    if not index.has_original(video.id, video.original.id):
        raise NotFoundError(
            f"the frames of {video.name!r} have been renumbered since it was opened",
            hint="open it again",
        )


class _Search:
    """One filter, worked out against one snapshot."""

    def __init__(self, connection: Connection, video: LogicalVideo, what: DetectionFilter) -> None:
        self._connection = connection
        self._index = Detections(connection)
        self._video = video
        self._filter = what
        self._names: dict[int, str] = {}  # those that the question itself tells
        require_same_bytes(self._index, video)

    def statements(self, *, ordered: bool = True) -> list[sa.Select[Any]]:
        """Queries whose answers, one after the other, are the answer; none when it is empty."""
        what = self._filter
        clauses = self._clause_ids()
        if what.labels:
            ids = sorted(set().union(*clauses)) if all(clauses) else []
        else:
            ids = self._index.label_ids(self._video.id)
        if not ids:
            return []
        conditions = [
            *(_holds(clause) for clause in clauses if len(clauses) > 1),
            *self._of_the_box(),
        ]
        made = []
        for frames in self._frames():
            query = self._lookup(ids, frames)
            query = query.where(*conditions) if conditions else query
            made.append(query.order_by(_BOX.c.frame, _BOX.c.seq) if ordered else query)
        return made

    def columns(self, statements: Sequence[sa.Select[Any]]) -> DetectionColumns:
        parts = [
            _arrays(rows)
            for one in statements
            for rows in self._connection.execute(one).partitions(_ROWS_AT_ONCE)
        ]
        if not parts:
            return DetectionColumns.of([], [], [])
        found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        labels, codes = np.unique(found["label_id"], return_inverse=True)
        sources, source_codes = np.unique(found["source_id"], return_inverse=True)
        names = self._names or self._index.label_names(labels.tolist())
        known = self._index.sources_by_id(sources.tolist())
        attributes = found["attributes"].tolist()
        return DetectionColumns(
            found["frame"],
            codes.astype(np.int64),
            tuple(names[int(number)] for number in labels),
            np.column_stack([found[corner] for corner in ("x1", "y1", "x2", "y2")]),
            found["confidence"],
            found["track"],
            tuple(attributes) if any(attributes) else None,
            source_codes.astype(np.int64),
            tuple(known[int(number)] for number in sources),
        )

    # -- which rows are read

    def _lookup(self, ids: list[int], frames: _Frames) -> sa.Select[Any]:
        """The rows of these labels in these frames, by the index of places where that is less."""
        region = self._filter.region
        in_order = [*self._keys(_BOX, ids), *_within(_BOX, frames)]
        if region is None:
            return _BY_FRAME.where(*in_order)
        chosen = cells_of(region, _MOST_CELLS)
        if chosen is None or (len(ids) * len(chosen) > _MOST_SEEKS and self._are_few(in_order)):
            query = _BY_FRAME.where(*in_order, *_INTERSECTS)
        else:
            query = _BY_CELL.where(
                *self._keys(_CELL_INDEX, ids),
                _CELL_INDEX.c.cell.in_(chosen),
                *_within(_CELL_INDEX, frames),
            )
        x1, y1, x2, y2 = region
        low_x, low_y, high_x, high_y = units(region)
        return query.params(
            x1=x1,
            y1=y1,
            x2=x2,
            y2=y2,
            low_x=low_x,
            low_y=low_y,
            high_x=high_x,
            high_y=high_y,
        )

    def _keys(self, rows: _Rows, ids: list[int]) -> list[sa.ColumnElement[bool]]:
        label = rows.c.label_id
        return [
            rows.c.video_id == self._video.id,
            label == ids[0] if len(ids) == 1 else label.in_(ids),
        ]

    def _are_few(self, conditions: list[sa.ColumnElement[bool]]) -> bool:
        some = sa.select(_BOX.c.seq).where(*conditions).limit(_FEW_ROWS).subquery()
        count = self._connection.execute(sa.select(sa.func.count()).select_from(some)).scalar()
        return (count or 0) < _FEW_ROWS

    def _frames(self) -> list[_Frames]:
        frames = self._filter.frames
        if frames is None:
            return [None]
        if isinstance(frames, range):
            return [frames] if len(frames) else []
        return [frames[at : at + _FRAMES_AT_ONCE] for at in range(0, len(frames), _FRAMES_AT_ONCE)]

    # -- what they have to be

    def _clause_ids(self) -> list[list[int]]:
        wanted = self._filter.labels
        known = self._index.known_labels(set().union(*wanted)) if wanted else {}
        self._names = {number: name for name, number in known.items()}
        return [sorted(known[name] for name in clause if name in known) for clause in wanted]

    def _of_the_box(self) -> Iterator[sa.ColumnElement[bool]]:
        what = self._filter
        if what.source is not None:
            yield _BOX.c.source_id.in_(self._index.known_sources(what.source))
        if what.min_confidence is not None:
            yield _BOX.c.confidence >= what.min_confidence
        if what.track is not None:
            yield _BOX.c.track == what.track
        for key, value in what.attributes.items():
            yield json_equals(_BOX.c.attributes, key, value)


class _OrderedJoin(sa.Join):
    """A join of which SQLite walks the left side; its planner knows nothing of how many rows match.

    Other servers keep statistics and choose for themselves.
    """

    inherit_cache = True


@compiles(_OrderedJoin, "sqlite")
def _cross_join(join: _OrderedJoin, compiler: Any, **how: Any) -> str:
    text: str = compiler.visit_join(join, **how)
    return text.replace(" JOIN ", " CROSS JOIN ", 1)


def _within(rows: _Rows, frames: _Frames) -> Iterator[sa.ColumnElement[bool]]:
    if frames is None:
        return
    if isinstance(frames, tuple):
        yield rows.c.frame.in_(frames)
        return
    yield rows.c.frame >= frames.start
    yield rows.c.frame < frames.stop
    if frames.step > 1:
        yield (rows.c.frame - frames.start) % frames.step == 0


def _holds(clause: list[int]) -> sa.ColumnElement[bool]:
    """The box, or another that is the same object, is labelled so."""
    # A track may join labels of one source only: most trackers count from 1, each on its own.
    same_box, same_track = (
        sa.and_(*(_OTHER.c[name] == _BOX.c[name] for name in names))
        for names in (("x1", "y1", "x2", "y2"), ("source_id", "track"))
    )
    return sa.or_(
        _BOX.c.label_id.in_(clause),
        sa.exists().where(
            _OTHER.c.video_id == _BOX.c.video_id,
            _OTHER.c.label_id.in_(clause),
            _OTHER.c.frame == _BOX.c.frame,
            sa.or_(same_box, same_track),
        ),
    )


def _packed(shift: int) -> sa.ColumnElement[int]:
    """One of the four numbers in an index entry's `bounds`."""
    shifted = _CELL_INDEX.c.bounds.bitwise_rshift(sa.literal(shift, sa.Integer))
    return shifted.bitwise_and(sa.literal(MASK, sa.BigInteger))


def _number(name: str, kind: type[sa.types.TypeEngine[Any]]) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=kind())


_COLUMN_TYPES: Mapping[str, Any] = {
    "frame": np.int64,
    "label_id": np.int64,
    "x1": np.float64,
    "y1": np.float64,
    "x2": np.float64,
    "y2": np.float64,
    "confidence": np.float64,
    "track": np.int64,
    "source_id": np.int64,
    "attributes": object,
    "seq": np.int64,
}
"""What is read of a row, and the type of its array."""

# Made once: putting a statement together takes SQLAlchemy longer than SQLite needs to run it.
_BOX = detections.alias("box")
_CELL_INDEX = detections.alias("place")
_OTHER = detections.alias("other")
_BY_FRAME = sa.select(*(_BOX.c[name] for name in _COLUMN_TYPES))
_INTERSECTS = (
    _BOX.c.x1 < _number("x2", sa.Double),
    _BOX.c.x2 > _number("x1", sa.Double),
    _BOX.c.y1 < _number("y2", sa.Double),
    _BOX.c.y2 > _number("y1", sa.Double),
)
# By the rounded boxes of the index; lets none pass over that does meet the region.
_MAY_INTERSECT = (
    _packed(SHIFTS[0]) <= _number("high_x", sa.BigInteger),
    _packed(SHIFTS[1]) <= _number("high_y", sa.BigInteger),
    _packed(SHIFTS[2]) >= _number("low_x", sa.BigInteger),
    _packed(SHIFTS[3]) >= _number("low_y", sa.BigInteger),
)
# By hand in two steps: on a table without rowids SQLite would read the row of every entry of the
# index, also of those whose `bounds` already say no.
_BY_CELL = (
    _BY_FRAME.select_from(
        _OrderedJoin(
            _CELL_INDEX,
            _BOX,
            sa.and_(
                *(
                    _BOX.c[name] == _CELL_INDEX.c[name]
                    for name in ("video_id", "label_id", "frame", "seq")
                )
            ),
        )
    )
    .where(*_MAY_INTERSECT, *_INTERSECTS)
    .with_hint(_CELL_INDEX, f"INDEXED BY {_INDEX}", "sqlite")
)


def _arrays(rows: Sequence[sa.Row[Any]]) -> dict[str, Any]:
    found = {}
    for (name, kind), values in zip(_COLUMN_TYPES.items(), zip(*rows, strict=True), strict=True):
        if name == "track":
            values = tuple(NO_TRACK if value is None else value for value in values)
        array = np.empty(len(values), dtype=kind)
        array[:] = values  # None becomes NaN
        found[name] = array
    return found
