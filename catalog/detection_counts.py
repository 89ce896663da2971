"""Counts of boxes of many videos, by time or kept with the boxes, without reading the boxes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.schema import (
    box_counts,
    detections,
    entries,
    examined,
    labels,
    physical_videos,
    videos,
)
from vfsd.core.capture_time import NS
from vfsd.core.model import Role
from vfsd.tiling import Rect

_CHUNK = 900


class BinCount(NamedTuple):
    """The number of boxes of a video in a part of time."""

    video_id: int
    bin: int  #: number of the part since the Unix epoch, or since the first frame of the video
    boxes: int


class BoxSum(NamedTuple):
    """The number of boxes with a label and a source, in one video or in several."""

    video_id: int | None  #: None: in several videos together
    label_id: int
    source_id: int
    boxes: int


class BoxCounts:
    """Counts of boxes, in a statement for about a thousand videos.

    The table `box_counts` has the number of boxes of each video, label and source.  Every change of
    boxes changes it in the same transaction.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def count(
        self,
        video_ids: Collection[int] | None,
        words: Collection[str] | None,
        *,
        step: float,
        region: Rect | None = None,
        span: tuple[int | None, int | None] | None = None,
    ) -> list[BinCount]:
        """Return the boxes in each part of `step` seconds that has any.

        Frames are placed by the mean rate of their video.

        Args:
            video_ids: Only boxes of these; None: of all videos.
            words: Only boxes with one of these labels; None: all.
            step: Seconds of a part.
            region: Only boxes that overlap it.
            span: Only boxes recorded in ``start <= t < end``, Unix nanoseconds, None: an open end.
                Parts then count from the Unix epoch; videos without a time have no boxes in it.
        """
        original = physical_videos.c
        frame_seconds = (
            sa.cast(original.end_pts - original.first_pts, sa.Double)
            * original.time_base_num
            / original.time_base_den
            / original.frames
        )
        shown = detections.c.frame * frame_seconds
        if span is not None:
            shown = shown + sa.cast(videos.c.captured_ns, sa.Double) / NS
        place = shown / step
        if self._connection.dialect.name == "postgresql":
            place = sa.func.floor(place)  # its cast rounds; that of SQLite cuts off the fraction
        place = sa.cast(place, sa.BigInteger)
        query = (
            sa.select(detections.c.video_id, place, sa.func.count())
            .select_from(detections)
            .join(videos, videos.c.id == detections.c.video_id)
            .join(physical_videos, original.video_id == videos.c.id)
            .where(original.role == Role.ORIGINAL.value)
            .group_by(detections.c.video_id, place)
        )
        if words is not None:
            numbers = self._connection.execute(
                sa.select(labels.c.id).where(labels.c.name.in_(sorted(words)))
            ).scalars()
            query = query.where(detections.c.label_id.in_(list(numbers)))
        if region is not None:
            query = query.where(
                detections.c.x1 < region.x2,
                detections.c.x2 > region.x1,
                detections.c.y1 < region.y2,
                detections.c.y2 > region.y1,
            )
        for end, is_start in zip(span or (), (True, False), strict=False):
            if end is not None:
                query = query.where(shown >= end / NS if is_start else shown < end / NS)
        if span is not None:
            query = query.where(videos.c.captured_ns.is_not(None))
        return [BinCount(*row) for row in self._of(query, detections.c.video_id, video_ids)]

    def unexamined(self, video_ids: Collection[int] | None) -> dict[int, float]:
        """Return the seconds of each video that no source has examined at all."""
        original = physical_videos.c
        seconds = (
            sa.cast(original.end_pts - original.first_pts, sa.Double)
            * original.time_base_num
            / original.time_base_den
        )
        query = (
            sa.select(videos.c.id, seconds)
            .join(physical_videos, original.video_id == videos.c.id)
            .where(
                original.role == Role.ORIGINAL.value,
                ~sa.exists().where(examined.c.video_id == videos.c.id),
            )
        )
        return {row[0]: row[1] for row in self._of(query, videos.c.id, video_ids)}

    def sums(
        self,
        video_ids: Collection[int] | None,
        label_ids: Collection[int] | None = None,
        source_ids: Collection[int] | None = None,
        *,
        by_video: bool = False,
    ) -> list[BoxSum]:
        """Return the numbers of boxes by label and source, and perhaps by video; from `box_counts`.

        None for `video_ids` means all videos that have a name; otherwise None means all.
        """
        table = box_counts.c
        keys = [table.label_id, table.source_id]
        video = table.video_id if by_video else sa.null()
        query = sa.select(video, *keys, sa.func.sum(table.boxes)).where(table.boxes > 0)
        if label_ids is not None:
            query = query.where(table.label_id.in_(label_ids))
        if source_ids is not None:
            query = query.where(table.source_id.in_(source_ids))
        if video_ids is None:
            named = sa.exists().where(entries.c.ino == videos.c.ino)
            query = query.join(videos, videos.c.id == table.video_id).where(named)
        query = query.group_by(table.video_id, *keys) if by_video else query.group_by(*keys)
        rows = self._of(query, table.video_id, video_ids)
        return merge_sums(BoxSum(row[0], row[1], row[2], int(row[3])) for row in rows)

    def add(self, video_id: int, source_id: int, boxes: Mapping[int, int]) -> None:
        """Count new boxes: a number for each label."""
        rows = [
            {"video": video_id, "label": label, "source": source_id, "boxes": count}
            for label, count in sorted(boxes.items())
        ]
        if rows:
            self._connection.execute(_ADD, rows)

    def subtract(self, video_id: int, conditions: Sequence[sa.ColumnElement[bool]]) -> None:
        """Uncount the boxes of a video that satisfy the conditions, before they are deleted."""
        keys = [detections.c.label_id, detections.c.source_id]
        rows = [
            {"video": video_id, "label": row[0], "source": row[1], "boxes": -row[2]}
            for row in self._connection.execute(
                sa.select(*keys, sa.func.count()).where(*conditions).group_by(*keys)
            )
        ]
        if rows:
            self._connection.execute(_CHANGE, rows)

    def forget(
        self,
        video_id: int,
        label_ids: Sequence[int] | None = None,
        source_ids: Sequence[int] | None = None,
    ) -> None:
        """Uncount all boxes of a video that have one of these labels and one of these sources."""
        query = sa.delete(box_counts).where(box_counts.c.video_id == video_id)
        if label_ids is not None:
            query = query.where(box_counts.c.label_id.in_(label_ids))
        if source_ids is not None:
            query = query.where(box_counts.c.source_id.in_(source_ids))
        self._connection.execute(query)

    def recount(self, video_id: int) -> None:
        """Count all boxes of a video again."""
        self.forget(video_id)
        counted = _COUNTED.where(detections.c.video_id == video_id)
        names = [column.name for column in box_counts.columns]
        self._connection.execute(sa.insert(box_counts).from_select(names, counted))

    def miscounted(self) -> list[int]:
        """Return the videos whose counts are not those of their boxes.  Reads all boxes."""
        table = box_counts.c
        kept = sa.select(table.video_id, table.label_id, table.source_id, table.boxes)
        there = {tuple(row) for row in self._connection.execute(kept.where(table.boxes != 0))}
        counted = {tuple(row) for row in self._connection.execute(_COUNTED)}
        return sorted({row[0] for row in there ^ counted})

    def _of(
        self, query: sa.Select[Any], column: sa.Column[Any], video_ids: Collection[int] | None
    ) -> Sequence[Sequence[Any]]:
        if video_ids is None:
            return self._connection.execute(query).all()
        wanted = sorted(video_ids)
        return [
            row
            for at in range(0, len(wanted), _CHUNK)
            for row in self._connection.execute(query.where(column.in_(wanted[at : at + _CHUNK])))
        ]


def merge_sums(rows: Iterable[BoxSum]) -> list[BoxSum]:
    """Add the numbers of rows with equal keys."""
    found: dict[tuple[int | None, int, int], int] = {}
    for video, label, source, boxes in rows:
        found[video, label, source] = found.get((video, label, source), 0) + boxes
    return [BoxSum(*key, boxes) for key, boxes in found.items()]


_KEYS = "video_id = :video AND label_id = :label AND source_id = :source"
_CHANGE = sa.text(f"UPDATE box_counts SET boxes = boxes + :boxes WHERE {_KEYS}")
_ADD = sa.text(
    "INSERT INTO box_counts (video_id, label_id, source_id, boxes)"
    " VALUES (:video, :label, :source, :boxes)"
    " ON CONFLICT (video_id, label_id, source_id)"
    " DO UPDATE SET boxes = box_counts.boxes + excluded.boxes"
)
_COUNTED = sa.select(
    detections.c.video_id, detections.c.label_id, detections.c.source_id, sa.func.count()
).group_by(detections.c.video_id, detections.c.label_id, detections.c.source_id)
