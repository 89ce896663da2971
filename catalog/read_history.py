"""The log of reads, and the log of tiling decisions made from it, within one transaction.

In PostgreSQL, a note of a read is inserted without the write lock.  Some process moves the notes of
all processes into the log, in a transaction with the write lock, every `FOLD_SECONDS` and before
the log is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.derived_usage import DerivedUsage, SegmentGain
from vfsd.catalog.rows import in_batches, reads_row
from vfsd.catalog.schema import decisions, read_notes, reads, segments, videos
from vfsd.core.model import LoggedRead, ReadArea, TilingDecision, TilingReason
from vfsd.errors import NotFoundError
from vfsd.tiling import Rect, TileLayout
from vfsd.validation import non_negative


class LoggedReads:
    """The log of reads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def newest(
        self,
        video_id: int | None,
        *,
        since_ns: int | None = None,
        before_id: int | None = None,
        limit: int,
    ) -> list[LoggedRead]:
        """Return at most `limit` reads of a video, or of all videos, newest first.

        Args:
            video_id: None: all videos.
            since_ns: Only reads that began at this Unix time or later.
            before_id: Only reads with lower ids.
            limit: The maximum number.
        """
        chosen = sa.select(reads).order_by(reads.c.id.desc()).limit(limit)
        if video_id is not None:
            chosen = chosen.where(reads.c.video_id == video_id)
        if since_ns is not None:
            chosen = chosen.where(reads.c.at_ns >= since_ns)
        if before_id is not None:
            chosen = chosen.where(reads.c.id < before_id)
        return [read_from_row(row) for row in self._connection.execute(chosen)]

    def areas(self, video_id: int, frames: range) -> list[ReadArea]:
        """Return the areas of reads of a video that touched some of `frames`, most frequent first.

        A read with a step counts as having touched the frames in between.
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
        """Return the ids of videos with logged reads."""
        chosen = sa.select(reads.c.video_id).distinct().order_by(reads.c.video_id)
        return list(self._connection.execute(chosen).scalars())

    def add(self, done: Iterable[tuple[str, LoggedRead]]) -> int:
        """Log reads, each with the digest of the bytes that were read; return the number logged.

        Reads of videos that no longer exist or have other bytes are skipped.
        """
        rows = list(done)
        numbers = {read.video_id for _, read in rows}
        known = self._connection.execute(
            sa.select(videos.c.id, videos.c.digest).where(videos.c.id.in_(numbers))
        )
        current = {(row.id, row.digest) for row in known}
        kept = [read_to_row(read) for digest, read in rows if (read.video_id, digest) in current]
        if kept:
            self._connection.execute(sa.insert(reads), kept)
        return len(kept)

    def keep(self, most: int) -> None:
        """Drop all but the newest `most` reads."""
        last = sa.select(sa.func.max(reads.c.id)).scalar_subquery()
        most = non_negative(most, "number of reads")  # settings are typed by users: check the range
        self._connection.execute(sa.delete(reads).where(reads.c.id <= last - most))

    def remove(self, video_id: int | None) -> int:
        """Drop the reads of a video, or of all videos; return their number."""
        chosen = sa.delete(reads)
        if video_id is not None:
            chosen = chosen.where(reads.c.video_id == video_id)
        return self._connection.execute(chosen).rowcount


def _clauses(stored: list[list[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(clause) for clause in stored)


@reads_row(reads)
def read_from_row(row: Row[Any]) -> LoggedRead:
    return LoggedRead(
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
        runs=None if row.runs is None else tuple((a, b, c) for a, b, c in row.runs),
    )


def read_to_row(read: LoggedRead) -> dict[str, Any]:
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
        "runs": None if read.runs is None else [list(run) for run in read.runs],
    }


class TilingDecisions:
    """The log of tiling decisions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, decision_id: int) -> TilingDecision:
        """Raises `NotFoundError`."""
        found = self._select(decisions.c.id == decision_id)
        if not found:
            raise NotFoundError(
                f"decision {decision_id} does not exist", hint="see `vfsd tune history`"
            )
        return found[0]

    def newest(self, video_id: int | None = None, limit: int | None = None) -> list[TilingDecision]:
        """Return the decisions for a video, or for all videos, newest first."""
        mine = sa.true() if video_id is None else decisions.c.video_id == video_id
        return self._select(mine, limit=limit)

    def undone(self, video_id: int) -> list[TilingDecision]:
        """Return the decisions for a video that were undone, newest first."""
        return self._select(decisions.c.video_id == video_id, decisions.c.undone_ns.is_not(None))

    def add(self, decision: TilingDecision) -> TilingDecision:
        """Log a decision; its segment must exist."""
        result = self._connection.execute(sa.insert(decisions).values(_decision_to_row(decision)))
        assert result.inserted_primary_key is not None
        return replace(decision, id=int(result.inserted_primary_key[0]))

    def note_undone(self, segment_ids: Iterable[int], *, now_ns: int) -> None:
        """Record that the decisions for these segments were undone."""
        self._set(segment_ids, now_ns)

    def note_redone(self, segment_ids: Iterable[int]) -> None:
        """Record that the undone decisions for these segments are in force again."""
        self._set(segment_ids, None)

    def forget_segment(self, decision_id: int) -> None:
        """Clear the segment of a decision, if the id now means another segment."""
        self._connection.execute(
            sa.update(decisions).where(decisions.c.id == decision_id).values(segment_id=None)
        )

    def remove_of_video(self, video_id: int) -> None:
        self._connection.execute(sa.delete(decisions).where(decisions.c.video_id == video_id))

    def _set(self, segment_ids: Iterable[int], undone_ns: int | None) -> None:
        for some in in_batches(decisions.c.segment_id, segment_ids):
            self._connection.execute(sa.update(decisions).where(some).values(undone_ns=undone_ns))

    def _select(
        self, *conditions: sa.ColumnElement[bool], limit: int | None = None
    ) -> list[TilingDecision]:
        in_use = sa.and_(segments.c.id.is_not(None), segments.c.retired_ns.is_(None))
        chosen = (
            sa.select(decisions, in_use.label("in_use"))
            .outerjoin(segments, segments.c.id == decisions.c.segment_id)
            .where(*conditions)
            .order_by(decisions.c.id.desc())
            .limit(limit)
        )
        return [_decision_from_row(row) for row in self._connection.execute(chosen)]


@reads_row(decisions)
def _decision_from_row(row: Row[Any]) -> TilingDecision:
    return TilingDecision(
        id=row.id,
        video_id=row.video_id,
        segment_id=row.segment_id,
        at_ns=row.at_ns,
        maker=row.maker,
        first_frame=row.first_frame,
        end_frame=row.end_frame,
        layout=TileLayout.parse(row.layout),
        tiles=None if row.tiles is None else tuple(row.tiles),
        profile=row.profile,
        reasons=tuple(_reason_from_json(one) for one in row.reasons),
        reads=row.reads,
        predicted_seconds=row.predicted_seconds,
        predicted_saved=row.predicted_saved,
        predicted_bytes=row.predicted_bytes,
        seconds=row.seconds,
        bytes=row.bytes,
        undone_ns=row.undone_ns,
        in_use=bool(row.in_use),
        gop=row.gop,
    )


def _reason_from_json(stored: dict[str, Any]) -> TilingReason:
    region, size = stored.get("region"), stored.get("size")
    return TilingReason(
        stored.get("label"),
        None if region is None else Rect(*region),
        stored["reads"],
        None if size is None else (size[0], size[1]),
    )


def _decision_to_row(decision: TilingDecision) -> dict[str, Any]:
    return {
        "video_id": decision.video_id,
        "segment_id": decision.segment_id,
        "at_ns": decision.at_ns,
        "maker": decision.maker,
        "first_frame": decision.first_frame,
        "end_frame": decision.end_frame,
        "layout": str(decision.layout),
        "tiles": None if decision.tiles is None else list(decision.tiles),
        "profile": decision.profile,
        "gop": decision.gop,
        "reasons": [_reason_to_json(reason) for reason in decision.reasons],
        "reads": decision.reads,
        "predicted_seconds": decision.predicted_seconds,
        "predicted_saved": decision.predicted_saved,
        "predicted_bytes": decision.predicted_bytes,
        "seconds": decision.seconds,
        "bytes": decision.bytes,
        "undone_ns": decision.undone_ns,
    }


def _reason_to_json(reason: TilingReason) -> dict[str, Any]:
    if reason.size is not None:
        return {"size": list(reason.size), "reads": reason.reads}
    if reason.region is None:
        return {"label": reason.label, "reads": reason.reads}
    region = reason.region
    return {"region": [region.x1, region.y1, region.x2, region.y2], "reads": reason.reads}


FOLD_SECONDS = 30
_MOST_AT_ONCE = 1000
"""Of more reads only some are noted, each with the number of reads that it stands for.  The log
writes once a second.
"""
_MOST_IN_A_TURN = 10_000

_TRY_TO_FOLD = "SELECT pg_try_advisory_xact_lock(7813595)"
_OLDEST = sa.text("SELECT CAST(read->>'at_ns' AS bigint) FROM read_notes ORDER BY id LIMIT 1")
_ADD = sa.text(
    "INSERT INTO read_notes (digest, read) SELECT digest, read "
    "FROM json_to_recordset(CAST(:notes AS json)) AS note(digest text, read json)"
)
_TAKE = sa.delete(read_notes).where(
    read_notes.c.id.in_(sa.select(read_notes.c.id).order_by(read_notes.c.id).limit(_MOST_IN_A_TURN))
)


def add_notes(connection: Connection, done: Sequence[tuple[str, LoggedRead]]) -> None:
    """Note reads, each with the digest of the bytes that were read."""
    weight = ceil(len(done) / _MOST_AT_ONCE)
    notes = [{"digest": digest, "read": _to_note(read, weight)} for digest, read in done[::weight]]
    connection.execute(_ADD, {"notes": json.dumps(notes)})


def may_fold(connection: Connection, now_ns: int) -> bool:
    """Return whether notes are due, and no other process is moving them.

    The answer is valid until the transaction ends.
    """
    if not connection.exec_driver_sql(_TRY_TO_FOLD).scalar():
        return False
    oldest: int | None = connection.execute(_OLDEST).scalar()
    return oldest is not None and now_ns - oldest >= FOLD_SECONDS * 1_000_000_000


def fold_notes(connection: Connection, keep: int | None) -> None:
    """Move all notes into the log, in a transaction with the write lock.

    Only the newest `keep` reads of the log stay.
    """
    taken = _MOST_IN_A_TURN
    while taken == _MOST_IN_A_TURN:
        rows = connection.execute(_TAKE.returning(read_notes.c.digest, read_notes.c.read)).all()
        taken = len(rows)
        if not rows:
            return
        log, usage = LoggedReads(connection), DerivedUsage(connection)
        log.add((row.digest, _from_note(row.read)) for row in rows)
        usage.record_used(_gains([row.read for row in rows], usage.newest_read()))
        if keep is not None:
            log.keep(keep)


def _to_note(read: LoggedRead, weight: int) -> dict[str, Any]:
    uses = [(one.segment_id, one.saved) for one in read.uses]
    return {**read_to_row(read), "uses": uses, "weight": weight}


def _from_note(note: dict[str, Any]) -> LoggedRead:
    return read_from_row(SimpleNamespace(**note, id=0))  # type: ignore[arg-type]


def _gains(notes: Sequence[dict[str, Any]], newest: int) -> dict[int, SegmentGain]:
    """Return the gains by segment, all dated to read number `newest`."""
    found: dict[int, SegmentGain] = {}
    for note in notes:
        weight = note["weight"]
        for segment_id, saved in note["uses"]:
            before = found.get(segment_id, SegmentGain(newest, 0, 0, 0.0))
            found[segment_id] = SegmentGain(
                newest,
                max(before.at_ns, note["at_ns"]),
                before.uses + weight,
                before.saved + weight * saved,
            )
    return found
