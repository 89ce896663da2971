"""Counts of boxes of many videos by time, without reading the boxes into memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.schema import detections, examined, labels, physical_videos, videos
from vfsd.core.capture_time import NS
from vfsd.core.model import Role
from vfsd.tiling import Rect

_CHUNK = 900


class BinCount(NamedTuple):
    """The number of boxes of a video in a part of time."""

    video_id: int
    bin: int  #: number of the part since the Unix epoch, or since the first frame of the video
    boxes: int


class BoxCounts:
    """Counts of boxes, in a statement for about a thousand videos."""

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
