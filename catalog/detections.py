"""Labelled boxes, and who has looked where, within one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.box_grid import bounds, cells
from vfsd.catalog.row_mapping import parsed_json, reads_row
from vfsd.catalog.schema import detections, examined, labels, sources, videos
from vfsd.catalog.statements import in_batches
from vfsd.core.detections import (
    NO_TRACK,
    DetectionColumns,
    Examined,
    Ints,
    LabelSummary,
    Source,
    contiguous_ranges,
    source_from,
)
from vfsd.core.frame_selection import merge_ranges, subtract_ranges
from vfsd.validation import is_storable

Progress = Callable[[int, int], None]

_BATCH = 20_000
_LARGE_INSERT = 50_000
_SHORT_RUN = 8
_FRAMES_AT_ONCE = 500
_LARGE_CACHE_KIB = 131_072
_TEMPORARY_SHIFT = 1 << 40
"""Numbers of frames from there on are taken for a moment, while others change places."""

_COLUMNS = (
    "video_id",
    "label_id",
    "frame",
    "seq",
    "x1",
    "y1",
    "x2",
    "y2",
    "confidence",
    "track",
    "source_id",
    "cell",
    "bounds",
    "attributes",
)


class Detections:
    """The semantic index as one transaction sees it.

    Videos are given by number; whether a number still means the bytes that a caller has in mind is
    for the caller to see to (`vfsd.catalog.Catalog` does).
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # -- changing

    def add(
        self,
        video_id: int,
        rows: DetectionColumns,
        source: Source,
        *,
        on_progress: Progress | None = None,
    ) -> int:
        """Put boxes in; how many.  `on_progress` is told (done, of how many); it may raise."""
        if not len(rows):
            return 0
        rows = rows.sorted_by_frame()
        source_id = self.source_id(source)
        codes = np.array([self._label_id(name) for name in rows.names], dtype=np.int64)
        seq = self._places_in_frames(video_id, rows.frames)
        # In the order of the table, so that its pages are filled one after the other.
        order = np.lexsort((seq, rows.frames, codes[rows.codes]))
        with self._room_for(len(rows)):
            for at in range(0, len(order), _BATCH):
                part = order[at : at + _BATCH]
                self._insert(video_id, source_id, rows, codes, seq, part)
                if on_progress is not None:
                    on_progress(min(at + _BATCH, len(order)), len(order))
        return len(rows)

    def mark_examined(self, video_id: int, frames: Iterable[range], source: Source) -> None:
        """Note that `source` has looked at these frames; ranges that touch become one."""
        added = [(part.start, part.stop) for part in frames if len(part)]
        if not added:
            return
        source_id = self.source_id(source)
        # Only what the new ranges may touch: whoever looks at every tenth frame has many.
        mine = sa.and_(
            examined.c.video_id == video_id,
            examined.c.source_id == source_id,
            examined.c.first_frame <= max(stop for _, stop in added),
            examined.c.end_frame >= min(start for start, _ in added),
        )
        kept = self._connection.execute(
            sa.select(examined.c.first_frame, examined.c.end_frame).where(mine)
        )
        before = sorted((row.first_frame, row.end_frame) for row in kept)
        after = merge_ranges([*before, *added])
        if after != before:
            self._connection.execute(sa.delete(examined).where(mine))
            self._insert_examined(video_id, source_id, after)

    def not_examined(self, video_id: int, frames: Sequence[range], source: Source) -> list[range]:
        """What is left of `frames`, ranges in order and without overlaps, when those go that
        `source` has looked at."""
        if not frames:
            return []
        # Only what they may meet: whoever looks at every tenth frame has many.
        rows = self._connection.execute(
            sa.select(examined.c.first_frame, examined.c.end_frame)
            .where(
                examined.c.video_id == video_id,
                examined.c.source_id.in_(self.known_sources(source)),
                examined.c.first_frame < frames[-1].stop,
                examined.c.end_frame > frames[0].start,
            )
            .order_by(examined.c.first_frame)
        )
        gone = [range(row.first_frame, row.end_frame) for row in rows]
        left = subtract_ranges(((part.start, part.stop) for part in frames), gone)
        return [range(*pair) for pair in left]

    def how_many_known(self, video_id: int, rows: DetectionColumns, source: Source) -> int:
        """How many of these boxes `source` has said before."""
        codes = self.known_labels(rows.names)
        if not len(rows) or not codes:
            return 0
        names = ("frame", "x1", "y1", "x2", "y2", "confidence", "track")
        # Only of the frames that have any: few new boxes may lie far from each other.
        query = (
            sa.select(labels.c.name, *(detections.c[name] for name in names))
            .join(labels, labels.c.id == detections.c.label_id)
            .where(
                detections.c.video_id == video_id,
                detections.c.source_id.in_(self.known_sources(source)),
            )
        )
        there = [
            row
            for some in in_batches(detections.c.label_id, codes.values())
            for within in _frame_conditions(contiguous_ranges(np.unique(rows.frames)))
            for row in self._connection.execute(query.where(some, *within))
        ]
        known = DetectionColumns.of(
            [row.frame for row in there],
            [row.name for row in there],
            [(row.x1, row.y1, row.x2, row.y2) for row in there],
            [row.confidence for row in there],
            [row.track for row in there],
        )
        return int(rows.isin(known).sum())

    def remove(
        self,
        video_id: int,
        *,
        source_ids: Sequence[int] | None = None,
        label_ids: Sequence[int] | None = None,
        frames: Sequence[range] | None = None,
    ) -> int:
        """Take boxes out for which everything given holds; how many.

        `frames`: ranges in order, without steps or overlaps.  Where labels are not given, the
        frames that the sources have examined are forgotten with their boxes: nobody can tell any
        more what was found there.
        """
        chosen = [detections.c.video_id == video_id]
        if source_ids is not None:
            chosen.append(detections.c.source_id.in_(source_ids))
        if label_ids is None:
            self._forget_examined(video_id, source_ids, frames)
            if frames is not None:
                label_ids = self.label_ids(video_id)  # lets the rows be found by their order
        if label_ids is not None:
            chosen.append(detections.c.label_id.in_(label_ids))
        return sum(
            self._connection.execute(sa.delete(detections).where(*chosen, *within)).rowcount
            for within in _frame_conditions(frames)
        )

    def renumber(self, video_id: int, new_of: Ints) -> None:
        """Let boxes, and what was examined, follow frame ``i`` to the number ``new_of[i]``.

        No two frames come to the same one; below 0: it was none, and what was said of it goes.
        """
        old = np.arange(len(new_of))
        for run in _runs_of(new_of - old, of=new_of >= 0):
            by = int(new_of[run.start]) - run.start
            self._shift(video_id, run, _TEMPORARY_SHIFT + by)
        mine = detections.c.video_id == video_id
        self._connection.execute(
            sa.delete(detections).where(mine, detections.c.frame < _TEMPORARY_SHIFT)
        )
        self._shift(video_id, range(_TEMPORARY_SHIFT, 2 * _TEMPORARY_SHIFT), -_TEMPORARY_SHIFT)
        looked = self.examined(video_id)
        self._connection.execute(sa.delete(examined).where(examined.c.video_id == video_id))
        for one in looked:
            frames = new_of[one.frames.start : one.frames.stop]
            self.mark_examined(
                video_id, contiguous_ranges(np.sort(frames[frames >= 0])), one.source
            )

    def move(self, video_id: int, across: int, down: int) -> None:
        """Move all boxes of a video by so many pixels to the right and down."""
        table = detections.c
        self._connection.execute(
            sa.update(detections)
            .where(table.video_id == video_id)
            .values(
                x1=table.x1 + across,
                x2=table.x2 + across,
                y1=table.y1 + down,
                y2=table.y2 + down,
            )
        )

    def _shift(self, video_id: int, frames: range, by: int) -> None:
        self._connection.execute(
            sa.update(detections)
            .where(
                detections.c.video_id == video_id,
                detections.c.frame.between(frames.start, frames.stop - 1),
            )
            .values(frame=detections.c.frame + by)
        )

    def remove_of_video(self, video_id: int) -> None:
        """Forget everything: the video's bytes are others now."""
        for table in (detections, examined):
            self._connection.execute(sa.delete(table).where(table.c.video_id == video_id))

    # -- looking

    def digest(self, video_id: int) -> str | None:
        """Of the bytes that the boxes are about; None where the video is gone."""
        found: str | None = self._connection.execute(_DIGEST, {"id": video_id}).scalar()
        return found

    def is_there(self, video_id: int) -> bool:
        """Whether anything was said of any frame of a video, or any was examined."""
        return any(
            self._connection.execute(
                sa.select(table.c.video_id).where(table.c.video_id == video_id).limit(1)
            ).first()
            for table in (detections, examined)
        )

    def has_original(self, video_id: int, physical_id: int) -> bool:
        """Whether the frames of a video are those of that encoding."""
        given = {"id": physical_id, "video": video_id}
        return self._connection.execute(_ORIGINAL, given).first() is not None

    def label_ids(self, video_id: int) -> list[int]:
        """The labels that a video has boxes of, without reading the boxes."""
        rows = self._connection.execute(_LABELS_OF_VIDEO, {"video": video_id})
        return [row[0] for row in rows if row[0] is not None]

    def label_names(self, ids: Iterable[int]) -> dict[int, str]:
        return dict(self._by_ids(sa.select(labels.c.id, labels.c.name), labels.c.id, ids))

    def all_labels(self) -> list[str]:
        """The labels that any video has ever used, by name."""
        return list(
            self._connection.execute(sa.select(labels.c.name).order_by(labels.c.name)).scalars()
        )

    def known_labels(self, names: Iterable[str]) -> dict[str, int]:
        """The numbers of those among `names` that any video has ever used."""
        possible = filter(is_storable, names)
        return {
            name: number
            for number, name in self._by_ids(
                sa.select(labels.c.id, labels.c.name), labels.c.name, possible
            )
        }

    def sources_by_id(self, ids: Iterable[int]) -> dict[int, Source]:
        rows = self._by_ids(sa.select(sources), sources.c.id, ids)
        return {row.id: _source_from_row(row) for row in rows}

    def known_sources(self, source: str | Source) -> list[int]:
        """The numbers of a source; of all of that name where only a name is given."""
        if isinstance(source, str):
            if not is_storable(source):
                return []
            query = sa.select(sources.c.id).where(sources.c.name == source)
        else:
            query = sa.select(sources.c.id).where(_is_source(source_from(source)))
        return list(self._connection.execute(query).scalars())

    def sources_of(self, video_id: int) -> list[Source]:
        """Who has said anything of a video, or has examined any of it, in order of arrival."""
        found: set[int] = set()
        for table in (detections, examined):
            query = sa.select(table.c.source_id).where(table.c.video_id == video_id).distinct()
            found.update(self._connection.execute(query).scalars())
        known = self.sources_by_id(found)
        return [known[number] for number in sorted(known)]

    def summary(self, video_id: int, source_ids: Sequence[int] | None = None) -> list[LabelSummary]:
        """Each label of a video, by name.  Reads all its boxes."""
        chosen = [detections.c.video_id == video_id]
        if source_ids is not None:
            chosen.append(detections.c.source_id.in_(source_ids))
        found = self._connection.execute(
            sa.select(
                labels.c.name,
                sa.func.count(),
                sa.func.count(detections.c.frame.distinct()),
                sa.func.min(detections.c.frame),
                sa.func.max(detections.c.frame),
            )
            .join(labels, labels.c.id == detections.c.label_id)
            .where(*chosen)
            .group_by(labels.c.name)
            .order_by(labels.c.name)
        ).all()
        tracked = (
            sa.select(detections.c.label_id, detections.c.source_id, detections.c.track)
            .where(*chosen, detections.c.track.is_not(None))
            .distinct()
            .subquery()
        )
        tracks: dict[str, int] = {
            row[0]: row[1]
            for row in self._connection.execute(
                sa.select(labels.c.name, sa.func.count())
                .join(tracked, tracked.c.label_id == labels.c.id)
                .group_by(labels.c.name)
            )
        }
        return [
            LabelSummary(name, boxes, frames, tracks.get(name, 0), first, last + 1)
            for name, boxes, frames, first, last in sorted(found)
        ]

    def examined(self, video_id: int, source_ids: Sequence[int] | None = None) -> list[Examined]:
        """The frames that have been looked at, by source, then by frame."""
        chosen = [examined.c.video_id == video_id]
        if source_ids is not None:
            chosen.append(examined.c.source_id.in_(source_ids))
        rows = self._connection.execute(
            sa.select(examined.c.source_id, examined.c.first_frame, examined.c.end_frame)
            .where(*chosen)
            .order_by(examined.c.source_id, examined.c.first_frame)
        ).all()
        known = self.sources_by_id({row.source_id for row in rows})
        return [
            Examined(known[row.source_id], range(row.first_frame, row.end_frame)) for row in rows
        ]

    def is_known_to_give(self, source: Source, names: Sequence[str]) -> bool:
        """Whether a source looks for one of these labels: its settings say so, or it has given one
        of them, in any video."""
        if any(source.parameters.get(key) in names for key in ("label", "labels")):
            return True
        # By way of the videos, as the rows lie: the boxes of other labels are not looked at.
        query = (
            sa.select(videos.c.id)
            .where(
                sa.exists().where(
                    detections.c.video_id == videos.c.id,
                    detections.c.label_id.in_(self.known_labels(names).values()),
                    detections.c.source_id.in_(self.known_sources(source)),
                )
            )
            .limit(1)
        )
        return self._connection.execute(query).first() is not None

    def source_id(self, source: Source) -> int:
        """The number of a source, which is made known if it is new."""
        found = self.known_sources(source)
        if found:
            return found[0]
        made = self._connection.execute(
            sa.insert(sources).values(
                name=source.name,
                model=source.model,
                version=source.version,
                parameters=_canonical(source.parameters),
            )
        )
        assert made.inserted_primary_key is not None
        return int(made.inserted_primary_key[0])

    # -- the work

    def _label_id(self, name: str) -> int:
        found = self._connection.execute(sa.select(labels.c.id).where(labels.c.name == name))
        number: int | None = found.scalar()
        if number is None:
            made = self._connection.execute(sa.insert(labels).values(name=name))
            assert made.inserted_primary_key is not None
            number = int(made.inserted_primary_key[0])
        return number

    def _places_in_frames(self, video_id: int, frames: Ints) -> Ints:
        """The `seq` of new rows with ascending `frames`: after those that each frame has."""
        starts = np.flatnonzero(np.diff(frames, prepend=-1))
        counts = np.diff(np.append(starts, len(frames)))
        places: Ints = np.arange(len(frames)) - np.repeat(starts, counts)
        there = self._connection.execute(
            sa.select(detections.c.frame, sa.func.max(detections.c.seq))
            .where(
                detections.c.video_id == video_id,
                detections.c.label_id.in_(self.label_ids(video_id)),
                detections.c.frame.between(int(frames[0]), int(frames[-1])),
            )
            .group_by(detections.c.frame)
        ).all()
        if there:
            taken = np.array([tuple(row) for row in there], dtype=np.int64)
            taken = taken[np.argsort(taken[:, 0])]
            at = np.searchsorted(taken[:, 0], frames).clip(max=len(taken) - 1)
            places += np.where(taken[at, 0] == frames, taken[at, 1] + 1, 0)
        return places

    def _insert(
        self,
        video_id: int,
        source_id: int,
        rows: DetectionColumns,
        codes: Ints,
        seq: Ints,
        part: Ints,
    ) -> None:
        count = len(part)
        boxes = rows.boxes[part]
        confidences = rows.confidences[part]
        tracks = rows.tracks[part]
        values = (
            [video_id] * count,
            codes[rows.codes[part]].tolist(),
            rows.frames[part].tolist(),
            seq[part].tolist(),
            *(boxes[:, corner].tolist() for corner in range(4)),
            _with_none(confidences, np.isnan(confidences)),
            _with_none(tracks, tracks == NO_TRACK),
            [source_id] * count,
            cells(boxes).tolist(),
            bounds(boxes).tolist(),
            [dict(rows.attributes_of(at)) or None for at in part.tolist()]
            if rows.attributes is not None
            else [None] * count,
        )
        self._insert_rows(zip(*values, strict=True))

    def _insert_rows(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """On SQLite straight to the driver: SQLAlchemy would take as long as the database does."""
        if self._connection.dialect.name != "sqlite":
            made = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
            self._connection.execute(sa.insert(detections), made)
            return
        text = f"INSERT INTO detections ({', '.join(_COLUMNS)}) VALUES ({_MARKS})"
        plain = [
            row if row[-1] is None else (*row[:-1], json.dumps(row[-1], ensure_ascii=False))
            for row in rows
        ]
        self._connection.exec_driver_sql(text, plain)

    def _room_for(self, count: int) -> AbstractContextManager[None]:
        """To be held while so many rows go in."""
        if count >= _LARGE_INSERT and self._connection.dialect.name == "sqlite":
            return _large_cache(self._connection)
        return nullcontext()

    def _insert_examined(
        self, video_id: int, source_id: int, ranges: Iterable[tuple[int, int]]
    ) -> None:
        made = [
            {
                "video_id": video_id,
                "source_id": source_id,
                "first_frame": start,
                "end_frame": stop,
            }
            for start, stop in ranges
        ]
        if made:
            self._connection.execute(sa.insert(examined), made)

    def _forget_examined(
        self, video_id: int, source_ids: Sequence[int] | None, frames: Sequence[range] | None
    ) -> None:
        if frames is not None and not frames:
            return
        chosen = [examined.c.video_id == video_id]
        if source_ids is not None:
            chosen.append(examined.c.source_id.in_(source_ids))
        if frames is None:
            self._connection.execute(sa.delete(examined).where(*chosen))
            return
        # Only what the frames meet: whoever looks at every tenth frame has many.
        chosen.append(examined.c.first_frame < frames[-1].stop)
        chosen.append(examined.c.end_frame > frames[0].start)
        known: dict[int, list[tuple[int, int]]] = {}
        for row in self._connection.execute(sa.select(examined).where(*chosen)):
            known.setdefault(row.source_id, []).append((row.first_frame, row.end_frame))
        self._connection.execute(sa.delete(examined).where(*chosen))
        for source_id, before in known.items():
            self._insert_examined(video_id, source_id, subtract_ranges(sorted(before), frames))

    def _by_ids(
        self, query: sa.Select[Any], column: sa.Column[Any], values: Iterable[Any]
    ) -> Iterator[Any]:
        for some in in_batches(column, values):
            yield from self._connection.execute(query.where(some))


@contextmanager
def _large_cache(connection: Connection) -> Iterator[None]:
    """Have SQLite keep the index in memory, which is not filled in its own order."""
    before = connection.exec_driver_sql("PRAGMA cache_size").scalar_one()
    connection.exec_driver_sql(f"PRAGMA cache_size = -{_LARGE_CACHE_KIB}")
    try:
        yield
    finally:
        connection.exec_driver_sql(f"PRAGMA cache_size = {before}")


def _frame_conditions(frames: Sequence[range] | None) -> Iterator[list[sa.ColumnElement[bool]]]:
    """Conditions of which one after the other holds for every frame, each frame once."""
    if frames is None:
        yield []
        return
    single: list[int] = []
    for run in frames:
        if len(run) > _SHORT_RUN:
            yield [detections.c.frame.between(run.start, run.stop - 1)]
        else:
            single.extend(run)
    for at in range(0, len(single), _FRAMES_AT_ONCE):
        yield [detections.c.frame.in_(single[at : at + _FRAMES_AT_ONCE])]


def _with_none(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_]) -> list[Any]:
    """As Python numbers, None where one is missing."""
    objects = values.astype(object)
    objects[missing] = None
    found: list[Any] = objects.tolist()
    return found


@reads_row(sources)
def _source_from_row(row: Row[Any]) -> Source:
    return Source(row.name, row.model, row.version, parsed_json(row.parameters))


def _canonical(parameters: Mapping[str, Any]) -> str:
    return json.dumps(dict(parameters), sort_keys=True, separators=(",", ":"))


def _is_source(source: Source) -> sa.ColumnElement[bool]:
    return sa.and_(
        sources.c.name == source.name,
        sources.c.model == source.model,
        sources.c.version == source.version,
        sources.c.parameters == _canonical(source.parameters),
    )


_MARKS = ", ".join("?" * len(_COLUMNS))
_DIGEST = sa.text("SELECT digest FROM videos WHERE id = :id")
_ORIGINAL = sa.text("SELECT 1 FROM physical_videos WHERE id = :id AND video_id = :video")
# From one label to the next by the table's order: as many steps as there are labels.
_LABELS_OF_VIDEO = sa.text(
    "WITH RECURSIVE step(label) AS ("
    " SELECT min(label_id) FROM detections WHERE video_id = :video"
    " UNION ALL"
    " SELECT (SELECT min(label_id) FROM detections"
    "         WHERE video_id = :video AND label_id > step.label)"
    " FROM step WHERE step.label IS NOT NULL"
    ") SELECT label FROM step WHERE label IS NOT NULL"
)


def _runs_of(values: Ints, *, of: npt.NDArray[np.bool_]) -> list[range]:
    """The ranges in which neighbours are equal, among the places that are `of` interest."""
    places = np.flatnonzero(of)
    if not len(places):
        return []
    cuts = np.flatnonzero((np.diff(places) > 1) | (np.diff(values[places]) != 0)) + 1
    return [range(int(part[0]), int(part[-1]) + 1) for part in np.split(places, cuts)]
