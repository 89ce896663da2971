"""Entries of a store as JSON objects and as cells of a table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from vfsd.cli.output import iso_time, local_time, shown
from vfsd.core.timebase import clock, human_bytes

if TYPE_CHECKING:
    from vfsd.core.model import LogicalVideo, Node
    from vfsd.storage.context import Parts

VIDEO_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "frames": "number of displayed frames",
        "width": "pixels of the displayed frame",
        "height": "pixels of the displayed frame",
        "seconds": "duration",
        "rate": "frames per second: nominal, or the mean where it varies",
        "codec": "FFmpeg's name of the codec",
        "container": "short name of the container",
    }
)
"""What is said of a video; all are null for other files."""

ENTRY_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "kind": "video, file (no video), pending (not judged yet), directory, symlink or other",
        "size": "bytes",
        "modified": "time of the last change, ISO 8601, UTC",
        **VIDEO_FIELDS,
        "reason": "why a file is not a video, or could not be examined yet, else null",
        "target": "where a symbolic link leads, else null",
    }
)

ENTRY_ALIGNMENT = "<>>>><<<"
"""Of the cells that `entry_cells` makes."""


def kind_of(node: Node) -> str:
    """One word for what an entry is."""
    from vfsd.core.model import FileState

    if node.is_dir:
        return "directory"
    if node.is_symlink:
        return "symlink"
    if node.state is FileState.VIDEO:
        return "video"
    if node.state is FileState.SPOOLED:
        return "pending"
    return "file" if node.is_file else "other"


def size_of(parts: Parts, node: Node) -> int:
    """Bytes; of a file that is not a video its private file knows better than the catalog."""
    from vfsd.core.model import FileState

    if node.state in (FileState.PLAIN, FileState.SPOOLED):
        try:
            return parts.directory.spool_file(node.ino).stat().st_size
        except FileNotFoundError:
            return node.size
    return node.size


def video_record(video: LogicalVideo | None) -> dict[str, object]:
    """The values of `VIDEO_FIELDS`."""
    if video is None:
        return dict.fromkeys(VIDEO_FIELDS)
    original = video.original
    rate = original.mean_rate
    return {
        "frames": original.frames,
        "width": original.media.display_width,
        "height": original.media.display_height,
        "seconds": float(original.duration),
        "rate": None if rate is None else float(rate),
        "codec": original.media.codec,
        "container": original.media.container,
    }


def entry_record(name: str, node: Node, video: LogicalVideo | None, size: int) -> dict[str, object]:
    """The values of `ENTRY_FIELDS`."""
    return {
        "name": name,
        "kind": kind_of(node),
        "size": size,
        "modified": iso_time(node.mtime_ns),
        **video_record(video),
        "reason": node.reason,
        "target": node.target,
    }


def entry_cells(label: str, node: Node, video: LogicalVideo | None, size: int) -> tuple[str, ...]:
    """A line of a long listing: kind, size, frames, WxH, duration, codec, time, name."""
    kind = kind_of(node)
    frames = picture = duration = codec = "-"
    if video is not None:
        media = video.original.media
        frames = str(video.original.frames)
        picture = f"{media.display_width}x{media.display_height}"
        duration = clock(video.original.duration)
        codec = media.codec
    name = shown(label)
    if node.is_symlink and node.target is not None:
        name += f" -> {shown(node.target)}"
    if node.is_dir:
        name += "/"
    bytes_ = "-" if node.is_dir else human_bytes(size)
    return kind, bytes_, frames, picture, duration, codec, local_time(node.mtime_ns), name
