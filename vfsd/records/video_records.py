"""Records of entries of the tree, and of videos that were found."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from vfsd.core.capture_time import capture_record
from vfsd.core.timebase import iso_time

if TYPE_CHECKING:
    from vfsd.core.model import LogicalVideo, Node
    from vfsd.storage.context import StoreContext


VIDEO_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "frames": "number of displayed frames",
        "width": "pixels of the displayed frame",
        "height": "pixels of the displayed frame",
        "seconds": "duration",
        "rate": "frames per second: nominal, or the mean where it varies",
        "codec": "codec name in FFmpeg",
        "container": "short name of the container",
    }
)
"""Keys of a video; all are null for other files."""


CAPTURED_FIELD = (
    "when the first frame was recorded, null if unknown: time (ISO 8601, UTC), ns (Unix time), and "
    "clock (given, name, rtcp, arrival or container)"
)


ENTRY_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "kind": "video, file (not a video), pending (not examined yet), directory, symlink or "
        "other",
        "size": "bytes",
        "modified": "time of the last change, ISO 8601, UTC",
        **VIDEO_FIELDS,
        "reason": "why a file is not a video or not examined yet, else null",
        "target": "target of a symbolic link, else null",
    }
)


FOUND_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "size": "bytes",
        "modified": "time of the last change, ISO 8601, UTC",
        **VIDEO_FIELDS,
        "tags": "list of words",
        "metadata": "object, as set by `vfsd tag --set`",
        "captured": CAPTURED_FIELD,
        "digest": "BLAKE3 of the file, hexadecimal",
    }
)


def kind_of(node: Node) -> str:
    """The kind of an entry, as one word."""
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


def size_of(parts: StoreContext, node: Node) -> int:
    """Size in bytes. For a file that is not a video, the private file is newer than the catalog."""
    from vfsd.core.model import FileState

    if node.state in (FileState.PLAIN, FileState.SPOOLED) and not parts.is_elsewhere(node):
        # The catalog learns the size when the file is closed.
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


def found_record(video: LogicalVideo) -> dict[str, object]:
    return {
        "name": video.name,
        "size": video.size,
        "modified": iso_time(video.modified_ns),
        **video_record(video),
        "tags": sorted(video.tags),
        "metadata": dict(video.metadata),
        "captured": capture_record(video.captured),
        "digest": video.digest,
    }
