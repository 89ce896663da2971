"""What went to make room, within one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.row_errors import row_of
from vfsd.catalog.schema import evictions
from vfsd.core.budgets import Eviction
from vfsd.core.model import Role

_KEPT = 100_000
"""The newest that are remembered."""


class Evictions:
    """The log of evictions as one transaction sees it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def newest(self, video_id: int | None = None, limit: int | None = None) -> list[Eviction]:
        """Those of a video, or of all, the newest first."""
        chosen = sa.select(evictions).order_by(evictions.c.id.desc()).limit(limit)
        if video_id is not None:
            chosen = chosen.where(evictions.c.video_id == video_id)
        return [_from_row(row) for row in self._connection.execute(chosen)]

    def add(self, done: Sequence[Eviction]) -> None:
        """Remember them, and forget the oldest of very many."""
        if not done:
            return
        self._connection.execute(sa.insert(evictions), [_to_row(one) for one in done])
        last = sa.select(sa.func.max(evictions.c.id)).scalar_subquery()
        self._connection.execute(sa.delete(evictions).where(evictions.c.id <= last - _KEPT))

    def remove_of_video(self, video_id: int) -> None:
        self._connection.execute(sa.delete(evictions).where(evictions.c.video_id == video_id))


@row_of(evictions)
def _from_row(row: Row[Any]) -> Eviction:
    return Eviction(
        id=row.id,
        video_id=row.video_id,
        at_ns=row.at_ns,
        why=row.why,
        role=Role(row.role),
        frames=range(row.first_frame, row.end_frame),
        size=(row.width, row.height),
        profile=row.profile,
        layout=row.layout,
        bytes=row.bytes,
        created_ns=row.created_ns,
        is_retired=row.retired,
        used_ns=row.used_ns,
        uses=row.uses,
        saved=row.saved,
    )


def _to_row(one: Eviction) -> dict[str, Any]:
    return {
        "video_id": one.video_id,
        "at_ns": one.at_ns,
        "why": one.why,
        "role": one.role.value,
        "first_frame": one.frames.start,
        "end_frame": one.frames.stop,
        "width": one.size[0],
        "height": one.size[1],
        "layout": one.layout,
        "profile": one.profile,
        "bytes": one.bytes,
        "retired": one.is_retired,
        "created_ns": one.created_ns,
        "used_ns": one.used_ns,
        "uses": one.uses,
        "saved": one.saved,
    }
