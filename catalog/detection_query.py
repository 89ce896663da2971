"""Finds boxes by label, time and region.

`_Search` chooses the index that reads the fewest rows: by frame, or by cell of the box grid.

Rows are clustered by video, label and frame. Each box has one cell in one of seven grids, with its
rounded box in the index, which works on any database; only SQLite has an R*Tree. A region is a few
dozen index ranges; above 512 cells the query reads by frame. The join order is fixed.  ``a & b``
joins boxes of equal corners, or of one track of one source, on one frame.

Medians for a million boxes of one label in SQLite, with 41 rows found in a quiet region of 200x200,
and 31,000 in a busy one of 8x8:

    ========= ======== ============ ======== ============
    index     insert   bytes a box  41 rows  31,000 rows
    ========= ======== ============ ======== ============
    by frame  3.2 s    67           170 ms   154 ms
    cells     4.2 s    89           25 ms    317 ms
    chosen    4.6 s    104          1.5 ms   225 ms
    R*Tree    17 s     155          0.6 ms   154 ms
    ========= ======== ============ ======== ============
"""

from __future__ import annotations

import math
import operator
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles

from vfsd.catalog.box_grid import MASK, SHIFTS, cells_of, units
from vfsd.catalog.detection_counts import BoxSum, merge_sums
from vfsd.catalog.detections import Detections
from vfsd.catalog.rows import json_equals, parsed_json, require_json_keys
from vfsd.catalog.schema import detections
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
from vfsd.core.label_query import Clauses, LabelClause, Labels, clauses_of, words_of
from vfsd.core.model import LogicalVideo
from vfsd.errors import NotFoundError, UsageError, VfsdError
from vfsd.tiling import region_corners, region_error

if TYPE_CHECKING:
    import pandas
    import pyarrow

_MOST_CELLS = 512
"""A region with more cells is so large that boxes elsewhere may be read, too."""

_MOST_CONDITIONS = 100
"""Maximum number of label clauses or attributes in a query.  With a thousand, SQLite takes half a
minute, and PostgreSQL five.
"""

_MOST_SEEKS = 2000
"""Cells times labels.  Beyond that, the boxes in the time span are counted first."""

_OUT_OF_RANGE = MAX_COORDINATE + 1

_FEW_ROWS = 4000
_FRAMES_AT_ONCE = 500
_ROWS_AT_ONCE = 1000
_VIDEOS_AT_ONCE = 400
_NO_END = 1 << 40

_Frames = range | tuple[int, ...] | None
_Rows = sa.FromClause

_INDEX = "ix_detections_video_id_label_id_cell_frame_bounds"


@dataclass(frozen=True, slots=True)
class DetectionFilter:
    """Conditions on a box; all that are given must hold.

    A box satisfies `labels` if every clause holds for it, and its own label is in one of those that
    only have labels.  A clause holds if the box has one of its attributes, or if a box with one of
    its labels is the same object: the same box on the same frame, or the same track of the same
    source on it.  A negated clause holds if it would not otherwise.  The other conditions are about
    the box alone.
    """

    labels: Clauses = ()  #: empty: any label
    frames: range | tuple[int, ...] | None = None  #: ascending; None: all
    region: Box | None = None  #: overlaps it with a positive area
    source: str | Source | None = None  #: a `str`: every source of that name
    min_confidence: float | None = None  #: boxes without a confidence do not match
    track: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)  #: equal values

    @property
    def is_counted(self) -> bool:
        """Whether the catalog keeps the numbers of these boxes: by label and source alone."""
        is_plain = not self.labels or (len(self.labels) == 1 and self.labels[0].is_plain)
        others = (self.frames, self.region, self.min_confidence, self.track)
        return is_plain and all(one is None for one in others) and not self.attributes


def _box(region: Area) -> Box:
    try:
        x1, y1, x2, y2 = map(float, region_corners(region))
    except (TypeError, ValueError, OverflowError):
        raise region_error(region) from None
    if not (x1 < x2 and y1 < y2):
        raise UsageError(
            f"region must have an area, got {region}",
            hint="a region is (x1, y1, x2, y2) with x1 < x2 and y1 < y2",
        )
    # No box lies farther away, and an infinite edge has no cell.
    x1, y1, x2, y2 = (min(max(edge, -_OUT_OF_RANGE), _OUT_OF_RANGE) for edge in (x1, y1, x2, y2))
    return x1, y1, x2, y2


def _track(number: int) -> int:
    try:
        found = operator.index(number)
    except TypeError:
        raise UsageError(f"track must be a whole number, got {number!r}") from None
    if found >= 1 << 63 or found < 0:
        raise UsageError(f"track must be at least 0 and less than 2^63, got {found}")
    return found


def _confidence(number: SupportsFloat) -> float:
    """Convert to float; SQLite would compare text as larger than any number."""
    try:
        found = math.nan if isinstance(number, (str, bytes)) else float(number)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if math.isnan(found):
        raise UsageError(
            f"confidence must be a number, got {shown(number)}",
            hint="for example 0.5",
        )
    return found


def make_filter(
    labels: Labels | None,
    frames: range | Ints | None = None,
    region: Area | None = None,
    source: str | Source | None = None,
    min_confidence: float | None = None,
    track: int | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> DetectionFilter:
    """Return the filter for the arguments of callers.

    Raises `UsageError`, also for more than `_MOST_CONDITIONS` clauses of labels or attributes.
    """
    clauses, wanted = clauses_of(labels), require_json_keys(attributes)
    for several, what in ((clauses, "lists of labels"), (wanted, "attributes")):
        if len(several) > _MOST_CONDITIONS:
            raise UsageError(
                f"{what} must be at most {_MOST_CONDITIONS}, got {len(several)}",
                hint="one list of labels may have any length",
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
    """The boxes of a video that satisfy a filter, by frame, then in order of arrival.

    Lazy: every access queries one snapshot of the catalog.  Iterating and `columns` hold all boxes
    in memory, about 100 bytes each.  Raises `NotFoundError` if the video no longer exists or its
    bytes have changed.
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
        except VfsdError as error:  # a repr must not fail
            count = str(error)
        return f"<DetectionQuery of {self._video.name!r}: {count}>"

    def _repr_html_(self) -> str:
        """Return the first 20 boxes, for a notebook."""
        from vfsd.core.rich_repr import MAX_ROWS, escaped, table

        try:
            total = len(self)
            rows = next(self.batches(MAX_ROWS), ()) if total else ()
        except VfsdError as error:  # a repr must not fail
            return escaped(error)
        headings = ("frame", "label", "box", "confidence", "track", "source")
        cells = (
            (one.frame, one.label, _box_text(one.box), one.confidence, one.track, one.source)
            for one in rows
        )
        return table(repr(self), headings, cells, total)

    def __iter__(self) -> Iterator[Detection]:
        return iter(self.columns())

    def __len__(self) -> int:
        """Number of matching boxes."""
        with self._reading() as connection:
            search = _Search(connection, [self._video], self._filter)
            return sum(
                connection.execute(sa.select(sa.func.count()).select_from(one.subquery())).scalar()
                or 0
                for one in search.statements(ordered=False)
            )

    def __bool__(self) -> bool:
        return self.first() is not None

    def first(self) -> Detection | None:
        """Return the first box, or None."""
        with self._reading() as connection:
            search = _Search(connection, [self._video], self._filter)
            for one in search.statements():
                found = search.columns([one.limit(1)])
                if len(found):
                    return found[0]
        return None

    def frames(self) -> Ints:
        """Return the numbers of frames with a matching box, ascending, without repeats."""
        with self._reading() as connection:
            search = _Search(connection, [self._video], self._filter)
            found = [
                row[0]
                for one in search.statements(ordered=False)
                for row in connection.execute(
                    sa.select(one.subquery().c.frame).distinct().order_by("frame")
                )
            ]
        return np.array(found, dtype=np.int64)

    def columns(self) -> DetectionColumns:
        """Return all boxes as numpy arrays."""
        with self._reading() as connection:
            search = _Search(connection, [self._video], self._filter)
            return search.columns(search.statements(ordered=False))

    def batches(self, rows: int = 65_536) -> Iterator[DetectionColumns]:
        """Yield all boxes, at most `rows` at a time, by label and then by frame.

        Each batch is read from a snapshot of its own, so memory holds one batch, and a slow
        caller keeps no transaction open.
        """
        with self._reading() as connection:
            labels = _Search(connection, [self._video], self._filter).label_ids()
        for label in labels:
            for place in range(_Search.parts(self._filter)):
                after: tuple[int, int] | None = None
                while True:
                    with self._reading() as connection:
                        search = _Search(connection, [self._video], self._filter)
                        found, after = search.page(label, place, after, rows)
                    if len(found):
                        yield found
                    if after is None:
                        break

    def to_arrow(self) -> pyarrow.Table:
        """Return a table with one row per box.  Raises `ExtraMissingError` without pyarrow."""
        return self.columns().to_arrow()

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with one row per box.  Raises `ExtraMissingError` without pandas."""
        return self.columns().to_pandas()


def _box_text(box: Box) -> str:
    return ", ".join(f"{corner:g}" for corner in box)


def require_same_bytes(index: Detections, video: LogicalVideo) -> None:
    """Raises `NotFoundError` if the bytes of `video` or the numbering of its frames have changed.

    Boxes refer to pixels of numbered frames, and are invalid for others.
    """
    digest = index.digest(video.id)
    if digest is None:
        raise NotFoundError(f"the video {video.name!r} was removed")
    if digest != video.digest:
        raise NotFoundError(
            f"the bytes of {video.name!r} have changed since it was opened",
            hint="open it again; boxes for the old pixels are gone",
        )
    if not index.has_original(video.id, video.original.id):
        raise NotFoundError(
            f"the frames of {video.name!r} have been renumbered since it was opened",
            hint="open it again",
        )


def boxes_of_videos(
    connection: Connection,
    videos: Sequence[LogicalVideo],
    what: DetectionFilter,
    ranges: Sequence[range] | None = None,
) -> tuple[Ints, DetectionColumns]:
    """Return the boxes of several videos that satisfy a filter, in some frames of each video.

    The result is the position in `videos` of each box's video, and the boxes, by video, then by
    frame.  Raises `NotFoundError` if a video no longer exists or its bytes have changed.
    """
    parts: list[dict[str, Any]] = []
    search = None
    for search in _searches(connection, videos, what, ranges):
        for one in search.statements(ordered=False):
            parts += map(_arrays, search.rows(one.add_columns(_BOX.c.video_id)))
    if search is None or not parts:
        return np.empty(0, np.int64), DetectionColumns.of([], [], [])
    positions = {video.id: at for at, video in enumerate(videos)}
    for part in parts:
        ids, codes = np.unique(part["video_id"], return_inverse=True)
        part["video_id"] = np.array([positions[one] for one in ids.tolist()], np.int64)[codes]
    return search.columns_of_videos(parts)


def sums_of_videos(
    connection: Connection,
    videos: Sequence[LogicalVideo],
    what: DetectionFilter,
    ranges: Sequence[range] | None = None,
) -> list[BoxSum]:
    """Count the boxes of `boxes_of_videos`, by video, label and source, without reading them."""
    found: list[BoxSum] = []
    for search in _searches(connection, videos, what, ranges):
        for one in search.statements(ordered=False):
            rows = one.add_columns(_BOX.c.video_id).subquery().c
            keys = rows.video_id, rows.label_id, rows.source_id
            counted = sa.select(*keys, sa.func.count()).group_by(*keys)
            found += (BoxSum(*row) for row in connection.execute(counted))
    return merge_sums(found)


def _searches(
    connection: Connection,
    videos: Sequence[LogicalVideo],
    what: DetectionFilter,
    ranges: Sequence[range] | None,
) -> Iterator[_Search]:
    """Yield searches in a few hundred videos each: one for all that have equal frames to search."""
    if ranges is None:
        groups: dict[range | tuple[int, ...] | None, list[LogicalVideo]] = {
            what.frames: list(videos)
        }
    else:
        groups = {}
        for video, frames in zip(videos, ranges, strict=True):
            # Videos of one rate then differ by their lengths no more.
            is_to_end = frames.step == 1 and frames.stop >= video.original.frames
            key = range(frames.start, _NO_END) if is_to_end and frames else frames
            groups.setdefault(key, []).append(video)
    for chosen, some in groups.items():
        for at in range(0, len(some), _VIDEOS_AT_ONCE):
            part = some[at : at + _VIDEOS_AT_ONCE]
            yield _Search(connection, part, replace(what, frames=chosen))


class _Search:
    """One filter, resolved against one snapshot."""

    def __init__(
        self, connection: Connection, videos: Sequence[LogicalVideo], what: DetectionFilter
    ) -> None:
        self._connection = connection
        self._index = Detections(connection)
        self._ids = [video.id for video in videos]
        self._filter = what
        self._names: dict[int, str] = {}  # labels that the filter itself names
        if len(videos) == 1:
            require_same_bytes(self._index, videos[0])
        else:
            known = self._index.numberings(self._ids)
            for video in videos:
                if known.get(video.id) != (video.digest, video.original.id):
                    require_same_bytes(self._index, video)

    def statements(self, *, ordered: bool = True) -> list[sa.Select[Any]]:
        """Return queries whose concatenated results are the result; none if it is empty."""
        ids = self.label_ids()
        if not ids:
            return []
        conditions = self._conditions()
        made = []
        for frames in self._frames():
            query = self._lookup(ids, frames)
            query = query.where(*conditions) if conditions else query
            made.append(query.order_by(_BOX.c.frame, _BOX.c.seq) if ordered else query)
        return made

    def label_ids(self) -> list[int]:
        """Return the labels that a matching box can have, ascending."""
        clauses = self._clause_ids()
        plain = [ids for clause, ids in clauses if clause.is_plain]
        if plain and all(plain):
            return sorted(set().union(*plain))
        if plain:
            return []
        excluded = {one for clause, ids in clauses if clause.negated for one in ids}
        found = {one for video in self._ids for one in self._index.label_ids(video)}
        return sorted(found - excluded)

    @staticmethod
    def parts(what: DetectionFilter) -> int:
        """Return the number of statements that `statements` makes for one label."""
        if isinstance(what.frames, tuple):
            return -(-len(what.frames) // _FRAMES_AT_ONCE)
        return 0 if what.frames is not None and not len(what.frames) else 1

    def page(
        self, label: int, place: int, after: tuple[int, int] | None, rows: int
    ) -> tuple[DetectionColumns, tuple[int, int] | None]:
        """Return the next `rows` boxes of a label, and where to continue; None: at the end.

        `after` is the frame and number of the last box before, `place` counts `parts`.
        """
        # One label at a time, in the order of the primary key: no sorting, and a seek to `after`.
        query = self._lookup([label], self._frames()[place]).where(*self._conditions())
        if after is not None:
            here = sa.tuple_(_BOX.c.frame, _BOX.c.seq)
            query = query.where(here > sa.tuple_(*map(sa.literal, after)))
        query = query.order_by(_BOX.c.frame, _BOX.c.seq).limit(rows)
        parts = [_arrays(found) for found in self.rows(query)]
        columns = self._to_columns(parts)
        if len(columns) < rows:
            return columns, None
        return columns, (int(parts[-1]["frame"][-1]), int(parts[-1]["seq"][-1]))

    def columns(self, statements: Sequence[sa.Select[Any]]) -> DetectionColumns:
        return self._to_columns([_arrays(rows) for one in statements for rows in self.rows(one)])

    def columns_of_videos(
        self, parts: Sequence[Mapping[str, Any]]
    ) -> tuple[Ints, DetectionColumns]:
        """Return the videos and the boxes of rows that have a column "video_id"."""
        found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        order = np.lexsort((found["seq"], found["frame"], found["video_id"]))
        found = {name: values[order] for name, values in found.items()}
        return found.pop("video_id"), self._columns_from(found)

    def _to_columns(self, parts: Sequence[Mapping[str, Any]]) -> DetectionColumns:
        if not parts:
            return DetectionColumns.of([], [], [])
        found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        # Sorted here: SQLite would sort whole rows, which takes as long as reading them.
        order = np.lexsort((found["seq"], found["frame"]))
        return self._columns_from({name: values[order] for name, values in found.items()})

    def _columns_from(self, found: Mapping[str, Any]) -> DetectionColumns:
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

    def rows(self, statement: sa.Select[Any]) -> Iterator[Sequence[Any]]:
        """Yield the rows in batches, each row with the values of `_COLUMN_TYPES`."""
        with self._connection.execute(statement) as result:
            if self._connection.dialect.name != "sqlite":
                yield from result.partitions(_ROWS_AT_ONCE)
                return
            # Making SQLAlchemy's rows takes longer than SQLite does.  They are those of its driver,
            # except that JSON is parsed.
            cursor: Any = result.cursor
            try:
                while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                    yield rows
            except sqlite3.Error as error:
                raise DBAPIError.instance(str(statement), None, error, sqlite3.Error) from error

    def _lookup(self, ids: list[int], frames: _Frames) -> sa.Select[Any]:
        """Return the rows of these labels in these frames, by the cell index if that
        reads fewer.
        """
        region = self._filter.region
        by_frame = [*self._keys(_BOX, ids), *_within(_BOX, frames)]
        if region is None:
            return _BY_FRAME.where(*by_frame)
        chosen = cells_of(region, _MOST_CELLS)
        seeks = len(self._ids) * len(ids) * len(chosen or ())
        if chosen is None or (seeks > _MOST_SEEKS and self._are_few(by_frame)):
            query = _BY_FRAME.where(*by_frame, *_INTERSECTS)
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
            rows.c.video_id == self._ids[0]
            if len(self._ids) == 1
            else rows.c.video_id.in_(self._ids),
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

    def _clause_ids(self) -> list[tuple[LabelClause, list[int]]]:
        """Return each clause with the ids of those of its labels that the store has."""
        wanted = self._filter.labels
        known = self._index.known_labels(words_of(wanted)) if wanted else {}
        if any(clause.is_plain for clause in wanted):
            self._names = {number: name for name, number in known.items()}
        return [
            (clause, sorted({known[name] for name in clause.labels if name in known}))
            for clause in wanted
        ]

    def _conditions(self) -> list[sa.ColumnElement[bool]]:
        clauses = self._clause_ids()
        only_lookup = len(clauses) == 1 and clauses[0][0].is_plain
        return [
            *(_holds(clause, ids) for clause, ids in clauses if not only_lookup),
            *self._box_conditions(),
        ]

    def _box_conditions(self) -> Iterator[sa.ColumnElement[bool]]:
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
    """A join that SQLite starts from the left side; its planner does not know how many rows match.

    Other servers have statistics and choose for themselves.
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


def _holds(clause: LabelClause, ids: list[int]) -> sa.ColumnElement[bool]:
    """Return the condition that a clause holds for a box; `ids` are those of its labels."""
    found = sa.or_(
        sa.false(),
        *([_has_label(ids)] if ids else []),
        *(json_equals(_BOX.c.attributes, key, value) for key, value in clause.attributes),
    )
    # NULL, for a box without attributes, means that the clause does not hold.
    return ~sa.func.coalesce(found, sa.false()) if clause.negated else found


def _has_label(clause: list[int]) -> sa.ColumnElement[bool]:
    """Return the condition that the box, or another one of the same object, has such a label."""
    # A track joins labels of one source only: most trackers count from 1 independently.
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
    """Return one of the four numbers packed in an index entry's `bounds`."""
    shifted = _CELL_INDEX.c.bounds.bitwise_rshift(sa.literal(shift, sa.Integer))
    return shifted.bitwise_and(sa.literal(MASK, sa.BigInteger))


def _number(name: str, kind: type[sa.types.TypeEngine[Any]]) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=kind())


_VIDEO_TYPE: dict[str, Any] = {"video_id": np.int64}
_COLUMN_TYPES: dict[str, Any] = {
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
"""Columns to read, with the types of their arrays."""

# Built once: building a statement takes SQLAlchemy longer than SQLite takes to run it.
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
# By the rounded boxes of the index; never excludes a box that intersects the region.
_MAY_INTERSECT = (
    _packed(SHIFTS[0]) <= _number("high_x", sa.BigInteger),
    _packed(SHIFTS[1]) <= _number("high_y", sa.BigInteger),
    _packed(SHIFTS[2]) >= _number("low_x", sa.BigInteger),
    _packed(SHIFTS[3]) >= _number("low_y", sa.BigInteger),
)
# An explicit join of index and table: on a table without rowids, SQLite would read the row of every
# index entry, even where `bounds` already excludes it.
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


def _arrays(rows: Sequence[Any]) -> dict[str, Any]:
    found = {}
    columns = list(zip(*rows, strict=True))
    types = _COLUMN_TYPES if len(columns) == len(_COLUMN_TYPES) else _COLUMN_TYPES | _VIDEO_TYPE
    for (name, kind), values in zip(types.items(), columns, strict=True):
        missing = NO_TRACK if name == "track" else None if kind is object else math.nan
        if values.count(None) == len(values):
            found[name] = np.full(len(values), missing, kind)
            continue
        if kind is object:
            found[name] = np.empty(len(values), object)
            found[name][:] = [parsed_json(one) if isinstance(one, str) else one for one in values]
            continue
        try:
            found[name] = np.fromiter(values, kind, len(values))
        except TypeError:
            filled = (missing if value is None else value for value in values)
            found[name] = np.fromiter(filled, kind, len(values))
    return found
