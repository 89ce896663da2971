"""The data of a store after orders of work, without ids and times."""

from __future__ import annotations

from typing import Any

from vfsd.api.store import Store
from vfsd.derive.tile_encoder import TileSettings
from vfsd.maintenance import fsck
from vfsd.work.orders import Order

# One rate factor: others depend on the segments that a process has made before.
FIXED = TileSettings(quality=28)
TILES: dict[str, Any] = {"layout": "uniform:1x2", "settings": FIXED}
MOTION: dict[str, Any] = {"detector": "motion"}


def orders(store: Store, *, unit_seconds: float = 1.0) -> list[Order]:
    """Tiles and boxes of all videos, planned in units of about a second."""
    return [
        store.order("retile", unit_seconds=unit_seconds, **TILES),
        store.order("detect", unit_seconds=unit_seconds, **MOTION),
    ]


def contents(store: Store) -> dict[str, Any]:
    """Everything that the orders have made, by video."""
    found = {}
    for video in store.find():
        with store.catalog.reading() as seen:
            segments = seen.segments.of_original(video.original.id)
            charged = seen.derived_usage.charged_bytes(video.info.id)
        assert charged == sum(one.size for one in segments)
        made = [
            (one.first_frame, one.end_frame, str(one.layout), one.tiles, one.retired_ns)
            for one in segments
        ]
        boxes = sorted((one.frame, one.label, one.box) for one in video.labels.query())
        examined = sorted(
            (str(one.source), frame) for one in video.labels.examined() for frame in one.frames
        )
        assert len(set(examined)) == len(examined)
        found[video.name] = made, boxes, examined
    return found


def require_sound(store: Store) -> None:
    """Check that nothing is lost, doubled or left over."""
    fsck.collect(store.parts)
    assert fsck.run(store.parts, deep=True) == []
    with store.catalog.reading() as seen:
        needed = set(seen.objects.sizes())
        segments = seen.segments.all()
    assert set(store.parts.objects.all_keys()) == needed
    assert all(one.retired_ns is None for one in segments)
    places = [(one.original_id, one.first_frame, one.physical_id) for one in segments]
    assert len(set(places)) == len(places)
