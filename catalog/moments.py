"""Moments of videos, within one transaction: labelled runs of frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.detections import Detections
from vfsd.catalog.rows import in_batches, reads_row
from vfsd.catalog.schema import labels, moments
from vfsd.core.detections import Ints, Source
from vfsd.core.moments import MomentRow, merged_moments, renumbered_moment

StoredMoment = tuple[int, Source, MomentRow]
"""(id of the video, source, moment)."""


class Moments:
    """The moments of videos, which are identified by id.

    A source has one moment of each label and run of frames.  Labels and sources are those of
    boxes.  The caller must check that the id still means the same bytes.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._boxes = Detections(connection)

    def add(self, video_id: int, rows: Iterable[MomentRow], source: Source) -> None:
        """Add moments; one that the source has already gets the new confidence and attributes."""
        source_id = self._boxes.source_id(source)
        latest = {(row.label, row.frames.start, row.frames.stop): row for row in rows}
        ids = {label: self._boxes.label_id(label) for label in {key[0] for key in latest}}
        for row in latest.values():
            self._connection.execute(
                sa.delete(moments).where(
                    moments.c.video_id == video_id,
                    moments.c.label_id == ids[row.label],
                    moments.c.first_frame == row.frames.start,
                    moments.c.end_frame == row.frames.stop,
                    moments.c.source_id == source_id,
                )
            )
        self._insert(video_id, source_id, ids, latest.values())

    def merge(self, video_id: int, labels_of: Iterable[str], source: Source) -> None:
        """Join the moments of a source with these labels that overlap or follow each other."""
        names = list(labels_of)
        rows = [row for _, _, row in self.find([video_id], names, [source])]
        joined = merged_moments(rows)
        if joined != rows:
            self.remove(video_id, labels_of=names, source_ids=self._boxes.known_sources(source))
            self.add(video_id, joined, source)

    def find(
        self,
        video_ids: Iterable[int],
        labels_of: Sequence[str] | None = None,
        sources: Sequence[str | Source] | None = None,
        frames: range | None = None,
    ) -> list[StoredMoment]:
        """Return the moments with one of these labels and sources that overlap `frames`.

        They ascend by video, in the order of the ids, then by frames, label and arrival of the
        source.
        """
        chosen: list[sa.ColumnElement[bool]] = []
        if labels_of is not None:
            chosen.append(moments.c.label_id.in_(self._boxes.known_labels(labels_of).values()))
        if sources is not None:
            known = [number for one in sources for number in self._boxes.known_sources(one)]
            chosen.append(moments.c.source_id.in_(known))
        if frames is not None:
            chosen.append(moments.c.first_frame < frames.stop)
            chosen.append(moments.c.end_frame > frames.start)
        query = (
            sa.select(moments, labels.c.name.label("label"))
            .join(labels, labels.c.id == moments.c.label_id)
            .where(*chosen)
        )
        ids = list(video_ids)
        places = {number: place for place, number in enumerate(ids)}
        rows = [
            row
            for some in in_batches(moments.c.video_id, ids)
            for row in self._connection.execute(query.where(some))
        ]
        rows.sort(
            key=lambda row: (
                places[row.video_id],
                row.first_frame,
                row.end_frame,
                row.label,
                row.source_id,
            )
        )
        from_id = self._boxes.sources_by_id({row.source_id for row in rows})
        return [(row.video_id, from_id[row.source_id], _moment_from_row(row)) for row in rows]

    def remove(
        self,
        video_id: int,
        *,
        labels_of: Sequence[str] | None = None,
        source_ids: Sequence[int] | None = None,
        frames: range | None = None,
    ) -> int:
        """Remove the moments that satisfy every given condition; return their number.

        `frames` must hold all frames of a moment.
        """
        chosen = [moments.c.video_id == video_id]
        if labels_of is not None:
            chosen.append(moments.c.label_id.in_(self._boxes.known_labels(labels_of).values()))
        if source_ids is not None:
            chosen.append(moments.c.source_id.in_(source_ids))
        if frames is not None:
            chosen.append(moments.c.first_frame >= frames.start)
            chosen.append(moments.c.end_frame <= frames.stop)
        return self._connection.execute(sa.delete(moments).where(*chosen)).rowcount

    def renumber(self, video_id: int, new_of: Ints) -> None:
        """Give frame ``i`` of all moments the number ``new_of[i]``; see `renumbered_moment`."""
        before = self.find([video_id])
        self.remove(video_id)
        for source in {source for _, source, _ in before}:
            mine = (renumbered_moment(row, new_of) for _, one, row in before if one == source)
            self.add(video_id, [row for row in mine if row is not None], source)

    def has_any(self, video_id: int) -> bool:
        """Return whether a video has any moments."""
        query = sa.select(moments.c.video_id).where(moments.c.video_id == video_id).limit(1)
        return self._connection.execute(query).first() is not None

    def _insert(
        self, video_id: int, source_id: int, ids: dict[str, int], rows: Iterable[MomentRow]
    ) -> None:
        made = [
            {
                "video_id": video_id,
                "label_id": ids[row.label],
                "first_frame": row.frames.start,
                "end_frame": row.frames.stop,
                "source_id": source_id,
                "confidence": row.confidence,
                "attributes": dict(row.attributes) or None,
            }
            for row in rows
        ]
        if made:
            self._connection.execute(sa.insert(moments), made)


@reads_row(moments)
def _moment_from_row(row: Row[Any]) -> MomentRow:
    frames = range(row.first_frame, row.end_frame)
    return MomentRow(frames, row.label, row.confidence, dict(row.attributes or {}))
