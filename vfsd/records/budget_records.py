"""Records of the space that tiles and renditions take, and of their budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfsd.core.timebase import iso_time

if TYPE_CHECKING:
    from vfsd.core.budgets import ChargedSegment, Eviction, Pin, Usage, WhatIf


LIMIT_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store; null for the whole store",
        "limit": "bytes, Nx (times the originals as first written) or none",
        "allowed": "the limit in bytes, null without a limit",
        "used": "bytes that count for the budget",
    }
)


def limit_record(name: str | None, usage: Usage) -> dict[str, Any]:
    """The values of `LIMIT_FIELDS`."""
    return {
        "name": name,
        "limit": str(usage.limit),
        "allowed": usage.allowed,
        "used": usage.used,
    }


USAGE_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        **LIMIT_FIELDS,
        "original": "bytes of the originals as first written",
        "tiles": "bytes of tiles that reads may use",
        "renditions": "bytes of renditions that reads may use",
        "joined": "bytes of data joined with other videos: the share of this one",
        "retired": "bytes kept for a rollback",
        "indexes": "bytes of indexes of layers",
        "pinned": "bytes of pinned data, which do not count",
        "pins": "list of objects with frames ([first, end]) and what (all, tiles, or a size WxH)",
    }
)


def usage_record(name: str | None, usage: Usage, pins: Sequence[Pin]) -> dict[str, Any]:
    return {
        **limit_record(name, usage),
        "original": usage.original,
        "tiles": usage.tiles,
        "renditions": usage.renditions,
        "joined": usage.joined,
        "retired": usage.retired,
        "indexes": usage.indexes,
        "pinned": usage.pinned,
        "pins": [
            {"frames": [pin.frames.start, pin.frames.stop], "what": pin_text(pin)} for pin in pins
        ],
    }


def pin_text(pin: Pin) -> str:
    if pin.size is not None:
        return f"{pin.size[0]}x{pin.size[1]}"
    return "all" if pin.role is None else "tiles"


WHAT_IF_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        **LIMIT_FIELDS,
        "used": "bytes that would count",
        "segments": "number of segments that would be deleted",
        "bytes": "their size",
        "uses": "reads that used them, weighted less with age",
        "saved": "CPU seconds that they saved in these reads, with the same weights",
        "gone": "list of objects in order of deletion: name, what (tiles, rendition WxH, "
        "rendition WxH of a view, joined, retired), frames ([first, end]), bytes and saved (up "
        "to the last use)",
    }
)


def what_if_record(name: str | None, found: WhatIf, names: Mapping[int, str]) -> dict[str, Any]:
    return {
        **limit_record(name, found.usage),
        "segments": len(found.gone),
        "bytes": sum(one.bytes for one in found.gone),
        "uses": found.uses,
        "saved": found.saved,
        "gone": [
            {
                "name": names.get(one.video_id),
                "what": kind_text(one),
                "frames": [one.frames.start, one.frames.stop],
                "bytes": one.bytes,
                "saved": one.saved,
            }
            for one in found.gone
        ],
    }


def kind_text(held: ChargedSegment) -> str:
    """The kind of a segment."""
    from vfsd.core.model import Role
    from vfsd.tiling.cost import VIEW_PROFILES

    if held.is_retired:
        return "retired"
    if held.role is Role.TILED:
        return "tiles"
    if held.role is Role.JOINED:
        return "joined"
    origin = " of a view" if held.profile in VIEW_PROFILES else ""
    return f"rendition {held.size[0]}x{held.size[1]}{origin}"


EVICTION_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "at": "time of the deletion, ISO 8601, UTC",
        "why": "the full budget: video, partner (of a joined video) or store",
        "what": "tiles, rendition or joined",
        "size": "[width, height] of the displayed frame",
        "frames": "[first, end]",
        "layout": "layout of the coded picture",
        "codec": "codec: fast, small, stitchable or lossless; h264, hevc or av1 if encoded for a "
        "view; joined-left or joined-right",
        "bytes": "size of the segment",
        "retired": "whether it was kept for a rollback only",
        "created": "when it was made, ISO 8601, UTC",
        "used": "time of the last read, ISO 8601, UTC; null: never",
        "uses": "reads that used it, weighted less with age",
        "saved": "CPU seconds that it saved in these reads, with the same weights",
    }
)


def eviction_record(name: str, one: Eviction) -> dict[str, Any]:
    return {
        "name": name,
        "at": iso_time(one.at_ns),
        "why": one.why,
        "what": eviction_kind(one),
        "size": list(one.size),
        "frames": [one.frames.start, one.frames.stop],
        "layout": one.layout,
        "codec": one.profile,
        "bytes": one.bytes,
        "retired": one.is_retired,
        "created": iso_time(one.created_ns),
        "used": None if one.used_ns is None else iso_time(one.used_ns),
        "uses": one.uses,
        "saved": one.saved,
    }


def eviction_kind(one: Eviction) -> str:
    from vfsd.core.model import Role

    if one.role is Role.JOINED:
        return "joined"
    return "tiles" if one.role is Role.TILED else "rendition"
