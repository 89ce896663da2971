"""The input and the frames of a view.

`ViewInput` is the stored file with its frame table, tiles and known damage; `ViewTimeline` lists
the frames that a view shows; `PictureForm` describes their pixels; the `side_data_of_...` functions
list what each kind of view keeps.
"""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vfsd.codecs import VideoFrame
from vfsd.codecs.containers.tracks import (
    DOVI,
    FIELD_ORDER,
    IN_PACKETS,
    SPHERICAL,
    STEREO,
    PacketTimes,
    container_side_data,
    packet_side_data,
    side_data_names,
)
from vfsd.codecs.frames.planes import ALPHA, has_alpha, lossless_layout, shows_alpha
from vfsd.codecs.frames.to_array import FrameRegion, RawPixelConverter
from vfsd.core.frame_table import FrameTable, GrowingTable
from vfsd.core.frame_table_pages import Ints, PacketColumns
from vfsd.core.frames import scaled_aspect, upright_aspect
from vfsd.core.model import Access, LogicalVideo, MediaInfo, PhysicalVideo, Segment, Sound
from vfsd.core.pixel_array import Pixels
from vfsd.core.view_request import View, ViewForm
from vfsd.disk.checksums import StoredFile
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError
from vfsd.read.read_context import ReadContext
from vfsd.read.read_plan import AvailableTiles, ReadOutput, plan_frames, select_frames
from vfsd.read.tile_planner import DecodeCosts
from vfsd.storage.context import StoreContext
from vfsd.tiling import Rect, overlaps
from vfsd.write.ingest_file import describe_original

if TYPE_CHECKING:
    from vfsd.views.drawn_boxes import DrawnBoxes

MAX_VIEW_PIXELS = 1 << 26
"""Area of a picture of a view: 8192 x 8192."""
SEGMENT_SECONDS = 1
MAX_SEGMENTS = 60_000
"""The index of an MP4 file lists up to 65,535."""
_MAX_PICTURE_SECONDS = 1001  # the largest denominator that headers can hold
MAX_PICTURES = 1 << 23
"""77 hours at 30 per second; more pictures are taken for a typing error."""
_STREAM_DIR = re.compile(r"stream=(0|[1-9][0-9]{0,3})")
# Frame tables of streams that are kept in memory.
_MAX_STREAM_TABLES = 16
_WHOLE_FRAME_ONLY = frozenset((SPHERICAL, STEREO))
# Tags about the file itself, in lower case; views may drop them.
_WRITER_TAGS = frozenset(
    ("encoder", "handler_name", "vendor_id", "major_brand", "minor_version", "compatible_brands")
)
# Prefixes of Matroska tags that count packets, in lower case.
_STATISTICS_TAGS = ("duration", "bps", "number_of_", "_statistics_")


@dataclass(frozen=True, slots=True)
class PictureForm(ReadOutput):
    """The form of each picture of a view: a region of the displayed frame, size, pixel format."""

    @property
    def bytes(self) -> int:
        """Bytes of one picture."""
        return PictureConverter(self).bytes

    @property
    def sample_aspect_ratio(self) -> Fraction | None:
        """Width of a pixel divided by its height; None if unknown."""
        aspect = upright_aspect(self.media)
        region = (self.region.width, self.region.height)
        return None if aspect is None else scaled_aspect(aspect, region, self.size)


def picture_form(media: MediaInfo, view: View, pixel_format: str) -> PictureForm:
    """Raises `OutOfRangeError` for a region outside the frame, `UsageError` for excessive size."""
    full = media.frame_rect
    region = view.region or full
    if not full.contains(region):
        raise OutOfRangeError(f"the region {region} reaches outside the frame of {full}")
    width, height = view.size or (region.width, region.height)
    if width * height > MAX_VIEW_PIXELS:
        raise UsageError(f"a view must have at most {MAX_VIEW_PIXELS} pixels, got {width}x{height}")
    return PictureForm(media, region, (width, height), pixel_format)


def is_lossless(codec: str) -> bool:
    return codec == "ffv1"


def even_picture_form(media: MediaInfo, view: View, pixel_format: str) -> PictureForm:
    """Like `picture_form`, with an even width and height."""
    whole = picture_form(media, view, pixel_format)
    region, (width, height) = whole.region, whole.size
    width, height = max(2, width // 2 * 2), max(2, height // 2 * 2)
    if view.size is None and region.width > 1 and region.height > 1:
        region = Rect(region.x1, region.y1, region.x1 + width, region.y1 + height)
    return PictureForm(media, region, (width, height), pixel_format)


def decoded_picture_form(media: MediaInfo, view: View, form: ViewForm) -> PictureForm:
    """Return the form of a decoded view.  Raises as `picture_form` does."""
    if form.is_raw:
        return picture_form(media, view, form.layout)
    if form.codec is not None and is_lossless(form.codec):
        return picture_form(media, view, form.pixel_format or lossless_layout(media).layout)
    return even_picture_form(media, view, form.layout)


class PictureConverter:
    """Converts decoded frames into pictures of a form.  Not thread-safe."""

    def __init__(self, form: PictureForm) -> None:
        self.form = form
        scaled = form.size != (form.region.width, form.region.height)
        self._converter = RawPixelConverter(
            form.media,
            pixel_format=form.pixel_format,
            region=None if form.region == form.media.frame_rect else form.region,
            size=form.size if scaled else None,
        )
        self.shape = self._converter.shape  #: of the array of one picture
        self.dtype = self._converter.dtype  #: of a sample
        self.samples = math.prod(self.shape)  #: number in one picture
        self.bytes = self.samples * self.dtype.itemsize  #: of one picture

    def needed_of(self, width: int, height: int) -> Rect | None:
        """See `PixelConverter.needed_scaled`."""
        return self._converter.needed_scaled(width, height)

    def convert(
        self, frame: VideoFrame, held: FrameRegion | None = None, out: Pixels | None = None
    ) -> Pixels:
        """Return the picture's samples in the order of raw forms, in `out` if given.

        `held` is the part of the stored picture that `frame` is; None for all of it.
        """
        if held is None:
            return self._converter.convert(frame, out)
        converter = self._converter.for_scaled(*held.picture)
        assert converter is not None
        return converter.convert(frame, out, held=held.rect)


@dataclass(frozen=True)
class ViewTimeline:
    """The pictures of a view, one array element each."""

    frames: Ints  #: index in the video; ascending, may repeat
    starts: Ints  #: ticks of `time_base`, from 0
    end: int  #: end of the last picture in ticks
    time_base: Fraction  #: seconds per tick
    rate: Fraction | None  #: frames per second if it is constant

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def memory(self) -> int:
        """Bytes of its arrays."""
        return self.frames.nbytes + self.starts.nbytes

    @property
    def duration(self) -> Fraction:
        """In seconds."""
        return self.end * self.time_base

    @property
    def mean_rate(self) -> Fraction:
        """Frames per second as a fraction that every header can hold."""
        rate = self.rate or len(self) / self.duration
        return max(rate.limit_denominator(_MAX_PICTURE_SECONDS), Fraction(1, _MAX_PICTURE_SECONDS))

    def part(self, first: int, stop: int) -> ViewTimeline:
        """Return the pictures ``first <= p < stop`` with a timeline that starts at 0."""
        start, end = int(self.starts[first]), int(self.ends(first, stop)[-1])
        return ViewTimeline(
            self.frames[first:stop],
            self.starts[first:stop] - start,
            end - start,
            self.time_base,
            self.rate,
        )

    def longest(self, starts: Ints) -> int:
        """Return the ticks of the longest segment; `starts` has the first picture of each."""
        return int(np.diff(np.append(self.starts[starts], self.end)).max())

    def ends(self, first: int, stop: int) -> Ints:
        """Return the end of each picture ``first <= p < stop`` in ticks."""
        if stop < len(self):
            return self.starts[first + 1 : stop + 1]
        return np.append(self.starts[first + 1 :], self.end)


def packet_times(timeline: ViewTimeline, first: int, stop: int, keys: Ints) -> PacketTimes:
    """Return the times of packets ``first <= p < stop`` that are decoded in the order of display.

    `keys` has 1 for key packets.
    """
    shown, ends = timeline.starts[first:stop], timeline.ends(first, stop)
    return PacketTimes(
        shown=shown, lasting=ends - shown, decoded=shown, end=int(ends[-1]), keys=keys
    )


def segment_bounds(starts: Ints, count: int, number: int) -> tuple[int, int]:
    """Return the packets ``first <= p < stop`` of a segment of `count` packets in all."""
    is_last = number + 1 == len(starts)
    return int(starts[number]), count if is_last else int(starts[number + 1])


def shows_each_frame(view: View) -> bool:
    """Whether a view shows each frame of its span once, at the frame's own time."""
    return view.fps is None and (view.frames is None or view.frames[2] == 1)


def segment_ticks(timeline: ViewTimeline, least_pictures: int = 1) -> int:
    """Return the length of the segments of a file: a second, or more if pictures are rare.

    A segment holds at least `least_pictures`, and there are at most `MAX_SEGMENTS`.
    """
    pictures = timeline.duration * least_pictures / len(timeline)
    seconds = max(Fraction(SEGMENT_SECONDS), pictures, timeline.duration / MAX_SEGMENTS)
    return max(1, int(seconds / timeline.time_base))


def timeline_of_view(view: View, physical: PhysicalVideo, table: FrameTable) -> ViewTimeline:
    """Return the pictures that `view` shows of a stored encoding.

    With a rate, pictures are equally spaced.  Without a rate, each keeps its time in the video, and
    the last one lasts until the next would have come.  Raises `OutOfRangeError` outside the
    timeline, `UsageError` for an excessive rate or number of pictures.
    """
    if view.fps is not None:
        _require_sane_rate(view, physical)
    frames = select_frames(view, physical, table)
    if not len(frames):
        raise no_frame_error(view, physical.duration)
    if view.fps is not None:
        count = len(frames)
        return ViewTimeline(frames, np.arange(count), count, 1 / view.fps, view.fps)
    step = view.frames[2] if view.frames is not None else 1
    first, last = int(frames[0]), int(frames[-1])
    pts = table.pts(first, last + 1)[::step]
    following = last + step
    end = table.frame_pts(following) if following < len(table) else table.end_pts
    end = max(end, int(pts[-1]) + 1)
    media = physical.media
    rate = None
    if not media.variable_rate and media.average_rate is not None:
        rate = media.average_rate / step
    return ViewTimeline(frames, pts - pts[0], end - int(pts[0]), media.time_base, rate)


def no_frame_error(view: View, duration: Fraction) -> OutOfRangeError:
    """Return the error for a view that shows nothing of a video of `duration` seconds."""
    start, stop = view.span or (Fraction(0), None)
    until = "the end" if stop is None else f"{float(stop):.9g} s"
    return OutOfRangeError(
        f"no frame appears between {float(start):.9g} s and {until} of the video's "
        f"{float(duration):.9g} s",
        hint="without a rate, only frames that appear in that time count",
    )


def _require_sane_rate(view: View, physical: PhysicalVideo) -> None:
    assert view.fps is not None
    start, stop = view.span or (Fraction(0), None)
    stop = physical.duration if stop is None else min(stop, physical.duration)
    if (stop - start) * view.fps > MAX_PICTURES:
        raise UsageError(f"a view must have at most {MAX_PICTURES} pictures")


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
    drawn: DrawnBoxes | None = None  #: boxes to draw into the pictures

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
                *(() if self.drawn is None else (self.drawn.digest,)),
            )
        )


def view_input_of(parts: StoreContext, tools: ReadContext, info: LogicalVideo) -> ViewInput:
    """Collect the input for views of a video."""
    original = info.original
    table = parts.catalog.frame_table(original)
    tiles = tiles_for_views(parts, tools, info)
    sound = parts.catalog.sound(original)
    damage = parts.catalog.damaged_bytes(original)
    return ViewInput(
        info.digest, original, table, parts.originals.file_of(original), tiles, sound, damage
    )


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


def why_not_copied(source: ViewInput, view: View, form: ViewForm) -> str | None:
    """Return why a view is not every stored picture of its span in the stored codec, or None."""
    media = source.physical.media
    if source.drawn is not None:
        return "boxes are drawn into its pictures"
    whole = view.region in (None, media.frame_rect) and view.size in (
        None,
        (media.display_width, media.display_height),
    )
    if not whole or not shows_each_frame(view):
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
        path = self._parts.originals.file_of(original)
        source = ViewInput(video.digest, physical, table, path, None, sound)
        return replace(video, original=physical), source


def _table_in_memory(
    columns: PacketColumns, order: Ints, end_pts: int, time_base: Fraction
) -> FrameTable:
    table = GrowingTable(time_base)
    if len(columns):
        table.extend(columns, order, end_pts)
    return table


def side_data_of_copy(media: MediaInfo, container: str) -> Mapping[str, str]:
    """Return the side data in the header of a view of copied packets."""
    return {
        name: value
        for name, value in container_side_data(container, media.marks).items()
        if name not in (IN_PACKETS, ALPHA)
    }


def side_data_of_smart_cut(media: MediaInfo, container: str) -> Mapping[str, str]:
    """Return the side data that holds for copied packets and for the encoded ends of a view."""
    copied = side_data_of_copy(media, container)
    return {name: value for name, value in copied.items() if name != DOVI}


def side_data_of_encoding(
    media: MediaInfo, container: str, pictures: PictureForm, *, each_frame: bool
) -> Mapping[str, str]:
    """Return the side data in the header of a view with encoded pictures.

    `each_frame`: the view shows each frame of its span.
    """
    dropped = {DOVI}
    is_whole = pictures.region == media.frame_rect and not media.is_turned
    if not is_whole:
        dropped |= _WHOLE_FRAME_ONLY
    if not is_whole or not each_frame or pictures.size[1] != media.height:
        dropped.add(FIELD_ORDER)
    copied = side_data_of_copy(media, container)
    return {name: value for name, value in copied.items() if name not in dropped}


def lost_side_data(
    media: MediaInfo, marks: Mapping[str, str], *, copied: bool, pixel_format: str | None = None
) -> list[str]:
    """Return the names of the side data that a view with the header side data `marks` loses.

    `copied`: all of its packets are those of the file. `pixel_format`: that of its pictures, if it
    may have an alpha channel.
    """
    kept = set(marks) | (packet_side_data(media.marks) if copied else frozenset())
    lost = [name for name in side_data_names(media.marks) if name not in kept]
    # Of the encoders of views, only FFV1 supports an alpha channel.
    if shows_alpha(media):
        is_kept = copied or (pixel_format is not None and has_alpha(pixel_format))
        lost = sorted(({*lost} - {ALPHA}) if is_kept else {*lost, ALPHA})
    return lost


def lost_streams_and_tags(media: MediaInfo, sound: str | None) -> list[str]:
    """Return the streams and tags that a view with sound of codec `sound` does not carry.

    Audio streams are listed only if there are several.
    """
    carried = 0 if sound is None else 1
    streams = [
        f"stream {one.index} ({one.kind}, {one.codec})"
        for one in media.side_streams
        if one.kind != "audio"
    ]
    audio = [one for one in media.side_streams if one.kind == "audio"]
    if len(audio) > 1:
        streams.append(f"{len(audio) - carried} of {len(audio)} audio streams")
    tags = sorted(
        tag
        for tag, value in media.tags.items()
        if tag.lower() not in _WRITER_TAGS
        and not tag.lower().startswith(_STATISTICS_TAGS)
        and (tag.lower(), value) != ("language", "und")
    )
    return [*streams, *([f"tags ({', '.join(tags)})"] if tags else [])]
