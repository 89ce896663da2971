"""The nouns: frozen values that every layer above passes around.

Conventions, here and everywhere: frames are counted from 0 in display order; ranges are
half-open; times are integer ticks of a stream's time base inside and exact seconds at the edge;
boxes are pixels of the displayed full frame, the second corner exclusive.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any

from vfsd.core.psnr import psnr_from_error
from vfsd.tiling import Rect, TileLayout
from vfsd.tiling.cost import JOINED_SIDES, VIEW_PROFILES, DecodeCost

# ---------------------------------------------------------------------------------------- media


CropMargins = tuple[int, int, int, int]
"""Pixels that are taken off the left, top, right and bottom of a picture."""

NO_CROP_MARGINS: CropMargins = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class ByteLocation:
    """The location of an original's bytes: an object, or a file indexed in place."""

    object_key: str | None
    link_path: str | None  #: given where `object_key` is not

    def __str__(self) -> str:
        return self.link_path or f"object {self.object_key}"


@dataclass(frozen=True, slots=True)
class SideStream:
    """A stream beside the video: noted, and kept in the file."""

    index: int
    kind: str  #: "audio", "subtitle", "data", "attachment", "video" or "cover" (a still picture)
    codec: str
    language: str | None = None
    channels: int | None = None  #: audio only
    sample_rate: int | None = None  #: audio only, Hz


@dataclass(frozen=True, slots=True)
class MediaInfo:
    """What a file says of its video stream.

    `width` and `height` are those of a picture that was decoded and cropped, and not yet turned
    upright: it is mirrored, if it is, and then turned by `rotation`.  The displayed frame, in which
    regions and boxes are given, is `display_width` x `display_height`.
    """

    container: str  #: short name: mp4, matroska, avi, mpegts, mpegps, flv, h264, hevc ...
    codec: str  #: FFmpeg's name of the codec: h264, hevc, vp9, av1, mpeg4, mjpeg ...
    profile: str | None
    width: int
    height: int
    pixel_format: str
    time_base: Fraction  #: seconds per tick
    average_rate: Fraction | None  #: frames per second; None where the file does not tell
    stream_index: int = 0
    rotation: int = 0  #: clockwise degrees (0, 90, 180, 270) that turn a picture upright
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
    codec_tag: str = ""  #: four characters by which the container calls the codec, or fewer
    side_streams: tuple[SideStream, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    # A display matrix that keeps whole pixels is one of eight: mirrored or not, then turned.
    # Layouts, cells and tiles refer to the picture before both.
    mirrored: bool = False  #: left and right change places before a picture is turned by `rotation`
    marks: Mapping[str, str] | None = None
    """Other data of the pictures by name: `vfsd.codecs.containers.stream_side_data`.  None: not
    looked for."""
    crop: CropMargins = NO_CROP_MARGINS  #: what the container takes off decoded pictures
    in_largest_size: bool = False
    """Pictures of several sizes are shown in the largest of these; False: in that of the first."""

    @property
    def decoded_width(self) -> int:
        """Pixels, before pictures are cropped."""
        return self.width + self.crop[0] + self.crop[2]

    @property
    def decoded_height(self) -> int:
        return self.height + self.crop[1] + self.crop[3]

    @property
    def is_turned(self) -> bool:
        """Whether pictures are displayed in another way than they are stored."""
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
    """How to get the bytes of one packet from the file that holds it."""

    EXTENT = "extent"  #: file[position : position + size] is the packet
    DEMUX = "demux"  #: the container cuts packets up; seek the demuxer to `position`
    SEQUENTIAL = "sequential"  #: only a decode from the first packet gives the right pictures


@dataclass(frozen=True, slots=True)
class Sound:
    """The audio stream of a file that views carry, or why they do not."""

    codec: str  #: FFmpeg's name
    stream_index: int  #: -1: not known
    time_base: Fraction = Fraction(1)  #: seconds per tick
    sample_rate: int = 0  #: Hz
    channels: int = 0
    bit_depth: int = 0  #: of PCM
    configuration: bytes = b""  #: as FFmpeg has it; of AC-3 the first bytes of the first packet
    packets: int = 0
    first_pts: int = 0  #: when the first packet sounds, in ticks of the file's timeline
    end_pts: int = 0  #: when the last one has sounded
    language: str | None = None
    reason: str | None = None  #: why views do not carry it; None: they do
    access: Access = Access.EXTENT  #: how packets are read: EXTENT or DEMUX
    matroska_codec: str = ""  #: CodecID in Matroska; empty where the name of the codec implies it
    matroska_private: bytes = b""  #: CodecPrivate in Matroska, with `matroska_codec`
    mp4_entry: bytes = b""  #: sample entry in MP4 as a whole box; empty where the codec implies it


# --------------------------------------------------------------------------------------- videos


class Role(Enum):
    """What a stored encoding is to its logical video."""

    ORIGINAL = "original"  #: the bytes of the logical file; has no parent
    TILED = "tiled"  #: segments of tiles, in the original's size
    RENDITION = "rendition"  #: segments of whole pictures in another size
    JOINED = "joined"  #: segments kept together with those of another camera's video


_ROUNDED_TICKS = Fraction(3, 2)
"""By so many the end of the last frame may be wrong: its beginning and its duration are rounded."""
_ROUNDED_SECONDS = Fraction(3, 2000)
"""The same where time stamps were milliseconds before the file was written."""


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
    end_pts: int  #: first_pts + duration: when the last frame stops being shown, in ticks
    object_key: str | None  #: the stored object; None for a file indexed in place
    link_path: str | None  #: the file indexed in place; never written, never deleted
    size: int  #: bytes
    verified: bool  #: a full decode has confirmed the frame table
    parent_id: int | None
    parameters: Mapping[str, Any]  #: what it was made with; empty for an original
    software: str  #: versions of what made it or indexed it
    created_ns: int  #: Unix time
    notes: tuple[str, ...] = ()  #: oddities met while indexing, for people
    cost_factor: float | None = None
    """Decoding takes so many times what the codec's rule says; None: that was not measured."""
    error: float = 0.0  #: of an original, against the very first; see `vfsd.core.psnr`
    damage: tuple[range, ...] | None = None
    """Of an original: frames that show damage, ascending; None: no full decode has examined it."""
    growing_name: str = ""  #: of one that is still being written: what that is to be called

    @property
    def is_growing(self) -> bool:
        """Whether it is still being written: no catalog has it, and its file is a descriptor."""
        return self.id < 0

    @property
    def place(self) -> ByteLocation:
        """Of an original: where its bytes are."""
        return ByteLocation(self.object_key, self.link_path)

    @property
    def psnr(self) -> float:
        """dB that every picture of an original has at least against the video's very first one,
        added up along the chain of replacements; infinite for the very first one itself."""
        return psnr_from_error(self.error)

    @property
    def damaged_frames(self) -> int | None:
        """How many frames show damage; None: no full decode has examined it for that."""
        return None if self.damage is None else sum(map(len, self.damage))

    @property
    def time_base(self) -> Fraction:
        return self.media.time_base

    @property
    def constant_rate(self) -> Fraction | None:
        """The nominal frames per second; None where the rate varies or is not known."""
        return None if self.media.variable_rate else self.media.average_rate

    @property
    def mean_rate(self) -> Fraction | None:
        """Frames per second: the nominal rate, or the mean where the rate varies."""
        if self.constant_rate is not None:
            return self.constant_rate
        return Fraction(self.frames) / self.duration if self.duration else None

    @property
    def duration(self) -> Fraction:
        """Seconds from the first frame's appearance to the last one's end.

        At a constant rate it is that of so many frames, where the last time stamp differs from
        that by rounding alone.
        """
        told = (self.end_pts - self.first_pts) * self.media.time_base
        if self.constant_rate is None:
            return told
        nominal = self.frames / self.constant_rate
        rounding = max(_ROUNDED_TICKS * self.media.time_base, _ROUNDED_SECONDS)
        is_rounded = abs(told - nominal) <= min(rounding, 1 / (4 * self.constant_rate))
        return nominal if is_rounded else told


@dataclass(frozen=True, slots=True)
class LogicalVideo:
    """A name and a timeline: what users see."""

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


@dataclass(frozen=True, slots=True)
class Gop:
    """A run of packets that starts with a key frame."""

    index: int
    first_packet: int
    packets: int
    first_frame: int  #: index of the first frame, in display order, that belongs to it
    frames: int
    first_pts: int
    position: int  #: byte offset of the first packet in the file
    size: int  #: bytes of its packets, without what lies between
    is_open: bool  #: its leading pictures need the GOP before


@dataclass(frozen=True, slots=True)
class Cell:
    """The unit of derived storage: a rectangle of a segment, in the segment's pack."""

    tile: int  #: its number in the layout, row by row
    rect: Rect  #: of the stored picture, which is not turned upright yet
    position: int  #: byte offset in the pack
    size: int  #: bytes
    quality: int  #: the rate factor that it was encoded with; of `lossless`, the level
    psnr: float
    """dB of luma against the very first original: measured or, where the cell was made from a
    replacement of that, a lower bound for both losses together (see `vfsd.core.psnr`).  Of joined
    cameras: dB of the worst plane of the worst picture."""
    gray: float = 0.0
    """dB of the worst picture when it is read as gray.  Here and below 0 means: not measured."""
    planes: float = 0.0  #: dB of the worst picture in the worst of its planes Y, U and V
    colour: float = 0.0
    """dB of the worst picture in the worst of R, G and B, against the original as it is read in the
    size of the cell's picture."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of frames that share one layout of tiles (SOT), in one pack.

    The i-th packet of each of its cells shows frame ``first_frame + i``; times are those of the
    original's frame table.  What lies in tiles that have no cell is read from the original.
    """

    id: int
    physical_id: int  #: the tiled encoding that it belongs to
    original_id: int  #: the original by whose frame table its frames are counted
    first_frame: int
    end_frame: int
    layout: TileLayout  #: of `picture`, which is not turned upright yet
    profile: str
    """The tile codec (`vfsd.codecs.cells.tile_codecs`), one of `VIEW_PROFILES`, or of
    `JOINED_SIDES`."""
    object_key: str  #: the pack
    size: int  #: bytes of the pack; of a joined segment, its share of them
    psnr: float  #: dB, of the worst cell
    created_ns: int  #: Unix time
    retired_ns: int | None  #: since when another layout has its place
    cells: tuple[Cell, ...]  #: of the tiles that are stored, ascending; one at least
    _places: Mapping[int, int] = field(init=False, repr=False, compare=False)
    """Where the cell of a tile is among those that are stored: planners ask very often."""

    def __post_init__(self) -> None:
        places = {cell.tile: place for place, cell in enumerate(self.cells)}
        object.__setattr__(self, "_places", places)

    @property
    def frames(self) -> range:
        return range(self.first_frame, self.end_frame)

    @property
    def picture(self) -> tuple[int, int]:
        """Width and height to which whole pictures were scaled before they were cut."""
        return self.layout.width, self.layout.height

    @property
    def tiles(self) -> tuple[int, ...]:
        """Those that are stored, ascending."""
        return tuple(self._places)

    @property
    def is_joined(self) -> bool:
        """Whether its pictures are made of pieces that another video's are made of as well.

        Its only cell is then the part of the pack that holds those pieces.
        """
        return self.profile in JOINED_SIDES

    @property
    def is_from_view(self) -> bool:
        """Whether it was encoded for somebody who read a view, and kept."""
        return self.profile in VIEW_PROFILES

    @property
    def is_whole(self) -> bool:
        """Whether all tiles of the layout are stored."""
        return len(self.cells) == self.layout.count

    def holds(self, tiles: Iterable[int]) -> bool:
        """Whether all of these are stored."""
        return all(tile in self._places for tile in tiles)

    def place(self, tile: int) -> int:
        """Which cell of the pack a stored tile is, from 0."""
        return self._places[tile]

    def cell(self, tile: int) -> Cell:
        """The cell of a stored tile."""
        return self.cells[self._places[tile]]


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """What a codec was measured to cost on a host."""

    host: str
    name: str  #: FFmpeg's name of the codec, or that of a tile codec
    decode: DecodeCost
    encode_pixel: float | None  #: CPU seconds; tile codecs only
    r2: float  #: the share of the variance that `decode` explains
    samples: int  #: decodes that were timed
    software: str
    measured_ns: int  #: Unix time


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """What a read gained by using a segment."""

    segment_id: int
    saved: float  #: CPU seconds of decoding that reading the original would have taken more


@dataclass(frozen=True, slots=True)
class LoggedRead:
    """One read of a video's pixels, and what it took.

    What was decoded is counted as the plan has it: a picture that was still in memory from an
    earlier read counts as if it had been decoded again.
    """

    id: int  #: by order of arrival in the catalog; 0: not there yet
    video_id: int
    at_ns: int  #: Unix time at which it began
    kind: str  #: through what: api, scan, view or detect
    first_frame: int  #: the lowest
    end_frame: int  #: one past the highest
    frames: int  #: pictures of the result
    region: Rect  #: displayed pixels; of a scan, around all that it was for
    size: tuple[int, int] | None  #: of a picture of the result; None: each has its own
    labels: tuple[tuple[str, ...], ...] | None  #: of boxes that it was for: an AND of ORs
    pixels: int  #: to be decoded
    untiled_pixels: int  #: to be decoded if all came from the original
    predicted: float  #: CPU seconds of decoding
    untiled_predicted: float  #: CPU seconds of decoding if all came from the original
    seconds: float  #: that it took its reader, measured
    segments: int  #: how many segments of tiles were used
    tiles: int  #: how many tiles of these segments were decoded, all together
    original_frames: int  #: different frames that came from the original
    uses: tuple[SegmentUse, ...] = ()  #: on its way into the catalog, which counts them by segment

    @property
    def source(self) -> str:
        """Where the pixels came from: original, tiles or both."""
        if not self.segments:
            return "original"
        return "both" if self.original_frames else "tiles"


@dataclass(frozen=True, slots=True)
class ReadArea:
    """Where some frames of a video were read, and how often."""

    kind: str  #: as of a `Read`
    region: Rect
    labels: tuple[tuple[str, ...], ...] | None
    reads: int


@dataclass(frozen=True, slots=True)
class TilingReason:
    """What reads looked for, and how often: a label, a region, or whole frames in a size."""

    label: str | None  #: an expression, see `vfsd.core.label_query`
    region: Rect | None  #: of the stored picture
    reads: int
    size: tuple[int, int] | None = None  #: of the stored picture, scaled


@dataclass(frozen=True, slots=True)
class TilingDecision:
    """A segment of tiles that was made because of what had been read, and why."""

    id: int  #: by order of making; 0: not there yet
    video_id: int
    segment_id: int | None  #: None: it is there no longer
    at_ns: int  #: Unix time
    maker: str  #: who made it: tune or background
    first_frame: int
    end_frame: int
    layout: TileLayout  #: of the stored picture
    tiles: tuple[int, ...] | None  #: those that were made; None: all
    profile: str  #: the tile codec
    reasons: tuple[TilingReason, ...]  #: what it is good for, the most often first
    reads: int  #: remembered reads that it makes cheaper
    predicted_seconds: float  #: of CPU, for making it
    predicted_saved: float  #: CPU seconds that those reads would have taken less
    predicted_bytes: int
    seconds: float  #: that making it took, measured
    bytes: int
    undone_ns: int | None  #: Unix time at which somebody took it back
    in_use: bool = True  #: reads may use its segment

    @property
    def picture(self) -> tuple[int, int]:
        """Width and height to which whole pictures were scaled."""
        return self.layout.width, self.layout.height

    @property
    def frames(self) -> range:
        return range(self.first_frame, self.end_frame)

    @property
    def state(self) -> str:
        """in use, undone, replaced (by what came later) or gone."""
        if self.in_use:
            return "in use"
        if self.undone_ns is not None:
            return "undone"
        return "gone" if self.segment_id is None else "replaced"


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Where bytes lie: ``position <= offset < position + size`` of an object or a linked file."""

    object_key: str | None
    link_path: str | None
    position: int
    size: int


# ----------------------------------------------------------------------------------------- tree


class FileState(Enum):
    """What holds the bytes of a regular file."""

    SPOOLED = "spooled"  #: a private file, not yet judged: being written, or waiting for ingest
    PLAIN = "plain"  #: a private file, judged: no video; `reason` says why
    VIDEO = "video"  #: an immutable object (or a linked file), indexed as a logical video


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """A name in a directory, as it is stored."""

    parent: int  #: inode number of the directory
    name: bytes
    ino: int  #: what it names


@dataclass(frozen=True, slots=True)
class Node:
    """An inode of the tree that the mount shows."""

    ino: int
    mode: int  #: type and permission bits, as in `stat`
    uid: int
    gid: int
    nlink: int
    size: int  #: bytes; for SPOOLED and PLAIN files the private file's size is the truth
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    rdev: int = 0
    target: str | None = None  #: of a symbolic link; surrogateescape for what is not UTF-8
    state: FileState | None = None  #: regular files only
    object_key: str | None = None  #: VIDEO only
    link_path: str | None = None  #: VIDEO only, indexed in place
    reason: str | None = None  #: why a PLAIN file is no video, or a SPOOLED one is not examined yet
    generation: int = 0  #: counts changes of content; a page cache of another one is stale

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)
