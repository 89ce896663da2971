"""Other video streams of a file: ``NAME@/stream=N/``, with views of that stream's pictures.

N is the number of the stream among all streams of the file, as `vfsd ingest --stream` takes it.
The catalog has the frame table of one stream.  The table of another one is made when it is first
asked for, and kept in memory.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from vfsd.core.frame_table import FrameTable, GrowingTable
from vfsd.core.frame_table_pages import Ints, PacketColumns
from vfsd.core.model import LogicalVideo, MediaInfo
from vfsd.errors import NotFoundError
from vfsd.storage.context import Parts
from vfsd.views.source import Footage
from vfsd.write.ingest import describe_original

_FOLDER = re.compile(r"stream=(0|[1-9][0-9]{0,3})")
_KEPT = 16
"""Tables of streams that are kept."""


def split_stream(path: str) -> tuple[int | None, str]:
    """The stream that a path below ``NAME@/`` begins with, or None, and the rest of the path."""
    folder, _, rest = path.partition("/")
    match = _FOLDER.fullmatch(folder)
    return (None, path) if match is None else (int(match[1]), rest)


def stream_folder(number: int) -> str:
    """The name of the folder of a stream."""
    return f"stream={number}"


def other_streams(media: MediaInfo) -> Sequence[int]:
    """The numbers of the other video streams; cover pictures are none."""
    return [stream.index for stream in media.side_streams if stream.kind == "video"]


class OtherStreams:
    """What views of other video streams are made from.  Thread-safe."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._guard = threading.Lock()  # one stream is examined at a time
        self._found: OrderedDict[tuple[int, int], tuple[LogicalVideo, Footage]] = OrderedDict()

    def require(self, video: LogicalVideo, stream: int) -> None:
        """Raises `NotFoundError` where the file has no such video stream."""
        media = video.original.media
        there = sorted({media.stream_index, *other_streams(media)})
        if stream not in there:
            raise NotFoundError(
                f"{video.name!r} has no video stream {stream}",
                hint=f"its video streams: {', '.join(map(str, there))}",
            )

    def footage(self, video: LogicalVideo, stream: int) -> tuple[LogicalVideo, Footage]:
        """The video with that stream in the place of its original, and what its views are made
        from.

        Raises `NotFoundError`, `RefusedMediaError` where the stream cannot be served, and
        `IntegrityError` for bytes that are not those that were stored.
        """
        self.require(video, stream)
        damage = self._parts.catalog.damaged_bytes(video.original)
        key = (video.original.id, stream)
        with self._guard:
            if key not in self._found:
                self._found[key] = self._examined(video, stream)
            self._found.move_to_end(key)
            while len(self._found) > _KEPT:
                self._found.popitem(last=False)
            found, footage = self._found[key]
        info = replace(video, original=found.original)
        return info, replace(footage, digest=video.digest, damage=damage)

    def _examined(self, video: LogicalVideo, stream: int) -> tuple[LogicalVideo, Footage]:
        original = video.original
        wanted = replace(original, media=replace(original.media, stream_index=stream))
        found = self._parts.examine(wanted, name=f"{video.name}, stream {stream}")
        if found.media.stream_index != stream:
            raise NotFoundError(f"{video.name!r} has no video stream {stream}")
        described = describe_original(
            found,
            object_key=original.object_key,
            link_path=original.link_path,
            size=original.size,
            now_ns=original.created_ns,
        )
        physical = replace(described, id=original.id, video_id=original.video_id)
        table = _in_memory(found.columns, found.order, found.end_pts, physical.time_base)
        sound = None
        if found.sound is not None:
            heard = found.sound
            packets = np.arange(len(heard.columns))
            sound = (
                heard.sound,
                _in_memory(heard.columns, packets, heard.sound.end_pts, heard.sound.time_base),
            )
        path = self._parts.file_of(original)
        footage = Footage(video.digest, physical, table, path, None, sound)
        return replace(video, original=physical), footage


def _in_memory(
    columns: PacketColumns, order: Ints, end_pts: int, time_base: Fraction
) -> FrameTable:
    table = GrowingTable(time_base)
    if len(columns):
        table.extend(columns, order, end_pts)
    return table
