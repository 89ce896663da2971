"""Complete made-up rows for catalogs."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np

from vfsd.catalog import Transaction
from vfsd.catalog.videos import Page
from vfsd.core.frame_table_pages import PacketColumns, paginate
from vfsd.core.model import (
    Access,
    Cell,
    FileState,
    LogicalVideo,
    MediaInfo,
    Node,
    PhysicalVideo,
    Role,
    Segment,
    SideStream,
)
from vfsd.tiling import Rect, TileLayout

MEDIA = MediaInfo(
    container="mp4",
    codec="h264",
    profile="High",
    width=640,
    height=360,
    pixel_format="yuv420p",
    time_base=Fraction(1, 12800),
    average_rate=Fraction(25),
    rotation=90,
    sample_aspect_ratio=Fraction(4, 3),
    color_range="limited",
    extradata=b"\x01d\x00\xff",
    side_streams=(SideStream(1, "audio", "aac", "eng", 2, 48000),),
    tags={"title": "a"},
)


def table(frames: int = 100, *, page_packets: int = 32) -> list[Page]:
    """A key frame every 25, no B-frames, 512 ticks each, packets one after the other."""
    at = np.arange(frames, dtype=np.int64)
    columns = PacketColumns(
        at * 512, at * 512, at * 1000 + 48, np.full(frames, 1000), (at % 25 == 0).astype(np.uint8)
    )
    return list(paginate(columns, at, page_packets=page_packets))


def original(key: str, *, frames: int = 100, media: MediaInfo = MEDIA) -> PhysicalVideo:
    return PhysicalVideo(
        id=0,
        video_id=0,
        role=Role.ORIGINAL,
        media=media,
        access=Access.EXTENT,
        frames=frames,
        packets=frames,
        first_pts=0,
        end_pts=frames * 512,
        object_key=key,
        link_path=None,
        size=frames * 1000 + 48,
        verified=False,
        parent_id=None,
        parameters={},
        software="vfsd test",
        created_ns=5,
        notes=("odd",),
    )


def add_file(change: Transaction, path: str, *, state: FileState = FileState.SPOOLED) -> Node:
    """A file at `path`, with its directories."""
    *folders, name = path.split("/")
    parent = change.tree.node(1)
    for folder in folders:
        found = change.tree.lookup(parent.ino, folder)
        parent = found or change.tree.create(parent.ino, folder, 0o040755, uid=0, gid=0, now_ns=1)
    return change.tree.create(parent.ino, name, 0o100644, uid=0, gid=0, now_ns=1, state=state)


def add_video(
    change: Transaction, path: str, *, key: str = "ab" * 32, frames: int = 100, **media: object
) -> LogicalVideo:
    """A video at `path` with an original that says `media`."""
    node = add_file(change, path)
    change.objects.record(key, frames * 1000 + 48, now_ns=2)
    change.tree.update(
        node.ino, state=FileState.VIDEO, object_key=key, size=frames * 1000 + 48, mtime_ns=77
    )
    described = dataclasses.replace(MEDIA, **media)  # type: ignore[arg-type]
    return change.videos.put(
        node.ino,
        original(key, frames=frames, media=described),
        table(frames),
        digest=key,
        now_ns=3,
    )


def add_segments(
    change: Transaction, video: LogicalVideo, count: int, *, role: Role = Role.TILED
) -> list[Segment]:
    """Consecutive segments of one frame, each with its own pack."""
    one = dataclasses.replace(
        video.original, role=role, object_key=None, parent_id=video.original.id
    )
    physical = change.videos.add_physical(video.id, one, [])
    found = []
    for number in range(count):
        key = f"{video.id:032x}{number:032x}"
        change.objects.record(key, 10, now_ns=4)
        segment = Segment(
            id=0,
            physical_id=physical.id,
            original_id=video.original.id,
            first_frame=number,
            end_frame=number + 1,
            layout=TileLayout.untiled(640, 360),
            profile="fast",
            object_key=key,
            size=10,
            psnr=40.0,
            created_ns=4,
            retired_ns=None,
            cells=(Cell(0, Rect(0, 0, 640, 360), 0, 10, 20, 40.0, 0.0, 0.0, 0.0),),
        )
        found.append(change.segments.publish(segment))
    return found
