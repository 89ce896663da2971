"""Audio tracks of originals and their packet tables, within one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.rows import reads_row, require_bytes, require_integer_bounds
from vfsd.catalog.schema import sound_pages, sounds
from vfsd.core.model import Access, PageBounds, Sound
from vfsd.errors import IntegrityError

Page = tuple[PageBounds, bytes]

_PLAIN_COLUMNS = (
    "codec",
    "stream_index",
    "sample_rate",
    "channels",
    "bit_depth",
    "configuration",
    "packets",
    "first_pts",
    "end_pts",
    "language",
    "reason",
    "matroska_codec",
)
_OPTIONAL_BYTES = ("matroska_private", "mp4_entry")
_PAGE_COLUMNS = ("first_packet", "packets", "first_pts", "last_pts")


class AudioTracks:
    """The audio tracks of originals."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def of(self, physical_id: int) -> Sound | None:
        """Return the audio track, or None if there is none or the file has not been examined for
        it.
        """
        row = self._connection.execute(
            sa.select(sounds).where(sounds.c.physical_id == physical_id)
        ).first()
        if row is None:
            return None
        return _sound_from_row(row)

    def page_bounds(self, physical_id: int) -> list[PageBounds]:
        """Return the properties of packet pages that are known without reading them."""
        columns = [sound_pages.c[name] for name in _PAGE_COLUMNS]
        rows = self._connection.execute(
            sa.select(*columns)
            .where(sound_pages.c.physical_id == physical_id)
            .order_by(sound_pages.c.ordinal)
        )
        return [_bounds(row) for row in rows]

    def pages(self, physical_id: int) -> Iterator[Page]:
        """Return all packet pages in stored form."""
        rows = self._connection.execute(
            sa.select(sound_pages)
            .where(sound_pages.c.physical_id == physical_id)
            .order_by(sound_pages.c.ordinal)
        )
        return map(_page_from_row, rows)

    def page(self, physical_id: int, ordinal: int) -> bytes:
        """Return the data of a page.  Raises `IntegrityError` if it is missing."""
        found: bytes | None = self._connection.execute(
            sa.select(sound_pages.c.data).where(
                sound_pages.c.physical_id == physical_id, sound_pages.c.ordinal == ordinal
            )
        ).scalar()
        if found is None:
            raise IntegrityError(
                f"page {ordinal} of the audio track of encoding {physical_id} is missing",
                hint="run `vfsd verify` to rebuild it",
            )
        return found

    def put(self, physical_id: int, sound: Sound, pages: Iterable[Page]) -> None:
        """Store the audio track of an original, replacing an earlier one."""
        self.remove(physical_id)
        values: dict[str, Any] = {name: getattr(sound, name) for name in _PLAIN_COLUMNS}
        values |= {name: getattr(sound, name) or None for name in _OPTIONAL_BYTES}
        self._connection.execute(
            sa.insert(sounds).values(
                physical_id=physical_id,
                time_base_num=sound.time_base.numerator,
                time_base_den=sound.time_base.denominator,
                access=sound.access.value,
                **values,
            )
        )
        for ordinal, (bounds, data) in enumerate(pages):
            values = {name: getattr(bounds, name) for name in _PAGE_COLUMNS}
            self._connection.execute(
                sa.insert(sound_pages).values(
                    physical_id=physical_id, ordinal=ordinal, data=data, **values
                )
            )

    def remove(self, physical_id: int) -> None:
        for table in (sound_pages, sounds):
            self._connection.execute(sa.delete(table).where(table.c.physical_id == physical_id))


@reads_row(sounds)
def _sound_from_row(row: Row[Any]) -> Sound:
    fields = {name: getattr(row, name) for name in _PLAIN_COLUMNS}
    fields["configuration"] = require_bytes(row.configuration)
    for name in _OPTIONAL_BYTES:
        stored = getattr(row, name)
        fields[name] = b"" if stored is None else require_bytes(stored)
    fields["access"] = Access(row.access)
    return Sound(time_base=Fraction(row.time_base_num, row.time_base_den), **fields)


@reads_row(sound_pages)
def _page_from_row(row: Row[Any]) -> Page:
    bounds = _bounds(row)
    require_integer_bounds(bounds)
    return bounds, require_bytes(row.data)


def _bounds(row: Row[Any]) -> PageBounds:
    return PageBounds(
        first_packet=row.first_packet,
        packets=row.packets,
        first_frame=row.first_packet,  # every packet is on the timeline
        frames=row.packets,
        first_pts=row.first_pts,
        last_pts=row.last_pts,
        key_packet=row.first_packet,
    )
