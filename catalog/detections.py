"""Labelled boxes, and the frames that each source has examined, within one transaction."""

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
from vfsd.catalog.detection_counts import BoxCounts
from vfsd.catalog.rows import in_batches, parsed_json, reads_row
from vfsd.catalog.schema import (
    box_counts,
    detections,
    examined,
    labels,
    physical_videos,
    sources,
    videos,
)
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
from vfsd.core.frames import merge_ranges, subtract_ranges
from vfsd.validation import is_storable

Progress = Callable[[int, int], None]

_BATCH = 20_000
_LARGE_INSERT = 50_000
_SHORT_RUN = 8
_FRAMES_AT_ONCE = 500
_LARGE_CACHE_KIB = 131_072
_TEMPORARY_SHIFT = 1 << 40
"""Offset for temporary frame numbers while frames are renumbered."""

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
    """The semantic index.

    Videos are identified by id.  The caller must check that the id still means the same bytes
    (`vfsd.catalog.Catalog` does).
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._counts = BoxCounts(connection)

    def add(
        self,
        video_id: int,
        rows: DetectionColumns,
        source: Source,
        *,
        on_progress: Progress | None = None,
    ) -> int:
        """Add boxes; return their number.  `on_progress` is called with (done, total) and may
        raise.
        """
        if not len(rows):
            return 0
        rows = rows.sorted_by_frame()
        source_id = self.source_id(source)
        codes = np.array([self.label_id(name) for name in rows.names], dtype=np.int64)
        seq = self._sequence_numbers(video_id, rows.frames)
        # In the order of the table, so that its pages are filled sequentially.
        order = np.lexsort((seq, rows.frames, codes[rows.codes]))
        with self._bulk_insert(len(rows)):
            for at in range(0, len(order), _BATCH):
                part = order[at : at + _BATCH]
                self._insert(video_id, source_id, rows, codes, seq, part)
                if on_progress is not None:
                    on_progress(min(at + _BATCH, len(order)), len(order))
        used, counts = np.unique(codes[rows.codes], return_counts=True)
        boxes = dict(zip(used.tolist(), counts.tolist(), strict=True))
        self._counts.add(video_id, source_id, boxes)
        return len(rows)

    def mark_examined(self, video_id: int, frames: Iterable[range], source: Source) -> None:
        """Record that `source` has examined these frames; adjacent ranges are merged."""
        added = [(part.start, part.stop) for part in frames if len(part)]
        if not added:
            return
        source_id = self.source_id(source)
        # Only ranges that the new ones may touch: a source with a step of ten has many.
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
        """Return `frames` (ascending, disjoint ranges) without those that `source` has examined."""
        if not frames:
            return []
        # Only ranges that may overlap: a source with a step of ten has many.
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

    def count_known(self, video_id: int, rows: DetectionColumns, source: Source) -> int:
        """Return how many of these boxes `source` has added before."""
        codes = self.known_labels(rows.names)
        if not len(rows) or not codes:
            return 0
        names = ("frame", "x1", "y1", "x2", "y2", "confidence", "track")
        # Only the frames of the boxes: few new boxes may be far apart.
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
        """Remove the boxes that satisfy every given condition; return their number.

        `frames` are ascending, disjoint ranges.  Without `label_ids`, the record of examined frames
        is dropped as well, as it no longer holds.
        """
        chosen = [detections.c.video_id == video_id]
        if source_ids is not None:
            chosen.append(detections.c.source_id.in_(source_ids))
        if label_ids is None:
            self._forget_examined(video_id, source_ids, frames)
            if frames is not None:
                label_ids = self.label_ids(video_id)  # the primary key starts with video and label
        if label_ids is not None:
            chosen.append(detections.c.label_id.in_(label_ids))
        if frames is None:
            self._counts.forget(video_id, label_ids, source_ids)
        gone = 0
        for within in _frame_conditions(frames):
            if frames is not None:
                self._counts.subtract(video_id, [*chosen, *within])
            delete = sa.delete(detections).where(*chosen, *within)
            gone += self._connection.execute(delete).rowcount
        return gone

    def renumber(self, video_id: int, new_of: Ints) -> None:
        """Renumber boxes and examined frames from frame ``i`` to ``new_of[i]``.

        The new numbers are distinct.  A negative one means that the frame no longer exists; its
        boxes are removed.
        """
        old = np.arange(len(new_of))
        for run in _equal_runs(new_of - old, where=new_of >= 0):
            by = int(new_of[run.start]) - run.start
            self._shift(video_id, run, _TEMPORARY_SHIFT + by)
        mine = detections.c.video_id == video_id
        self._connection.execute(
            sa.delete(detections).where(mine, detections.c.frame < _TEMPORARY_SHIFT)
        )
        self._shift(video_id, range(_TEMPORARY_SHIFT, 2 * _TEMPORARY_SHIFT), -_TEMPORARY_SHIFT)
        self._counts.recount(video_id)
        looked = self.examined(video_id)
        self._connection.execute(sa.delete(examined).where(examined.c.video_id == video_id))
        for one in looked:
            frames = new_of[one.frames.start : one.frames.stop]
            self.mark_examined(
                video_id, contiguous_ranges(np.sort(frames[frames >= 0])), one.source
            )

    def move(self, video_id: int, across: int, down: int) -> None:
        """Move all boxes of a video right and down by these pixels."""
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
        """Drop everything about a video whose bytes have changed."""
        for table in (detections, box_counts, examined):
            self._connection.execute(sa.delete(table).where(table.c.video_id == video_id))

    def digest(self, video_id: int) -> str | None:
        """Return the digest of the bytes that the boxes refer to; None if the video
        does not exist.
        """
        found: str | None = self._connection.execute(_DIGEST, {"id": video_id}).scalar()
        return found

    def has_any(self, video_id: int) -> bool:
        """Return whether a video has any boxes or examined frames."""
        return any(
            self._connection.execute(
                sa.select(table.c.video_id).where(table.c.video_id == video_id).limit(1)
            ).first()
            for table in (detections, examined)
        )

    def has_original(self, video_id: int, physical_id: int) -> bool:
        """Return whether the frames of a video are those of that encoding."""
        given = {"id": physical_id, "video": video_id}
        return self._connection.execute(_ORIGINAL, given).first() is not None

    def numberings(self, video_ids: Iterable[int]) -> dict[int, tuple[str, int]]:
        """Return the digest and the original of videos: boxes refer to frames of both."""
        query = (
            sa.select(videos.c.id, videos.c.digest, physical_videos.c.id.label("original"))
            .join_from(videos, physical_videos, physical_videos.c.video_id == videos.c.id)
            .where(physical_videos.c.role == "original")
        )
        rows = self._by_ids(query, videos.c.id, video_ids)
        return {row.id: (row.digest, row.original) for row in rows}

    def label_ids(self, video_id: int) -> list[int]:
        """Return the ids of the labels of a video, without reading its boxes."""
        rows = self._connection.execute(_LABELS_OF_VIDEO, {"video": video_id})
        return [row[0] for row in rows if row[0] is not None]

    def label_names(self, ids: Iterable[int]) -> dict[int, str]:
        return dict(self._by_ids(sa.select(labels.c.id, labels.c.name), labels.c.id, ids))

    def all_labels(self) -> list[str]:
        """Return the labels that any video has ever used, sorted."""
        return list(
            self._connection.execute(sa.select(labels.c.name).order_by(labels.c.name)).scalars()
        )

    def known_labels(self, names: Iterable[str]) -> dict[str, int]:
        """Return the ids of those of `names` that any video has ever used."""
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
        """Return the ids of a source; for a name, those of all sources with it."""
        if isinstance(source, str):
            if not is_storable(source):
                return []
            query = sa.select(sources.c.id).where(sources.c.name == source)
        else:
            query = sa.select(sources.c.id).where(_is_source(source_from(source)))
        return list(self._connection.execute(query).scalars())

    def sources_of(self, video_id: int) -> list[Source]:
        """Return the sources of a video's boxes or examined frames, in order of arrival."""
        found: set[int] = set()
        for table in (detections, examined):
            query = sa.select(table.c.source_id).where(table.c.video_id == video_id).distinct()
            found.update(self._connection.execute(query).scalars())
        known = self.sources_by_id(found)
        return [known[number] for number in sorted(known)]

    def summary(self, video_id: int, source_ids: Sequence[int] | None = None) -> list[LabelSummary]:
        """Return the counts of each label of a video, by name.  Reads all its boxes."""
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
        """Return the examined frames, by source, then by frame."""
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

    def examined_in(
        self, video_ids: Iterable[int], source_ids: Sequence[int] | None = None
    ) -> dict[int, list[Examined]]:
        """Return the examined frames of several videos by id, each as `examined`."""
        query = sa.select(examined).order_by(
            examined.c.video_id, examined.c.source_id, examined.c.first_frame
        )
        if source_ids is not None:
            query = query.where(examined.c.source_id.in_(source_ids))
        rows = list(self._by_ids(query, examined.c.video_id, video_ids))
        known = self.sources_by_id({row.source_id for row in rows})
        found: dict[int, list[Examined]] = {}
        for row in rows:
            one = Examined(known[row.source_id], range(row.first_frame, row.end_frame))
            found.setdefault(row.video_id, []).append(one)
        return found

    def detects_any(self, source: Source, names: Sequence[str]) -> bool:
        """Return whether a source detects one of these labels.

        True if its parameters say so, or if it has added such a box to any video.
        """
        if any(source.parameters.get(key) in names for key in ("label", "labels")):
            return True
        # By video, in the order of the primary key: boxes with other labels are not read.
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
        """Return the id of a source, which is added if it is new."""
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

    def label_id(self, name: str) -> int:
        """Return the id of a label, which is added if it is new."""
        found = self._connection.execute(sa.select(labels.c.id).where(labels.c.name == name))
        number: int | None = found.scalar()
        if number is None:
            made = self._connection.execute(sa.insert(labels).values(name=name))
            assert made.inserted_primary_key is not None
            number = int(made.inserted_primary_key[0])
        return number

    def _sequence_numbers(self, video_id: int, frames: Ints) -> Ints:
        """Return `seq` for new rows with ascending `frames`: after the existing rows of
        each frame.
        """
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
        """Insert rows; on SQLite through the driver, as SQLAlchemy would double the time."""
        if self._connection.dialect.name != "sqlite":
            made = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
            self._connection.execute(sa.insert(detections), made)
            return
        text = f"INSERT INTO detections ({', '.join(_COLUMNS)}) VALUES ({_PLACEHOLDERS})"
        plain = [
            row if row[-1] is None else (*row[:-1], json.dumps(row[-1], ensure_ascii=False))
            for row in rows
        ]
        self._connection.exec_driver_sql(text, plain)

    def _bulk_insert(self, count: int) -> AbstractContextManager[None]:
        """Return a context for inserting `count` rows."""
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
        # Only ranges that overlap `frames`: a source with a step of ten has many.
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
    """Enlarge the page cache, as the index is not filled in its own order."""
    before = connection.exec_driver_sql("PRAGMA cache_size").scalar_one()
    connection.exec_driver_sql(f"PRAGMA cache_size = -{_LARGE_CACHE_KIB}")
    try:
        yield
    finally:
        connection.exec_driver_sql(f"PRAGMA cache_size = {before}")


def _frame_conditions(frames: Sequence[range] | None) -> Iterator[list[sa.ColumnElement[bool]]]:
    """Yield conditions that together cover all frames, each frame once."""
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
    """Return Python values, with None where `missing` is set."""
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


_PLACEHOLDERS = ", ".join("?" * len(_COLUMNS))
_DIGEST = sa.text("SELECT digest FROM videos WHERE id = :id")
_ORIGINAL = sa.text("SELECT 1 FROM physical_videos WHERE id = :id AND video_id = :video")
# Skips from label to label along the primary key: as many steps as there are labels.
_LABELS_OF_VIDEO = sa.text(
    "WITH RECURSIVE step(label) AS ("
    " SELECT min(label_id) FROM detections WHERE video_id = :video"
    " UNION ALL"
    " SELECT (SELECT min(label_id) FROM detections"
    "         WHERE video_id = :video AND label_id > step.label)"
    " FROM step WHERE step.label IS NOT NULL"
    ") SELECT label FROM step WHERE label IS NOT NULL"
)


def _equal_runs(values: Ints, *, where: npt.NDArray[np.bool_]) -> list[range]:
    """Return the maximal ranges of positions in `where` with equal values."""
    places = np.flatnonzero(where)
    if not len(places):
        return []
    cuts = np.flatnonzero((np.diff(places) > 1) | (np.diff(values[places]) != 0)) + 1
    return [range(int(part[0]), int(part[-1]) + 1) for part in np.split(places, cuts)]
