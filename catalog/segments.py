"""Segments of tiled encodings and renditions, their cells, and measured costs, within one
transaction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.rows import in_batches, reads_row
from vfsd.catalog.schema import cells, costs, physical_videos, segments
from vfsd.core.model import Cell, MeasuredCost, Role, Segment
from vfsd.errors import NotFoundError
from vfsd.tiling import Rect, TileLayout
from vfsd.tiling.cost import DecodeCost
from vfsd.validation import is_storable

_VIEW_PREFIX = "view-"
"""Prefix of the codec in rows about encoding views; their decode terms are 0."""
IS_OF_DECODING = ~costs.c.name.startswith(_VIEW_PREFIX, autoescape=True)
"""The condition that a row of `costs` is not about encoding."""
_TERMS = tuple(field.name for field in dataclasses.fields(DecodeCost))


class TileState(NamedTuple):
    """Everything in the catalog that decides from which encodings a video is read."""

    segments: list[Segment]  #: active tiles and renditions
    joined: list[Segment]
    unreadable: tuple[range, ...]  #: frames of the original; empty without tiles
    factor: float | None  #: cost factor of the original, if measured
    measured: dict[str, DecodeCost]
    reads: float | None  #: minimum luma dB of the policy; None for the store's default


class SegmentWorth(NamedTuple):
    """The expectations for a new segment; see `ChargedSegment`."""

    made_at_read: int
    expected: float
    gain: float


class MeasuredCosts:
    """Measured costs of decoding and encoding."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def of_host(self, host: str) -> list[MeasuredCost]:
        """Return the measurements of a host, by name."""
        if not is_storable(host):
            return []
        rows = self._connection.execute(_COSTS_OF_HOST, {"host": host})
        return [_cost_from_row(row) for row in rows]

    def of_encoding(self, host: str) -> dict[str, float]:
        """Return CPU seconds per pixel of an encoded view on a host, by codec."""
        if not is_storable(host):
            return {}
        rows = self._connection.execute(
            sa.select(costs.c.name, costs.c.encode_pixel).where(
                costs.c.host == host,
                costs.c.name.startswith(_VIEW_PREFIX, autoescape=True),
                costs.c.encode_pixel.is_not(None),
            )
        )
        return {row.name.removeprefix(_VIEW_PREFIX): row.encode_pixel for row in rows}

    def put_encoding(self, host: str, codec: str, seconds: float, now_ns: int) -> None:
        """Add a measured time per pixel of a view; it is averaged with the stored one."""
        before = self.of_encoding(host).get(codec, seconds)
        self.put(
            MeasuredCost(
                host=host,
                name=_VIEW_PREFIX + codec,
                decode=DecodeCost(0.0, 0.0, 0.0, 0.0),
                encode_pixel=(before + seconds) / 2,
                r2=0.0,
                samples=1,
                software="",
                measured_ns=now_ns,
            )
        )

    def put(self, cost: MeasuredCost) -> None:
        """Store a measurement, replacing an older one."""
        self._connection.execute(
            sa.delete(costs).where(costs.c.host == cost.host, costs.c.name == cost.name)
        )
        self._connection.execute(
            sa.insert(costs).values(
                host=cost.host,
                name=cost.name,
                encode_pixel=cost.encode_pixel,
                r2=cost.r2,
                samples=cost.samples,
                software=cost.software,
                measured_ns=cost.measured_ns,
                **dataclasses.asdict(cost.decode),
            )
        )


class Segments:
    """Segments and their cells."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.released: set[str] = set()
        """Packs of the segments that were deleted in this transaction."""

    def for_reads(self, original_id: int) -> tuple[list[Segment], list[Segment]]:
        """Return the active segments, first those in the original's size, and the joined ones,
        each by first frame.
        """
        original = {"original": original_id}
        rows = list(self._connection.execute(_FOR_READS, original))
        parts = self._connection.execute(_CELLS_FOR_READS, original) if rows else ()
        found: dict[str, list[Segment]] = {role.value: [] for role in Role}
        for row, segment in zip(rows, _with_cells(rows, parts), strict=True):
            found[row.role].append(segment)
        return found[Role.TILED.value] + found[Role.RENDITION.value], found[Role.JOINED.value]

    def active(self, original_id: int) -> list[Segment]:
        """Return active segments in the original's size, by first frame."""
        return self._select(
            segments.c.original_id == original_id,
            segments.c.retired_ns.is_(None),
            _has_role(Role.TILED),
        )

    def active_with(self, original_id: int, frames: range) -> list[Segment]:
        """Return active segments of exactly these frames, in any size; not joined ones."""
        return self._select(
            segments.c.original_id == original_id,
            segments.c.retired_ns.is_(None),
            segments.c.first_frame == frames.start,
            segments.c.end_frame == frames.stop,
            sa.or_(_has_role(Role.TILED), _has_role(Role.RENDITION)),
        )

    def retired(self, original_id: int) -> list[Segment]:
        """Return segments that another layout has replaced, by first frame."""
        return self._select(
            segments.c.original_id == original_id,
            segments.c.retired_ns.is_not(None),
            _has_role(Role.TILED),
        )

    def renditions(self, original_id: int) -> list[Segment]:
        """Return active segments in other sizes, by first frame."""
        return self._select(
            segments.c.original_id == original_id,
            segments.c.retired_ns.is_(None),
            _has_role(Role.RENDITION),
        )

    def joined(self, original_id: int) -> list[Segment]:
        """Return segments stored together with another video's, by first frame."""
        return self._select(segments.c.original_id == original_id, _has_role(Role.JOINED))

    def all_joined(self) -> list[Segment]:
        """Return the joined segments of all videos."""
        return self._select(_has_role(Role.JOINED))

    def sharing(self, segment_ids: Iterable[int]) -> list[Segment]:
        """Return those of the segments that are joined, and their partners."""
        mine: list[str] = []
        for some in in_batches(segments.c.id, segment_ids):
            chosen = sa.select(segments.c.object_key).where(some, _has_role(Role.JOINED))
            mine += self._connection.execute(chosen).scalars()
        found: list[Segment] = []
        for some in in_batches(segments.c.object_key, mine):
            found += self._select(some, _has_role(Role.JOINED))
        return found

    def without_partner(self) -> list[Segment]:
        """Return joined segments without a partner: they no longer save anything."""
        other = segments.alias("other")
        partner = sa.exists().where(
            other.c.object_key == segments.c.object_key,
            other.c.id != segments.c.id,
            other.c.profile != segments.c.profile,
        )
        return self._select(_has_role(Role.JOINED), ~partner)

    def of_original(self, original_id: int) -> list[Segment]:
        """Return all segments made from an original, active or retired, by first frame."""
        return self._select(segments.c.original_id == original_id)

    def all(self) -> list[Segment]:
        """Return the segments of all videos, including retired ones."""
        return self._select(sa.true())

    def of_pack(self, key: str) -> list[Segment]:
        """Return the segments stored in that pack, by first frame."""
        return self._select(segments.c.object_key == key)

    def newest_of(self, profile: str) -> int:
        """Return the id of the newest segment with that tile codec; 0: none."""
        chosen = sa.select(sa.func.max(segments.c.id)).where(segments.c.profile == profile)
        return int(self._connection.execute(chosen).scalar() or 0)

    def get(self, segment_id: int) -> Segment:
        """Raises `NotFoundError`."""
        found = self._select(segments.c.id == segment_id)
        if not found:
            raise NotFoundError(f"segment {segment_id} does not exist")
        return found[0]

    def is_covered(self, old: Segment) -> bool:
        """Return whether later active segments of its size cover all its frames."""
        at, alike = old.first_frame, _is_like(old.physical_id)
        for segment in self._active_within(
            old.original_id, old.frames, alike
        ):  # in order of the first frame
            if segment.id > old.id and segment.first_frame <= at:
                at = max(at, segment.end_frame)
        return at >= old.end_frame

    def publish(self, segment: Segment) -> Segment:
        """Add a segment; its pack must already be recorded.

        Active segments of the same size that later ones now cover completely are retired.  The
        segments that these had retired are deleted, so one undo remains possible.
        """
        alike = _is_like(segment.physical_id)
        within = sa.and_(
            segments.c.original_id == segment.original_id,
            segments.c.first_frame >= segment.first_frame,
            segments.c.end_frame <= segment.end_frame,
            alike,
        )
        # The encoding stays even if it had no others: it gets the new segment.
        replaced = sa.and_(within, segments.c.retired_ns.is_not(None))
        self._delete([replaced], kept=segment.physical_id)
        self._connection.execute(
            sa.update(segments).where(within).values(retired_ns=segment.created_ns)
        )
        result = self._connection.execute(sa.insert(segments).values(_segment_to_row(segment)))
        assert result.inserted_primary_key is not None
        number: int = result.inserted_primary_key[0]
        self._connection.execute(
            sa.insert(cells), [_cell_to_row(number, cell) for cell in segment.cells]
        )
        for old in self._active_within(segment.original_id, segment.frames, alike):
            if old.id != number and self.is_covered(old):
                self.retire([old.id], now_ns=segment.created_ns)
        self._update_totals(segment.physical_id)
        return replace(segment, id=number)

    def has_overlapping(self, original_id: int, frames: range, physical_ids: Iterable[int]) -> bool:
        """Return whether any of these encodings has segments with some of the frames."""
        numbers = list(physical_ids)
        chosen = sa.select(segments.c.id).where(
            segments.c.original_id == original_id,
            segments.c.first_frame < frames.stop,
            segments.c.end_frame > frames.start,
            segments.c.physical_id.in_(numbers),
        )
        return bool(numbers) and self._connection.execute(chosen.limit(1)).first() is not None

    def add(self, made: Sequence[Segment], worth: Sequence[SegmentWorth]) -> list[Segment]:
        """Add segments of one encoding that overlap no others of its size, in three statements.

        Their pack must already be recorded.  See `publish` for segments that overlap others.
        """
        rows = [
            {**_segment_to_row(one), **valued._asdict()}
            for one, valued in zip(made, worth, strict=True)
        ]
        chosen = sa.insert(segments).returning(segments.c.id, sort_by_parameter_order=True)
        numbers = list(self._connection.execute(chosen, rows).scalars())
        added = [replace(one, id=number) for one, number in zip(made, numbers, strict=True)]
        # With a result, many rows are one statement on PostgreSQL.
        self._connection.execute(
            sa.insert(cells).returning(cells.c.tile),
            [_cell_to_row(one.id, cell) for one in added for cell in one.cells],
        )
        physical_id = made[0].physical_id
        frames = sa.func.sum(segments.c.end_frame - segments.c.first_frame)
        count, size = (
            sa.select(sa.cast(total, sa.BigInteger))
            .where(segments.c.physical_id == physical_id)
            .scalar_subquery()
            for total in (frames, sa.func.sum(segments.c.size))
        )
        itself = physical_videos.c.id == physical_id
        self._connection.execute(
            sa.update(physical_videos).where(itself).values(frames=count, packets=count, size=size)
        )
        return added

    def replace_pack(self, segment: Segment, before: str) -> None:
        """Give a segment another pack with the same pictures in the same tiles.

        `segment` has the new values, and its pack must already be recorded.  Raises `NotFoundError`
        if the segment no longer exists, or no longer has the pack `before`.
        """
        changed = self._connection.execute(
            sa.update(segments)
            .where(segments.c.id == segment.id, segments.c.object_key == before)
            .values(object_key=segment.object_key, pack_at=segment.pack_at, size=segment.size)
        )
        if not changed.rowcount:
            raise NotFoundError(f"segment {segment.id} was changed at the same time")
        self._connection.execute(sa.delete(cells).where(cells.c.segment_id == segment.id))
        self._connection.execute(
            sa.insert(cells), [_cell_to_row(segment.id, cell) for cell in segment.cells]
        )
        self._update_totals(segment.physical_id)

    def retire(self, segment_ids: Iterable[int], *, now_ns: int) -> None:
        """Stop reads from using these segments."""
        for some in in_batches(segments.c.id, segment_ids):
            self._connection.execute(sa.update(segments).where(some).values(retired_ns=now_ns))

    def restore(self, segment_ids: Iterable[int]) -> None:
        """Let reads use these segments again."""
        for some in in_batches(segments.c.id, segment_ids):
            self._connection.execute(sa.update(segments).where(some).values(retired_ns=None))

    def withdraw(self, made: Iterable[Segment]) -> None:
        """Delete segments that should not have been published, and restore the ones that they
        replaced.

        The original may have been replaced since.
        """
        for segment in made:
            self._connection.execute(
                sa.update(segments)
                .where(
                    segments.c.retired_ns == segment.created_ns,
                    segments.c.first_frame < segment.end_frame,
                    segments.c.end_frame > segment.first_frame,
                    _is_like(segment.physical_id),
                )
                .values(retired_ns=None)
            )
            self.delete([segment.id])

    def delete(self, segment_ids: Iterable[int]) -> None:
        """Delete segments, their joined partners, and encodings without segments.  Packs are not
        deleted.
        """
        numbers = set(segment_ids)
        numbers.update(one.id for one in self.sharing(numbers))
        self._delete(in_batches(segments.c.id, numbers))

    def _select(self, *conditions: sa.ColumnElement[bool]) -> list[Segment]:
        chosen = sa.select(segments).where(*conditions).order_by(segments.c.first_frame)
        rows = list(self._connection.execute(chosen))
        if not rows:
            return []
        mine = (
            sa.select(cells)
            .join(segments, segments.c.id == cells.c.segment_id)
            .where(*conditions)
            .order_by(cells.c.segment_id, cells.c.tile)
        )
        return _with_cells(rows, self._connection.execute(mine))

    def _active_within(
        self, original_id: int, frames: range, alike: sa.ColumnElement[bool]
    ) -> list[Segment]:
        """Return active segments that overlap these frames."""
        return self._select(
            segments.c.original_id == original_id,
            segments.c.retired_ns.is_(None),
            segments.c.first_frame < frames.stop,
            segments.c.end_frame > frames.start,
            alike,
        )

    def _delete(
        self, conditions: Iterable[sa.ColumnElement[bool]], kept: int | None = None
    ) -> None:
        """Delete the segments that satisfy one of the conditions, and encodings without segments
        except `kept`."""
        touched: set[int] = set()
        for condition in conditions:
            gone = sa.delete(segments).where(condition).returning(*_SHARED_PACK)
            for row in self._connection.execute(gone):
                touched.add(row.physical_id)
                self.released.add(row.object_key)
        for physical_id in touched - {kept}:
            self._update_totals(physical_id)

    def _update_totals(self, physical_id: int) -> None:
        """Update the totals of a derived encoding; delete it if it has no segments."""
        frames, size = self._connection.execute(
            sa.select(
                sa.func.sum(segments.c.end_frame - segments.c.first_frame),
                sa.func.sum(segments.c.size),
            ).where(segments.c.physical_id == physical_id)
        ).one()
        itself = sa.and_(
            physical_videos.c.id == physical_id,
            physical_videos.c.role != Role.ORIGINAL.value,
        )
        if frames is None:
            self._connection.execute(sa.delete(physical_videos).where(itself))
        else:
            self._connection.execute(
                sa.update(physical_videos)
                .where(itself)
                .values(frames=int(frames), packets=int(frames), size=int(size))
            )


_SHARED_PACK = (segments.c.physical_id, segments.c.object_key)

# Textual, since the first read of a process would spend most of its time on compiling them.
_USABLE = (
    "FROM segments JOIN physical_videos ON physical_videos.id = segments.physical_id"
    " WHERE segments.original_id = :original"
    f" AND (segments.retired_ns IS NULL OR physical_videos.role = '{Role.JOINED.value}')"
)
_FOR_READS = sa.text(
    f"SELECT {', '.join(f'segments.{one.name}' for one in segments.c)}, physical_videos.role"
    f" {_USABLE} ORDER BY segments.first_frame"
)
_CELLS_FOR_READS = sa.text(
    f"SELECT {', '.join(f'cells.{one.name}' for one in cells.c)} FROM cells"
    f" WHERE segment_id IN (SELECT segments.id {_USABLE}) ORDER BY segment_id, tile"
)
_COSTS_OF_HOST = sa.text(
    f"SELECT {', '.join(one.name for one in costs.c)} FROM costs"
    f" WHERE host = :host AND name NOT LIKE '{_VIEW_PREFIX}%' ORDER BY name"
)


def _with_cells(rows: Iterable[Row[Any]], parts: Iterable[Row[Any]]) -> list[Segment]:
    """Return segments from rows of `segments`, and of `cells` in the order of tiles."""
    found: dict[int, list[Cell]] = {}
    for row in parts:
        found.setdefault(row.segment_id, []).append(cell_from_row(row))
    return [segment_from_row(row, tuple(found.get(row.id, ()))) for row in rows]


def _has_role(role: Role) -> sa.ColumnElement[bool]:
    """Return the condition that a segment belongs to an encoding with that role."""
    # A literal in the statement: SQLite uses a partial index only if it sees the value.
    value = sa.literal(role.value, literal_execute=True)
    kind = sa.select(physical_videos.c.id).where(physical_videos.c.role == value)
    return segments.c.physical_id.in_(kind)


def _is_like(physical_id: int) -> sa.ColumnElement[bool]:
    """Return the condition that a segment's encoding has the same role and size as that one."""
    mine, other = physical_videos.alias("mine"), physical_videos.alias("other")
    found = (
        sa.select(other.c.id)
        .join(
            mine,
            sa.and_(
                mine.c.video_id == other.c.video_id,
                mine.c.role == other.c.role,
                mine.c.width == other.c.width,
                mine.c.height == other.c.height,
            ),
        )
        .where(mine.c.id == physical_id)
    )
    return segments.c.physical_id.in_(found)


def decode_cost_from_row(row: Any) -> DecodeCost:
    """Return the cost in a row of `costs`."""
    return DecodeCost(**{term: getattr(row, term) for term in _TERMS})


def _cost_from_row(row: Row[Any]) -> MeasuredCost:
    return MeasuredCost(
        host=row.host,
        name=row.name,
        decode=decode_cost_from_row(row),
        encode_pixel=row.encode_pixel,
        r2=row.r2,
        samples=row.samples,
        software=row.software,
        measured_ns=row.measured_ns,
    )


@reads_row(segments)
def segment_from_row(row: Row[Any], mine: tuple[Cell, ...]) -> Segment:
    return Segment(
        id=row.id,
        physical_id=row.physical_id,
        original_id=row.original_id,
        first_frame=row.first_frame,
        end_frame=row.end_frame,
        layout=TileLayout.parse(row.layout),
        profile=row.profile,
        object_key=row.object_key,
        size=row.size,
        psnr=row.psnr,
        created_ns=row.created_ns,
        retired_ns=row.retired_ns,
        cells=mine,
        gop=row.gop,
        pack_at=row.pack_at,
    )


@reads_row(cells)
def cell_from_row(row: Row[Any]) -> Cell:
    return Cell(
        tile=row.tile,
        rect=Rect(row.x1, row.y1, row.x2, row.y2),
        position=row.position,
        size=row.size,
        quality=row.quality,
        psnr=row.psnr,
        gray=row.gray,
        planes=row.planes,
        colour=row.colour,
    )


def _segment_to_row(segment: Segment) -> dict[str, Any]:
    return {
        "physical_id": segment.physical_id,
        "original_id": segment.original_id,
        "first_frame": segment.first_frame,
        "end_frame": segment.end_frame,
        "layout": str(segment.layout),
        "profile": segment.profile,
        "object_key": segment.object_key,
        "pack_at": segment.pack_at,
        "size": segment.size,
        "psnr": segment.psnr,
        "gop": segment.gop,
        "created_ns": segment.created_ns,
        "retired_ns": segment.retired_ns,
    }


def _cell_to_row(segment_id: int, cell: Cell) -> dict[str, Any]:
    rect = cell.rect
    return {
        "segment_id": segment_id,
        "tile": cell.tile,
        "x1": rect.x1,
        "y1": rect.y1,
        "x2": rect.x2,
        "y2": rect.y2,
        "position": cell.position,
        "size": cell.size,
        "quality": cell.quality,
        "psnr": cell.psnr,
        "gray": cell.gray,
        "planes": cell.planes,
        "colour": cell.colour,
    }
