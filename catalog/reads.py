"""What was read of videos, within one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.row_errors import row_of
from vfsd.catalog.schema import reads, videos
from vfsd.core.model import Read, ReadArea
from vfsd.tiling import Rect
from vfsd.validation import how_many


class Reads:
    """The reads that are remembered, as one transaction sees them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # -- looking

    def newest(
        self,
        video_id: int | None,
        *,
        since_ns: int | None = None,
        before_id: int | None = None,
        limit: int,
    ) -> list[Read]:
        """Those of a video, or of all, that began at `since_ns` or later; the newest first.

        At most `limit`, and only such as arrived before number `before_id`.
        """
        chosen = sa.select(reads).order_by(reads.c.id.desc()).limit(limit)
        if video_id is not None:
            chosen = chosen.where(reads.c.video_id == video_id)
        if since_ns is not None:
            chosen = chosen.where(reads.c.at_ns >= since_ns)
        if before_id is not None:
            chosen = chosen.where(reads.c.id < before_id)
        return [_from_row(row) for row in self._connection.execute(chosen)]

    def areas(self, video_id: int, frames: range) -> list[ReadArea]:
        """Where reads of a video looked that have touched some of `frames`, the most often first.

        A read of every hundredth frame is taken to have touched those in between.
        """
        region = (reads.c.x1, reads.c.y1, reads.c.x2, reads.c.y2)
        labels = sa.cast(reads.c.labels, sa.Text)
        count = sa.func.count()
        query = (
            sa.select(reads.c.kind, *region, labels.label("labels"), count.label("reads"))
            .where(
                reads.c.video_id == video_id,
                reads.c.first_frame < frames.stop,
                reads.c.end_frame > frames.start,
            )
            .group_by(reads.c.kind, *region, labels)
            .order_by(count.desc(), reads.c.kind, *region, labels)
        )
        return [
            ReadArea(
                row.kind,
                Rect(row.x1, row.y1, row.x2, row.y2),
                None if row.labels is None else _clauses(json.loads(row.labels)),
                row.reads,
            )
            for row in self._connection.execute(query)
        ]

    def videos(self) -> list[int]:
        """The numbers of those of which any are remembered."""
        chosen = sa.select(reads.c.video_id).distinct().order_by(reads.c.video_id)
        return list(self._connection.execute(chosen).scalars())

    # -- changing

    def add(self, done: Iterable[tuple[str, Read]]) -> int:
        """Remember reads, each with the digest of the bytes that were read; how many.

        Those of videos that are gone, or have other bytes by now, are left out.
        """
        rows = list(done)
        numbers = {read.video_id for _, read in rows}
        known = self._connection.execute(
            sa.select(videos.c.id, videos.c.digest).where(videos.c.id.in_(numbers))
        )
        current = {(row.id, row.digest) for row in known}
        kept = [_to_row(read) for digest, read in rows if (read.video_id, digest) in current]
        if kept:
            self._connection.execute(sa.insert(reads), kept)
        return len(kept)

    def keep(self, most: int) -> None:
        """Forget all but the newest `most`."""
        last = sa.select(sa.func.max(reads.c.id)).scalar_subquery()
        most = how_many(most, "number of reads")  # as a database takes it: people write settings
        self._connection.execute(sa.delete(reads).where(reads.c.id <= last - most))

    def remove(self, video_id: int | None) -> int:
        """Forget the reads of a video, or of all; how many."""
        chosen = sa.delete(reads)
        if video_id is not None:
            chosen = chosen.where(reads.c.video_id == video_id)
        return self._connection.execute(chosen).rowcount


def _clauses(stored: list[list[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(clause) for clause in stored)


@row_of(reads)
def _from_row(row: Row[Any]) -> Read:
    return Read(
        id=row.id,
        video_id=row.video_id,
        at_ns=row.at_ns,
        kind=row.kind,
        first_frame=row.first_frame,
        end_frame=row.end_frame,
        frames=row.frames,
        region=Rect(row.x1, row.y1, row.x2, row.y2),
        size=None if row.width is None else (row.width, row.height),
        labels=None if row.labels is None else _clauses(row.labels),
        pixels=row.pixels,
        untiled_pixels=row.untiled_pixels,
        predicted=row.predicted,
        untiled_predicted=row.untiled_predicted,
        seconds=row.seconds,
        segments=row.segments,
        tiles=row.tiles,
        original_frames=row.original_frames,
    )


def _to_row(read: Read) -> dict[str, Any]:
    region = read.region
    width, height = read.size or (None, None)
    return {
        "video_id": read.video_id,
        "at_ns": read.at_ns,
        "kind": read.kind,
        "first_frame": read.first_frame,
        "end_frame": read.end_frame,
        "frames": read.frames,
        "x1": region.x1,
        "y1": region.y1,
        "x2": region.x2,
        "y2": region.y2,
        "width": width,
        "height": height,
        "labels": None if read.labels is None else [list(clause) for clause in read.labels],
        "pixels": read.pixels,
        "untiled_pixels": read.untiled_pixels,
        "predicted": read.predicted,
        "untiled_predicted": read.untiled_predicted,
        "seconds": read.seconds,
        "segments": read.segments,
        "tiles": read.tiles,
        "original_frames": read.original_frames,
    }
