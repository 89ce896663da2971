"""Rows to values and back: the stored form of `MediaInfo`, `PhysicalVideo` and `LogicalVideo`."""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from sqlalchemy.engine import Row

from vfsd.catalog.row_errors import blob, row_of
from vfsd.catalog.schema import frame_pages, physical_videos
from vfsd.core.frame_table_pages import PageBounds
from vfsd.core.model import NOT_CROPPED, Access, MediaInfo, PhysicalVideo, Role, SideStream

_FRACTIONS = ("average_rate", "sample_aspect_ratio")
_OWN_COLUMNS = ("container", "codec", "time_base", "extradata")


def media_to_json(media: MediaInfo) -> dict[str, Any]:
    """What of `media` has no column of its own."""
    fields = {
        field.name: getattr(media, field.name)
        for field in dataclasses.fields(media)
        if field.name not in _OWN_COLUMNS
    }
    for name in _FRACTIONS:
        fields[name] = None if fields[name] is None else str(fields[name])
    fields["side_streams"] = [dataclasses.asdict(stream) for stream in media.side_streams]
    fields["tags"] = dict(media.tags)
    fields["marks"] = None if media.marks is None else dict(media.marks)
    return fields


def media_from_row(row: Row[Any]) -> MediaInfo:
    """Of a row of `physical_videos`; `media_to_json` reversed."""
    fields = dict(row.media)
    for name in _FRACTIONS:
        fields[name] = None if fields[name] is None else Fraction(fields[name])
    fields["side_streams"] = tuple(SideStream(**stream) for stream in fields["side_streams"])
    fields["crop"] = tuple(fields.get("crop", NOT_CROPPED))
    return MediaInfo(
        container=row.container,
        codec=row.codec,
        time_base=Fraction(row.time_base_num, row.time_base_den),
        extradata=blob(row.extradata),
        **fields,
    )


@row_of(physical_videos)
def physical_from_row(row: Row[Any]) -> PhysicalVideo:
    return PhysicalVideo(
        id=row.id,
        video_id=row.video_id,
        role=Role(row.role),
        media=media_from_row(row),
        access=Access(row.access),
        frames=row.frames,
        packets=row.packets,
        first_pts=row.first_pts,
        end_pts=row.end_pts,
        object_key=row.object_key,
        link_path=None if row.link_path is None else os.fsdecode(row.link_path),
        size=row.size,
        verified=row.verified,
        parent_id=row.parent_id,
        parameters=row.parameters,
        software=row.software,
        created_ns=row.created_ns,
        notes=tuple(row.notes),
        cost_factor=row.cost_factor,
        error=row.error,
        damage=_damage_from(row.damage),
    )


def physical_to_row(physical: PhysicalVideo) -> dict[str, Any]:
    """All columns but the number."""
    media = physical.media
    return {
        "video_id": physical.video_id,
        "role": physical.role.value,
        "container": media.container,
        "codec": media.codec,
        "width": media.display_width,
        "height": media.display_height,
        "frames": physical.frames,
        "packets": physical.packets,
        "first_pts": physical.first_pts,
        "end_pts": physical.end_pts,
        "time_base_num": media.time_base.numerator,
        "time_base_den": media.time_base.denominator,
        "access": physical.access.value,
        "object_key": physical.object_key,
        "link_path": None if physical.link_path is None else os.fsencode(physical.link_path),
        "size": physical.size,
        "verified": physical.verified,
        "parent_id": physical.parent_id,
        "parameters": dict(physical.parameters),
        "software": physical.software,
        "created_ns": physical.created_ns,
        "media": media_to_json(media),
        "extradata": media.extradata,
        "notes": list(physical.notes),
        "cost_factor": physical.cost_factor,
        "error": physical.error,
        "damage": damage_to_json(physical.damage),
    }


def damage_to_json(damage: Sequence[range] | None) -> list[list[int]] | None:
    """The stored form of `PhysicalVideo.damage`."""
    return None if damage is None else [[part.start, part.stop] for part in damage]


def _damage_from(stored: Any) -> tuple[range, ...] | None:
    return None if stored is None else tuple(range(*map(operator.index, pair)) for pair in stored)


def bounds_to_row(bounds: PageBounds) -> Mapping[str, int]:
    return dataclasses.asdict(bounds)


@row_of(frame_pages)
def page_from_row(row: Row[Any]) -> tuple[PageBounds, bytes]:
    bounds = bounds_from_row(row)
    require_whole(bounds)
    return bounds, blob(row.data)


def require_whole(bounds: PageBounds) -> None:
    """Raises `TypeError` for what are no whole numbers."""
    for number in dataclasses.astuple(bounds):
        operator.index(number)


def bounds_from_row(row: Row[Any]) -> PageBounds:
    return PageBounds(
        first_packet=row.first_packet,
        packets=row.packets,
        first_frame=row.first_frame,
        frames=row.frames,
        first_pts=row.first_pts,
        last_pts=row.last_pts,
        key_packet=row.key_packet,
    )
