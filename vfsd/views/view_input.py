"""The input of a view: `ViewInput`, the stored file with its frame table, tiles and known damage.

`OtherStreams` provides the same for the other video streams of a file (`NAME@/stream=N/`).
"""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from vfsd.core.frame_table import FrameTable, GrowingTable
from vfsd.core.frame_table_pages import Ints, PacketColumns
from vfsd.core.model import Access, LogicalVideo, MediaInfo, PhysicalVideo, Segment, Sound
from vfsd.core.view_path import ViewForm
from vfsd.core.view_request import View
from vfsd.disk.checksummed_file import StoredFile
from vfsd.errors import NotFoundError
from vfsd.read.read_context import ReadContext
from vfsd.read.read_plan import AvailableTiles, plan_frames
from vfsd.read.tile_planner import DecodeCosts
from vfsd.storage.context import StoreContext
from vfsd.tiling import overlaps
from vfsd.views.view_frames import PictureConverter
from vfsd.write.ingest_file import describe_original


@dataclass(frozen=True)
class ViewInput:
    """A stored encoding with all data that a view of it needs."""

    digest: str  #: blake3 of the logical file, hexadecimal
    physical: PhysicalVideo
    table: FrameTable
    path: StoredFile
    tiles: AvailableTiles | None = None  #: further sources of pictures
    sound: tuple[Sound, FrameTable] | None = None  #: from `Catalog.sound`
    damage: tuple[range, ...] = ()  #: known damaged byte ranges of the file

    def with_quality(self, psnr: float) -> ViewInput:
        """Return a copy limited to tiles of at least `psnr` dB; infinite for no tiles."""
        if self.tiles is None or psnr == math.inf:
            return replace(self, tiles=None)
        return replace(self, tiles=self.tiles.requiring(psnr))

    def usable_for(self, wanted: PictureConverter, frames: range) -> ViewInput:
        """Return a copy without tiles that are unusable for these frames in the form `wanted`."""
        if self.tiles is None:
            return self
        good = self.tiles.good_for(wanted.form, self.physical)

        def serves(segment: Segment) -> bool:
            area = wanted.needed_of(*segment.picture)
            if area is None or not overlaps(segment.frames, frames):
                return False
            tiles = segment.layout.covering(area)
            return segment.holds(tiles) and good(segment, tiles)

        kept = [segment for segment in self.tiles.segments if serves(segment)]
        return replace(self, tiles=replace(self.tiles, segments=kept))

    @property
    def key(self) -> str:
        """Identifies the bytes and the facts about them, which a full decode may correct."""
        known = self.physical
        tiles = []
        if self.tiles is not None and self.tiles.stored:
            # Pixels from other tiles, or from the original instead, are different.
            numbers = [segment.id for segment in self.tiles.stored]
            tiles = [numbers, sorted(self.tiles.costs.by_name.items())]
            tiles += [self.tiles.luma, self.tiles.psnr, known.cost_factor]
            tiles += self.tiles.unreadable
        sound = self.sound[0].packets if self.sound is not None else None
        return "/".join(
            str(part)
            for part in (
                self.digest,
                known.media.stream_index,
                sound,
                known.frames,
                known.packets,
                known.first_pts,
                known.end_pts,
                known.verified,
                known.damage,
                known.media.rotation,
                known.media.mirrored,
                *sorted((known.media.marks or {}).items()),
                known.media.crop,
                *tiles,
                *self.damage,
            )
        )


def view_input_of(parts: StoreContext, tools: ReadContext, info: LogicalVideo) -> ViewInput:
    """Collect the input for views of a video."""
    original = info.original
    table = parts.catalog.frame_table(original)
    tiles = tiles_for_views(parts, tools, info)
    sound = parts.catalog.sound(original)
    damage = parts.catalog.damaged_bytes(original)
    return ViewInput(info.digest, original, table, parts.file_of(original), tiles, sound, damage)


def tiles_for_views(parts: StoreContext, tools: ReadContext, info: LogicalVideo) -> AvailableTiles:
    """Return the tiles with default costs, so that all processes choose the same ones."""
    tiles = tools.tile_index.of(info, float(parts.settings.minimum_psnr))
    return replace(tiles, costs=DecodeCosts(tiles.costs.by_name))


PacketMask = npt.NDArray[np.bool_]


def lost_frames_in_tiles(source: ViewInput, frames: Ints) -> PacketMask:
    """Return a mask of `frames` that the original has lost and that tiles show.

    The packets of these frames are useless.  Damaged frames that only the original has are copied
    as far as they can be read.
    """
    none = np.zeros(len(frames), bool)
    tiles = source.tiles
    if tiles is None or not tiles.unreadable or not tiles.stored:
        return none
    lost = np.logical_or.reduce(
        [(frames >= one.start) & (frames < one.stop) for one in tiles.unreadable]
    )
    if not lost.any():
        return none
    plan = plan_frames(
        frames[lost],
        View(),
        source.physical,
        source.table,
        pixel_format="yuv420p",  # the source format of encoded views
        tiles=tiles,
    )
    return np.isin(frames, [frame for run in plan.tiled for frame in run.frames])


def longest_undamaged_range(damaged: PacketMask) -> range:
    """Return the first longest range of indices that are not damaged; may be empty."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], damaged, [True])).astype(np.int8)))
    runs = [range(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
    return max(runs, key=len, default=range(0))


def undamaged_packets(columns: PacketColumns, damage: Sequence[range]) -> PacketMask:
    """Return a mask of the packets without bytes in `damage`."""
    whole = np.ones(len(columns), bool)
    for one in damage:
        whole &= (columns.position >= one.stop) | (columns.position + columns.size <= one.start)
    return whole


_STREAM_DIR = re.compile(r"stream=(0|[1-9][0-9]{0,3})")
_MAX_STREAM_TABLES = 16
"""Frame tables of streams that are kept in memory."""


def why_not_copied(source: ViewInput, view: View, form: ViewForm) -> str | None:
    """Return why a view is not every stored picture of its span in the stored codec, or None."""
    media = source.physical.media
    whole = view.region in (None, media.frame_rect) and view.size in (
        None,
        (media.display_width, media.display_height),
    )
    steady = view.fps is None and (view.frames is None or view.frames[2] == 1)
    if not whole or not steady:
        return "its pictures are not shown in the stored form"
    if form.codec not in (None, media.codec):
        return f"it is requested in {form.codec} and stored in {media.codec}"
    if form.pixel_format not in (None, media.pixel_format.removesuffix("le")):
        return f"it is requested in {form.pixel_format} and stored in {media.pixel_format}"
    if form.container == "mp4" and form.codec is None and _is_unusual_in_mp4(media):
        return (
            f"few players support {media.codec} in mp4; with codec={media.codec}, or as mkv, "
            "it is copied"
        )
    if source.physical.access is Access.SEQUENTIAL:
        # The decoder would be reset between packets that are read in sequence.
        return "its packets can only be read in sequence"
    return None


def _is_unusual_in_mp4(media: MediaInfo) -> bool:
    """Return whether few players support it; FFV1 stored in mp4 was put there on purpose."""
    return media.codec == "mjpeg" or (
        media.codec == "ffv1" and media.container not in ("mp4", "mov")
    )


def split_stream(path: str) -> tuple[int | None, str]:
    """Split a path below ``NAME@/`` into its stream number, or None, and the rest."""
    folder, _, rest = path.partition("/")
    match = _STREAM_DIR.fullmatch(folder)
    return (None, path) if match is None else (int(match[1]), rest)


def stream_dir(number: int) -> str:
    """Return the directory name of a stream."""
    return f"stream={number}"


def other_streams(media: MediaInfo) -> Sequence[int]:
    """Return the indices of the other video streams, without cover pictures."""
    return [stream.index for stream in media.side_streams if stream.kind == "video"]


class OtherStreams:
    """Inputs for views of other video streams.  Thread-safe."""

    def __init__(self, parts: StoreContext) -> None:
        self._parts = parts
        self._guard = threading.Lock()  # one stream is examined at a time
        self._found: OrderedDict[tuple[int, int], tuple[LogicalVideo, ViewInput]] = OrderedDict()

    def require(self, video: LogicalVideo, stream: int) -> None:
        """Raises `NotFoundError` if the file has no such video stream."""
        media = video.original.media
        there = sorted({media.stream_index, *other_streams(media)})
        if stream not in there:
            raise NotFoundError(
                f"{video.name!r} has no video stream {stream}",
                hint=f"its video streams: {', '.join(map(str, there))}",
            )

    def input_of(self, video: LogicalVideo, stream: int) -> tuple[LogicalVideo, ViewInput]:
        """Return the video with that stream as its original, and the input of its views.

        Raises `NotFoundError`, `RefusedMediaError` for an unsupported stream, and `IntegrityError`
        if the stored bytes have changed.
        """
        self.require(video, stream)
        damage = self._parts.catalog.damaged_bytes(video.original)
        key = (video.original.id, stream)
        with self._guard:
            if key not in self._found:
                self._found[key] = self._examined(video, stream)
            self._found.move_to_end(key)
            while len(self._found) > _MAX_STREAM_TABLES:
                self._found.popitem(last=False)
            found, source = self._found[key]
        info = replace(video, original=found.original)
        return info, replace(source, digest=video.digest, damage=damage)

    def _examined(self, video: LogicalVideo, stream: int) -> tuple[LogicalVideo, ViewInput]:
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
        table = _table_in_memory(found.columns, found.order, found.end_pts, physical.time_base)
        sound = None
        if found.sound is not None:
            heard = found.sound
            packets = np.arange(len(heard.columns))
            sound = (
                heard.sound,
                _table_in_memory(
                    heard.columns, packets, heard.sound.end_pts, heard.sound.time_base
                ),
            )
        path = self._parts.file_of(original)
        source = ViewInput(video.digest, physical, table, path, None, sound)
        return replace(video, original=physical), source


def _table_in_memory(
    columns: PacketColumns, order: Ints, end_pts: int, time_base: Fraction
) -> FrameTable:
    table = GrowingTable(time_base)
    if len(columns):
        table.extend(columns, order, end_pts)
    return table
