"""The central types: frozen values that all higher layers pass around.

Frames are counted from 0 in display order, and ranges are half-open. Times are integer ticks of a
stream's time base internally, and exact seconds in the API. Boxes are pixels of the displayed full
frame, the second corner exclusive. PSNR arithmetic works with errors: root mean square differences
as a share of the peak value.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any

from vfsd.core.capture_time import CaptureTime
from vfsd.tiling import Rect, TileLayout
from vfsd.tiling.cost import JOINED_SIDES, VIEW_PROFILES, DecodeCost

LOSSLESS_PSNR = 100.0
"""dB stored for an encoding without any difference."""
FINEST_PSNR = 60.0
"""dB above which lossy encodings take more bytes than lossless ones."""
SCALING_ERROR_FACTOR = 1.7
"""Upper bound for the growth of an error through scaling.  Each sample of a bicubically
scaled row is a weighted sum whose absolute weights add up to at most 1.3.  So do the
weights of each source sample.  By Schur's test the norm of scaling is at
most 1.3 along rows, and 1.69 along both axes.
"""
RANGE_ERROR_FACTOR = 255 / 219
"""Growth of a luma error when limited range is stretched to full range."""
COLOR_ERROR_FACTOR = 3.31
"""Upper bound for the growth of errors of Y, U and V in R, G or B: 1.164 + 2.142, the
weights of luma and U in the blue of limited-range BT.2020.  All other sums are smaller.
"""
ROUNDING_ERROR = 1 / 255
"""Upper bound of the change in the difference of two samples when each is rounded to 8 bits."""


def error_from_psnr(psnr: float) -> float:
    """Return the error for a PSNR in dB; 0 for an infinite one."""
    return 0.0 if psnr == math.inf else math.pow(10, -psnr / 20)


def psnr_from_error(error: float) -> float:
    """Return the PSNR in dB for an error; infinite for an error of 0."""
    return math.inf if error <= 0 else -20 * math.log10(error)


def chained_psnr(psnr: float, error: float, *, scaled_to_bits: int | None = None) -> float:
    """Return a lower bound in dB for an encoding against the first one of its chain.

    `psnr` is its PSNR against its source, and `error` the largest error of the source against the
    first one.  With `scaled_to_bits`, its pictures were scaled and rounded to that many bits per
    sample.
    """
    if error <= 0:
        return psnr
    if scaled_to_bits is not None:
        error = SCALING_ERROR_FACTOR * error + 1 / ((1 << scaled_to_bits) - 1)
    own = 0.0 if psnr >= LOSSLESS_PSNR else error_from_psnr(psnr)
    return psnr_from_error(own + error)


def required_psnr(psnr: float, error: float) -> float | None:
    """Return the dB that an encoding needs against a source with `error` to have `psnr` against the
    first.

    The reverse of `chained_psnr`.  None if no quality suffices.
    """
    left = error_from_psnr(psnr) - error
    return psnr if error <= 0 else None if left <= 0 else psnr_from_error(left)


def psnr_from_mse(mean_square: float, peak: int) -> float:
    """Return the dB of a mean square error of samples up to `peak`; at most `LOSSLESS_PSNR`."""
    if mean_square <= 0:
        return LOSSLESS_PSNR
    return min(LOSSLESS_PSNR, 10 * math.log10(peak * peak / mean_square))


@dataclass(frozen=True, slots=True)
class PsnrFigures:
    """dB against the source as a read would return it; 0: not measured.

    Luma is the mean over all pictures, the other figures are those of the worst picture.
    """

    luma: float  #: as coded, mean over all pictures
    gray: float = 0.0  #: derived from luma
    planes: float = 0.0  #: worst plane of Y, U and V, as coded
    colour: float = 0.0  #: worst channel of R, G and B

    @property
    def as_tuple(self) -> tuple[float, float, float, float]:
        """(luma, gray, planes, colour)."""
        luma, gray, planes, colour = astuple(self)
        return luma, gray, planes, colour


IDENTICAL = PsnrFigures(LOSSLESS_PSNR, LOSSLESS_PSNR, LOSSLESS_PSNR, LOSSLESS_PSNR)
"""Figures of pictures that are identical bit for bit."""


CropMargins = tuple[int, int, int, int]
"""Pixels removed from the left, top, right and bottom of a picture."""

NO_CROP_MARGINS: CropMargins = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class ByteLocation:
    """The location of an original's bytes: an object, or a file indexed in place."""

    object_key: str | None
    link_path: str | None  #: set if `object_key` is None

    def __str__(self) -> str:
        return self.link_path or f"object {self.object_key}"


@dataclass(frozen=True, slots=True)
class SideStream:
    """A stream other than the video: recorded, and kept in the file."""

    index: int
    kind: str  #: "audio", "subtitle", "data", "attachment", "video" or "cover" (a still picture)
    codec: str
    language: str | None = None
    channels: int | None = None  #: audio only
    sample_rate: int | None = None  #: audio only, Hz


_LARGE_PICTURE = 250_000
"""From this many pixels on, a second decoder thread pays off."""


@dataclass(frozen=True, slots=True)
class MediaInfo:
    """Properties of a file's video stream.

    `width` and `height` are those of a decoded and cropped picture before it is turned upright.  To
    display it, it is mirrored if `mirrored` is set, and then rotated by `rotation`.  The displayed
    frame has `display_width` x `display_height` pixels; regions and boxes refer to it.
    """

    container: str  #: short name: mp4, matroska, avi, mpegts, mpegps, flv, h264, hevc ...
    codec: str  #: FFmpeg's name: h264, hevc, vp9, av1, mpeg4, mjpeg ...
    profile: str | None
    width: int
    height: int
    pixel_format: str
    time_base: Fraction  #: seconds per tick
    average_rate: Fraction | None  #: frames per second; None if the file has none
    stream_index: int = 0
    rotation: int = 0  #: clockwise degrees (0, 90, 180, 270) to turn a picture upright
    sample_aspect_ratio: Fraction | None = None
    color_range: str | None = None  #: "limited" or "full"
    color_space: str | None = None
    color_primaries: str | None = None
    color_transfer: str | None = None
    bit_depth: int = 8
    interlaced: bool = False
    variable_rate: bool = False
    edit_list: bool = False
    reorder_delay: int = 0  #: frames that the decoder may hold back
    extradata: bytes = b""  #: codec configuration, as the container stores it
    codec_tag: str = ""  #: up to four characters: the container's name of the codec
    side_streams: tuple[SideStream, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    # A display matrix that maps pixels to pixels is one of eight: mirrored or not, then rotated.
    # Layouts, cells and tiles refer to the picture before both.
    mirrored: bool = False  #: flipped left to right before `rotation` is applied
    marks: Mapping[str, str] | None = None
    """Per-stream side data by name, see `vfsd.codecs.containers.tracks`.  None: unknown.
    """
    crop: CropMargins = NO_CROP_MARGINS  #: removed from decoded pictures, by the container
    in_largest_size: bool = False
    """Pictures of several sizes are scaled to the largest size; False: to the size of the first."""
    needs_first_packet: bool | None = None
    """Whether decoders that start elsewhere must have seen the first packet; None: not known."""

    def decoder_threads(self, available: int) -> int:
        """Return how many of the `available` threads the only running decoder should use."""
        return 2 if self.width * self.height >= _LARGE_PICTURE and available > 1 else 1

    @property
    def decoded_width(self) -> int:
        """Width in pixels before the crop."""
        return self.width + self.crop[0] + self.crop[2]

    @property
    def decoded_height(self) -> int:
        return self.height + self.crop[1] + self.crop[3]

    @property
    def is_turned(self) -> bool:
        """Whether pictures are displayed in another orientation than they are stored."""
        return bool(self.rotation or self.mirrored)

    @property
    def display_width(self) -> int:
        return self.height if self.rotation in (90, 270) else self.width

    @property
    def display_height(self) -> int:
        return self.width if self.rotation in (90, 270) else self.height

    @property
    def frame_rect(self) -> Rect:
        return Rect.of_size(self.display_width, self.display_height)


class Access(Enum):
    """How the bytes of one packet are read from its file."""

    EXTENT = "extent"  #: file[position : position + size] is the packet
    DEMUX = "demux"  #: packets are interleaved; seek the demuxer to `position`
    SEQUENTIAL = "sequential"  #: only a decode from the first packet gives correct pictures


@dataclass(frozen=True, slots=True)
class Sound:
    """The audio stream that views of a file carry, or the reason why they have none."""

    codec: str  #: FFmpeg's name
    stream_index: int  #: -1: unknown
    time_base: Fraction = Fraction(1)  #: seconds per tick
    sample_rate: int = 0  #: Hz
    channels: int = 0
    bit_depth: int = 0  #: of PCM
    configuration: bytes = b""  #: extradata of FFmpeg; for AC-3 the start of the first packet
    packets: int = 0
    first_pts: int = 0  #: start of the first packet, in ticks of the file's timeline
    end_pts: int = 0  #: end of the last packet
    language: str | None = None
    reason: str | None = None  #: why views do not carry it; None: they carry it
    access: Access = Access.EXTENT  #: how packets are read: EXTENT or DEMUX
    matroska_codec: str = ""  #: CodecID in Matroska; empty if the codec implies it
    matroska_private: bytes = b""  #: CodecPrivate in Matroska, with `matroska_codec`
    mp4_entry: bytes = b""  #: sample entry in MP4 as a whole box; empty if the codec implies it


class Role(Enum):
    """The relation of a stored encoding to its logical video."""

    ORIGINAL = "original"  #: the bytes of the logical file; has no parent
    TILED = "tiled"  #: segments of tiles, in the original's size
    RENDITION = "rendition"  #: segments of whole pictures in another size
    JOINED = "joined"  #: segments stored together with those of another camera's video


# Rounding error of the end of the last frame: its start and its duration are both rounded.
_ROUNDED_TICKS = Fraction(3, 2)
# The same if time stamps were milliseconds before the file was written.
_ROUNDED_SECONDS = Fraction(3, 2000)


@dataclass(frozen=True, slots=True)
class PhysicalVideo:
    """One stored encoding of (a part of) a logical video."""

    id: int
    video_id: int
    role: Role
    media: MediaInfo
    access: Access
    frames: int  #: displayed frames
    packets: int
    first_pts: int  #: of the first displayed frame, in ticks
    end_pts: int  #: first_pts + duration: end of the last frame, in ticks
    object_key: str | None  #: the stored object; None for a file indexed in place
    link_path: str | None  #: the file indexed in place; never written, never deleted
    size: int  #: bytes
    verified: bool  #: a full decode has confirmed the frame table
    parent_id: int | None
    parameters: Mapping[str, Any]  #: settings of the encoder; empty for an original
    software: str  #: versions of the software that encoded or indexed it
    created_ns: int  #: Unix time
    notes: tuple[str, ...] = ()  #: irregularities found while indexing, for users
    cost_factor: float | None = None
    """Measured decoding time relative to the codec's cost model; None: not measured."""
    error: float = 0.0  #: of an original against the first one; see `vfsd.core.model`
    damage: tuple[range, ...] | None = None
    """Of an original: frames that show damage, ascending.  None: no full decode has examined it."""
    growing_name: str = ""  #: of a growing video: its future name

    @property
    def is_growing(self) -> bool:
        """Whether the file is still being written: not in the catalog, and its file is a
        descriptor.
        """
        return self.id < 0

    @property
    def place(self) -> ByteLocation:
        """The location of an original's bytes."""
        return ByteLocation(self.object_key, self.link_path)

    @property
    def psnr(self) -> float:
        """Lower bound in dB for every picture of an original against the video's first original.

        Adds up the errors along the chain of replacements.  Infinite for the first original.
        """
        return psnr_from_error(self.error)

    @property
    def damaged_frames(self) -> int | None:
        """Number of frames that show damage; None: no full decode has examined the file."""
        return None if self.damage is None else sum(map(len, self.damage))

    @property
    def time_base(self) -> Fraction:
        return self.media.time_base

    @property
    def constant_rate(self) -> Fraction | None:
        """The nominal frames per second; None if the rate varies or is unknown."""
        return None if self.media.variable_rate else self.media.average_rate

    @property
    def mean_rate(self) -> Fraction | None:
        """Frames per second: the nominal rate, or the mean if the rate varies."""
        if self.constant_rate is not None:
            return self.constant_rate
        return Fraction(self.frames) / self.duration if self.duration else None

    @property
    def duration(self) -> Fraction:
        """Seconds from the start of the first frame to the end of the last.

        At a constant rate, the nominal duration of all frames, if the last time stamp differs from
        it only by rounding.
        """
        measured = (self.end_pts - self.first_pts) * self.media.time_base
        if self.constant_rate is None:
            return measured
        nominal = self.frames / self.constant_rate
        rounding = max(_ROUNDED_TICKS * self.media.time_base, _ROUNDED_SECONDS)
        is_rounded = abs(measured - nominal) <= min(rounding, 1 / (4 * self.constant_rate))
        return nominal if is_rounded else measured


@dataclass(frozen=True, slots=True)
class LogicalVideo:
    """A video as users see it: a name and a timeline."""

    id: int
    ino: int
    name: str  #: path from the root of the store, no leading slash
    size: int  #: bytes of the logical file
    digest: str  #: blake3 of the logical file, hexadecimal
    modified_ns: int  #: Unix time
    created_ns: int  #: Unix time at which it became a video
    tags: frozenset[str]
    metadata: Mapping[str, Any]
    original: PhysicalVideo
    captured: CaptureTime | None = None  #: when its first frame was recorded; None: unknown


@dataclass(frozen=True, slots=True)
class PageBounds:
    """Properties of a page of a frame table that are known without reading it."""

    first_packet: int
    packets: int
    first_frame: int
    frames: int
    first_pts: int  #: lowest pts of a frame in the page
    last_pts: int  #: highest pts of a frame in the page
    key_packet: int  #: key packet from which the page's first packet is decoded; -1: none


@dataclass(frozen=True, slots=True)
class Gop:
    """A run of packets that starts with a key frame."""

    index: int
    first_packet: int
    packets: int
    first_frame: int  #: first frame in display order that belongs to it
    frames: int
    first_pts: int
    position: int  #: byte offset of the first packet in the file
    size: int  #: bytes of its packets, without gaps between them
    is_open: bool  #: its leading pictures need the previous GOP


@dataclass(frozen=True, slots=True)
class Cell:
    """The unit of derived storage: a rectangle of a segment, stored in the segment's pack."""

    tile: int  #: index in the layout, row by row
    rect: Rect  #: of the stored picture, before it is turned upright
    position: int  #: byte offset in the pack
    size: int  #: bytes
    quality: int  #: rate factor of the encoder; for `lossless`, the level
    psnr: float
    """dB of luma against the first original.  Measured or, for a cell made from a replacement, a
    lower bound for both losses together (see `vfsd.core.model`).  For joined cameras: dB of the
    worst plane of the worst picture.
    """
    gray: float = 0.0
    """dB of the worst picture read as gray.  Here and below, 0: not measured."""
    planes: float = 0.0  #: dB of the worst plane of Y, U and V in the worst picture
    colour: float = 0.0
    """dB of the worst channel of R, G and B in the worst picture, against the original read in the
    size of the cell's picture.
    """


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of frames that share one layout of tiles (SOT), stored in one pack.

    The i-th packet of each cell shows frame ``first_frame + i``.  Times are those of the original's
    frame table.  Tiles without a cell are read from the original.
    """

    id: int
    physical_id: int  #: the tiled encoding that contains it
    original_id: int  #: the original whose frame table numbers its frames
    first_frame: int
    end_frame: int
    layout: TileLayout  #: of `picture`, before it is turned upright
    profile: str
    """Tile codec (`vfsd.codecs.cells.cell_encoders`), one of `VIEW_PROFILES`, or of `JOINED_SIDES`.
    """
    object_key: str  #: the object with the pack
    size: int  #: bytes of the pack; for a joined segment, its share
    psnr: float  #: dB, of the worst cell
    created_ns: int  #: Unix time
    retired_ns: int | None  #: when another layout replaced it
    cells: tuple[Cell, ...]  #: of the stored tiles, ascending; at least one
    gop: int | None = None
    """Frames from one key picture of a cell to the next; None: only the first frame is one."""
    pack_at: int = 0  #: position of the pack in its object, which may have packs of other segments
    _places: Mapping[int, int] = field(init=False, repr=False, compare=False)
    """Index in `cells` by tile: planners look it up very often."""

    def __post_init__(self) -> None:
        places = {cell.tile: place for place, cell in enumerate(self.cells)}
        object.__setattr__(self, "_places", places)

    @property
    def frames(self) -> range:
        return range(self.first_frame, self.end_frame)

    @property
    def gop_frames(self) -> int:
        """How many frames a read of a single frame decodes at most."""
        return self.end_frame - self.first_frame if self.gop is None else self.gop

    def key_before(self, frame: int) -> int:
        """Return the last key frame at or before `frame`, which must be in the segment."""
        first = self.first_frame
        return first if self.gop is None else frame - (frame - first) % self.gop

    @property
    def picture(self) -> tuple[int, int]:
        """Width and height of whole pictures after scaling, before they were cut."""
        return self.layout.width, self.layout.height

    @property
    def tiles(self) -> tuple[int, ...]:
        """The stored tiles, ascending."""
        return tuple(self._places)

    @property
    def is_joined(self) -> bool:
        """Whether its pictures share pieces with another camera's video.

        Its only cell is then the part of the pack that holds those pieces.
        """
        return self.profile in JOINED_SIDES

    @property
    def is_from_view(self) -> bool:
        """Whether it was encoded for a reader of a view, and kept."""
        return self.profile in VIEW_PROFILES

    @property
    def is_whole(self) -> bool:
        """Whether all tiles of the layout are stored."""
        return len(self.cells) == self.layout.count

    def holds(self, tiles: Iterable[int]) -> bool:
        """Return whether all of `tiles` are stored."""
        return all(tile in self._places for tile in tiles)

    def place(self, tile: int) -> int:
        """Return the index in the pack of a stored tile's cell."""
        return self._places[tile]

    def cell(self, tile: int) -> Cell:
        """Return the cell of a stored tile."""
        return self.cells[self._places[tile]]


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """The measured cost of a codec on a host."""

    host: str
    name: str  #: FFmpeg's name of the codec, or a tile codec
    decode: DecodeCost
    encode_pixel: float | None  #: CPU seconds; tile codecs only
    r2: float  #: share of the variance that `decode` explains
    samples: int  #: number of timed decodes
    software: str
    measured_ns: int  #: Unix time


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """The gain of a read from using a segment."""

    segment_id: int
    saved: float  #: CPU seconds of decoding saved against reading the original


@dataclass(frozen=True, slots=True)
class LoggedRead:
    """One read of a video's pixels, and its cost.

    Decoding is counted according to the plan: a picture that was still in memory from an earlier
    read counts as decoded again.
    """

    id: int  #: ascending in order of arrival in the catalog; 0: not stored yet
    video_id: int
    at_ns: int  #: Unix time at which it began
    kind: str  #: api, scan, view or detect
    first_frame: int  #: the lowest
    end_frame: int  #: one past the highest
    frames: int  #: pictures in the result
    region: Rect  #: displayed pixels; for a scan, the bounding box of all requests
    size: tuple[int, int] | None  #: of a picture in the result; None: sizes differ
    labels: tuple[tuple[str, ...], ...] | None
    """Labels of the requested boxes: an AND of ORs, without negated ones and attributes."""
    pixels: int  #: to be decoded
    untiled_pixels: int  #: to be decoded if everything came from the original
    predicted: float  #: CPU seconds of decoding
    untiled_predicted: float  #: CPU seconds of decoding if everything came from the original
    seconds: float  #: measured elapsed time of the read
    segments: int  #: number of tiled segments used
    tiles: int  #: number of tiles decoded in these segments
    original_frames: int  #: number of distinct frames decoded from the original
    runs: tuple[tuple[int, int, int], ...] | None = None
    """(first frame, end, step) of each run of frames, ascending.  None: one run from `first_frame`
    to `end_frame`, or too many runs."""
    uses: tuple[
        SegmentUse, ...
    ] = ()  #: only set when it is stored; the catalog counts uses by segment

    @property
    def source(self) -> str:
        """Where the pixels came from: original, tiles or both."""
        if not self.segments:
            return "original"
        return "both" if self.original_frames else "tiles"


@dataclass(frozen=True, slots=True)
class ReadArea:
    """An area that reads of some frames requested, and how often."""

    kind: str  #: as in `LoggedRead`
    region: Rect
    labels: tuple[tuple[str, ...], ...] | None
    reads: int


@dataclass(frozen=True, slots=True)
class TilingReason:
    """The target of reads, and their number: a label, a region, or whole frames in a size."""

    label: str | None  #: an expression, see `vfsd.core.label_query`
    region: Rect | None  #: of the stored picture
    reads: int
    size: tuple[int, int] | None = None  #: of the stored picture, scaled


@dataclass(frozen=True, slots=True)
class TilingDecision:
    """A segment of tiles that was made because of past reads, and why."""

    id: int  #: ascending in order of making; 0: not stored yet
    video_id: int
    segment_id: int | None  #: None: it no longer exists
    at_ns: int  #: Unix time
    maker: str  #: made by: tune or background
    first_frame: int
    end_frame: int
    layout: TileLayout  #: of the stored picture
    tiles: tuple[int, ...] | None  #: tiles that were made; None: all
    profile: str  #: the tile codec
    reasons: tuple[TilingReason, ...]  #: reads that it serves, most frequent first
    reads: int  #: number of logged reads that it makes cheaper
    predicted_seconds: float  #: CPU seconds for making it
    predicted_saved: float  #: CPU seconds saved in those reads
    predicted_bytes: int
    seconds: float  #: measured time of making it
    bytes: int
    undone_ns: int | None  #: Unix time at which it was undone; None: it was not
    in_use: bool = True  #: reads may use its segment
    gop: int | None = None  #: as in `Segment`

    @property
    def picture(self) -> tuple[int, int]:
        """Width and height of whole pictures after scaling."""
        return self.layout.width, self.layout.height

    @property
    def frames(self) -> range:
        return range(self.first_frame, self.end_frame)

    @property
    def state(self) -> str:
        """in use, undone, replaced (by a later segment) or gone."""
        if self.in_use:
            return "in use"
        if self.undone_ns is not None:
            return "undone"
        return "gone" if self.segment_id is None else "replaced"


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``position <= offset < position + size`` of an object or of a linked file."""

    object_key: str | None
    link_path: str | None
    position: int
    size: int


class FileState(Enum):
    """How the bytes of a regular file are stored."""

    SPOOLED = "spooled"  #: a private file, not yet classified: being written, or queued for ingest
    PLAIN = "plain"  #: a private file, classified as not a video; see `reason`
    VIDEO = "video"  #: an immutable object (or a linked file), indexed as a logical video
    STORED = "stored"  #: not a video; an object, or bytes in the catalog, for hosts with a bucket


WAITS_FOR_UPLOAD = "waits for upload"
"""Begin of the reason of a file that is complete, but could not be uploaded yet."""


def is_waiting(node: Node) -> bool:
    """Return whether the catalog says that a file waits for its upload."""
    return node.state is FileState.SPOOLED and (node.reason or "").startswith(WAITS_FOR_UPLOAD)


@dataclass(frozen=True, slots=True)
class HomeMount:
    """A mount of a home, as it is known to the catalog."""

    id: str
    home: str
    host: str
    machine: str
    place: str  #: the mount point
    epoch: int  #: counts the mounts of the home
    silent: float  #: seconds since its last sign of life


@dataclass(frozen=True, slots=True)
class Home:
    """A directory that uses a catalog on a server: it has the private files of one host."""

    id: str
    host: str  #: the name of its machine
    machine: str  #: the machine's id; empty if unknown
    place: str  #: the absolute path of the directory
    directory: str  #: its device and inode number; empty before its first use
    mount: HomeMount | None = None  #: that holds a valid lease


@dataclass(frozen=True, slots=True)
class StoreBucket:
    """Where a store has copies of its objects for other hosts."""

    url: str  #: of the bucket and a prefix, such as s3://bucket/prefix
    options: Mapping[str, str | bool]  #: of the server, without secrets


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """A name in a directory, as stored."""

    parent: int  #: inode number of the directory
    name: bytes
    ino: int  #: of the named node


@dataclass(frozen=True, slots=True)
class Node:
    """An inode of the mounted tree."""

    ino: int
    mode: int  #: type and permission bits, as in `stat`
    uid: int
    gid: int
    nlink: int
    size: int  #: bytes; for SPOOLED and PLAIN files see the private file instead
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    rdev: int = 0
    target: str | None = None  #: of a symbolic link; surrogateescape for bytes that are not UTF-8
    state: FileState | None = None  #: regular files only
    object_key: str | None = None  #: VIDEO only
    link_path: str | None = None  #: VIDEO only, indexed in place
    reason: str | None = (
        None  #: why a PLAIN file is not a video, or a SPOOLED one is still unexamined
    )
    generation: int = 0  #: counts changes of content, to invalidate page caches
    home: str | None = (
        None  #: SPOOLED and PLAIN: the home with the private file; None: the only one
    )

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)
