"""Which tiles were made because of what had been read, and why, within one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.batched_in import among
from vfsd.catalog.row_errors import row_of
from vfsd.catalog.schema import decisions, segments
from vfsd.core.model import Decision, Reason
from vfsd.errors import NotFoundError
from vfsd.tiling import Rect, TileLayout


class Decisions:
    """Decisions as one transaction sees them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # -- looking

    def get(self, decision_id: int) -> Decision:
        """Raises `NotFoundError`."""
        found = self._select(decisions.c.id == decision_id)
        if not found:
            raise NotFoundError(
                f"decision {decision_id} does not exist", hint="see `vfsd tune history`"
            )
        return found[0]

    def newest(self, video_id: int | None = None, limit: int | None = None) -> list[Decision]:
        """Those of a video, or of all, the newest first."""
        mine = sa.true() if video_id is None else decisions.c.video_id == video_id
        return self._select(mine, limit=limit)

    def undone(self, video_id: int) -> list[Decision]:
        """Those of a video that somebody took back, the newest first."""
        return self._select(decisions.c.video_id == video_id, decisions.c.undone_ns.is_not(None))

    # -- changing

    def add(self, decision: Decision) -> Decision:
        """Remember it; its segment has to be there already."""
        result = self._connection.execute(sa.insert(decisions).values(_to_row(decision)))
        assert result.inserted_primary_key is not None
        return replace(decision, id=int(result.inserted_primary_key[0]))

    def note_undone(self, segment_ids: Iterable[int], *, now_ns: int) -> None:
        """Somebody took back what was decided for these segments, as far as any was."""
        self._set(segment_ids, now_ns)

    def note_redone(self, segment_ids: Iterable[int]) -> None:
        """Somebody let these segments have their place again."""
        self._set(segment_ids, None)

    def forget_segment(self, decision_id: int) -> None:
        """What a decision calls its segment is another one."""
        self._connection.execute(
            sa.update(decisions).where(decisions.c.id == decision_id).values(segment_id=None)
        )

    def remove_of_video(self, video_id: int) -> None:
        self._connection.execute(sa.delete(decisions).where(decisions.c.video_id == video_id))

    # -- inside

    def _set(self, segment_ids: Iterable[int], undone_ns: int | None) -> None:
        for some in among(decisions.c.segment_id, segment_ids):
            self._connection.execute(sa.update(decisions).where(some).values(undone_ns=undone_ns))

    def _select(
        self, *conditions: sa.ColumnElement[bool], limit: int | None = None
    ) -> list[Decision]:
        in_use = sa.and_(segments.c.id.is_not(None), segments.c.retired_ns.is_(None))
        chosen = (
            sa.select(decisions, in_use.label("in_use"))
            .outerjoin(segments, segments.c.id == decisions.c.segment_id)
            .where(*conditions)
            .order_by(decisions.c.id.desc())
            .limit(limit)
        )
        return [_from_row(row) for row in self._connection.execute(chosen)]


@row_of(decisions)
def _from_row(row: Row[Any]) -> Decision:
    return Decision(
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
        reasons=tuple(_reason(one) for one in row.reasons),
        reads=row.reads,
        predicted_seconds=row.predicted_seconds,
        predicted_saved=row.predicted_saved,
        predicted_bytes=row.predicted_bytes,
        seconds=row.seconds,
        bytes=row.bytes,
        undone_ns=row.undone_ns,
        in_use=bool(row.in_use),
    )


def _reason(stored: dict[str, Any]) -> Reason:
    region, size = stored.get("region"), stored.get("size")
    return Reason(
        stored.get("label"),
        None if region is None else Rect(*region),
        stored["reads"],
        None if size is None else (size[0], size[1]),
    )


def _to_row(decision: Decision) -> dict[str, Any]:
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
        "reasons": [_stored(reason) for reason in decision.reasons],
        "reads": decision.reads,
        "predicted_seconds": decision.predicted_seconds,
        "predicted_saved": decision.predicted_saved,
        "predicted_bytes": decision.predicted_bytes,
        "seconds": decision.seconds,
        "bytes": decision.bytes,
        "undone_ns": decision.undone_ns,
    }


def _stored(reason: Reason) -> dict[str, Any]:
    if reason.size is not None:
        return {"size": list(reason.size), "reads": reason.reads}
    if reason.region is None:
        return {"label": reason.label, "reads": reason.reads}
    region = reason.region
    return {"region": [region.x1, region.y1, region.x2, region.y2], "reads": reason.reads}
