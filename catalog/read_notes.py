"""Reads that wait, in PostgreSQL, to be added to the log of reads.

A note is inserted without the write lock.  Some process moves the notes of all processes into the
log, in a transaction with the write lock, every `FOLD_SECONDS` and before the log is used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.derived_usage import DerivedUsage, SegmentGain
from vfsd.catalog.read_history import LoggedReads, read_from_row, read_to_row
from vfsd.catalog.schema import read_notes
from vfsd.core.model import LoggedRead

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
