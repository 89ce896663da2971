"""Encodes cells: the codecs of stored tiles (`TILE_CODECS`), and the encoders of a segment.

`encode_cells` cuts the pictures of a segment into tiles and encodes each tile on its own.
"""

from __future__ import annotations

import errno
import math
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, pairwise, zip_longest
from typing import IO, Generic, Protocol, TypeVar

import av
import numpy as np
import numpy.typing as npt
from av.error import FFmpegError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import PictureType
from av.video.stream import VideoStream

from vfsd.codecs.cells.lossless import LOSSLESS_PIXEL_FORMATS, MAX_LEVEL, LosslessCellEncoder
from vfsd.codecs.cells.pack import CellStream
from vfsd.codecs.containers.muxers import with_start_codes
from vfsd.codecs.encoding.encoder import NOMINAL_RATE, EncoderSettings, color_options
from vfsd.codecs.frames.color import SITINGS, ColorNormalizer, blank, blank_like
from vfsd.codecs.frames.planes import (
    copy_colors,
    names_full_range,
    plane_bytes,
    plane_samples,
    without_range_name,
)
from vfsd.codecs.frames.quality import (
    QualityAccumulator,
    SitedFrameComparer,
    SourcePicture,
    SquaredErrors,
)
from vfsd.codecs.frames.transforms import cut_out
from vfsd.codecs.pyav import decode, new_encoder, numbered_packet, open_encoder, strict_decoder
from vfsd.codecs.stitching.hevc_tiles import STITCHABLE, TileStream
from vfsd.codecs.stitching.kvazaar import (
    MAX_TILE_COLUMNS,
    MAX_TILE_ROWS,
    TREE_BLOCK,
    encode_tile,
    encode_tiled,
    require_kvazaar,
)
from vfsd.core.model import MediaInfo, PsnrFigures
from vfsd.errors import IntegrityError, NoSpaceError, UsageError
from vfsd.tiling import LayoutRules, Rect
from vfsd.tiling.cost import LOSSLESS, VIEW_PROFILES, WEB
from vfsd.validation import not_one_of

# The type of reference pictures.
_Source = TypeVar("_Source")


class CellVerifier(Generic[_Source]):
    """Decodes a cell as it comes from the encoder, and compares it with its source.

    Raises `IntegrityError` unless packet i shows picture i.
    """

    def __init__(
        self, codec: str, compare: Callable[[_Source, av.VideoFrame], SquaredErrors]
    ) -> None:
        self._codec = codec
        self._squares = compare
        self._decoder: VideoCodecContext | None = None
        self._pending: deque[_Source] = deque()
        self._tally = QualityAccumulator()
        self._received = self._fed = self._shown = 0

    @property
    def pending(self) -> int:
        """The number of latest source pictures that were not decoded yet."""
        return len(self._pending)

    def source(self, picture: _Source) -> None:
        """Add the source of the next packet. It must not change until the packet is decoded."""
        self._pending.append(picture)
        self._received += 1

    def packet(self, payload: bytes, configuration: bytes | None) -> None:
        """Add the next packet; the first one needs the configuration of the stream."""
        if self._decoder is None:
            self._decoder = strict_decoder(self._codec, configuration)
        self._fed += 1
        self._compare(self._decoded(self._decoder, numbered_packet(self._fed - 1, payload)))

    def finish(self) -> PsnrFigures:
        """Return the PSNR figures of the cell; see `QualityAccumulator`."""
        if self._decoder is not None:
            self._compare(self._decoded(self._decoder, None))
        if not self._fed == self._shown == self._received:
            raise IntegrityError(
                f"{self._received} pictures gave {self._fed} packets, "
                f"and {self._shown} of them decode"
            )
        return self._tally.likeness

    def _decoded(
        self, decoder: VideoCodecContext, packet: Packet[VideoStream] | None
    ) -> list[av.VideoFrame]:
        try:
            return decode(decoder, packet)
        except FFmpegError as error:
            raise IntegrityError(f"packet {self._fed - 1} of a tile does not decode") from error

    def _compare(self, pictures: Iterable[av.VideoFrame]) -> None:
        for picture in pictures:
            if picture.pts != self._shown or not self._pending:
                raise IntegrityError(f"picture {self._shown} of a tile decoded out of order")
            self._tally.add(self._squares(self._pending.popleft(), picture))
            self._shown += 1


def verified_likeness(
    codec: str,
    configuration: bytes,
    packets: Sequence[bytes],
    sources: Iterable[SourcePicture],
    comparer: SitedFrameComparer,
) -> PsnrFigures:
    """Verify a complete cell as `CellVerifier` does."""
    check = CellVerifier(codec, comparer.compare)
    for payload, shot in zip_longest(packets, sources):
        if shot is not None:
            check.source(shot)
        if payload is not None:
            check.packet(payload, configuration)
    return check.finish()


@dataclass(frozen=True, slots=True)
class TileCodec:
    """A named way to encode tiles."""

    name: str
    codec: str  #: FFmpeg's name of the codec, or a name of our own
    encoder: str  #: FFmpeg's name of the encoder; see `vfsd.codecs.cells.cell_encoders`
    options: Mapping[str, str]
    rules: LayoutRules
    quality: int  #: the rate factor to start with; for `lossless` the compression level
    finest: int  #: the lowest rate factor
    coarsest: int  #: the highest rate factor of the encoder
    decibels: float  #: approximate PSNR change per step of the rate factor
    pixel_formats: Mapping[str, str]  #: encoded pixel format by that of the source

    @property
    def is_lossless(self) -> bool:
        """Whether decoded pictures equal the source at any quality."""
        return self.name == LOSSLESS

    def converted_format(self, pixel_format: str) -> str | None:
        """Return the format that pictures are converted to before they are cut into tiles.

        None: their samples are encoded as they are.
        """
        stored = self.pixel_formats[pixel_format]
        if without_range_name(pixel_format) == stored:
            return None
        return f"yuvj{stored.removeprefix('yuv')}" if names_full_range(pixel_format) else stored

    @property
    def takes_gop(self) -> bool:
        """Whether a cell may have more key pictures than its first; stitching needs one."""
        return self.name != STITCHABLE

    @property
    def takes_parts(self) -> bool:
        """Whether some tiles of a layout may be missing; stitching needs all of them."""
        return self.name != STITCHABLE


# One thread each, since many tiles are encoded at a time. Without B-frames, packet numbers are
# frame numbers, and decoders have no delay. `fastdecode` turns off CABAC and deblocking, which
# halves the decode time for a sixth more bytes.
_X264 = {
    "preset": "veryfast",
    "tune": "fastdecode",
    "x264-params": "bframes=0:keyint=infinite:scenecut=0:open-gop=0"
    ":threads=1:lookahead-threads=1:sliced-threads=0",
}
# As `fast`, but for few bytes. `stitchable` keeps the headers of all segments equal whatever they
# show, so that a view can copy them behind a single one. For the same reason, `keyint` does not
# depend on the length of a segment.
_X264_WEB = {
    "preset": "fast",
    "profile": "high",
    "forced-idr": "1",
    "x264-params": "bframes=0:keyint=infinite:scenecut=0:open-gop=0:stitchable=1"
    ":threads=1:lookahead-threads=1:sliced-threads=0",
}
_SVT_AV1 = {"preset": "10", "svtav1-params": "lp=1:keyint=-1:scd=0:fast-decode=2"}
_PLANAR = {
    f"yuv{sampling}p{depth}": f"yuv{sampling}p{depth}"
    for sampling in ("420", "422", "444")
    for depth in ("", "10le")
}
_FULL_RANGE = {f"yuvj{sampling}p": f"yuv{sampling}p" for sampling in ("420", "422", "444")}
# Browsers play 4:2:0 with 8 bits.
_WEB_FORMATS = {
    f"yuv{form}": "yuv420p"
    for sampling in ("420", "422", "440", "444")
    for form in (f"{sampling}p", f"j{sampling}p", f"{sampling}p10le", f"{sampling}p12le")
}

WEB_QUALITY = 26
"""The rate factor of browser renditions."""

TILE_CODECS = {
    codec.name: codec
    for codec in (
        TileCodec(
            name="fast",
            codec="h264",
            encoder="libx264",
            options=_X264,
            rules=LayoutRules(align=16, minimum_width=64, minimum_height=64),
            quality=20,
            finest=0,
            coarsest=51,
            decibels=0.8,
            pixel_formats={**_PLANAR, **_FULL_RANGE},
        ),
        TileCodec(
            name="small",
            codec="av1",
            encoder="libsvtav1",
            options=_SVT_AV1,
            rules=LayoutRules(align=16, minimum_width=64, minimum_height=64),
            quality=34,
            finest=1,
            coarsest=63,
            decibels=0.35,
            pixel_formats={"yuv420p": "yuv420p", "yuv420p10le": "yuv420p10le"},
        ),
        TileCodec(
            name=STITCHABLE,
            codec="hevc",
            encoder="libkvazaar",
            options={},  # all in `vfsd.codecs.stitching.kvazaar`
            rules=LayoutRules(
                align=TREE_BLOCK,
                minimum_width=64,
                minimum_height=64,
                maximum_columns=MAX_TILE_COLUMNS,
                maximum_rows=MAX_TILE_ROWS,
            ),
            quality=22,
            finest=0,
            coarsest=51,
            decibels=0.8,
            pixel_formats={"yuv420p": "yuv420p", "yuvj420p": "yuv420p"},
        ),
        TileCodec(
            name=WEB,
            codec="h264",
            encoder="libx264",
            options=_X264_WEB,
            rules=LayoutRules(align=16, minimum_width=16, minimum_height=16),
            quality=WEB_QUALITY,
            finest=0,
            coarsest=51,
            decibels=0.8,
            pixel_formats=_WEB_FORMATS,
        ),
        TileCodec(
            name=LOSSLESS,
            codec=LOSSLESS,
            encoder=LOSSLESS,
            options={},
            rules=LayoutRules(align=16, minimum_width=64, minimum_height=64),
            quality=1,
            finest=MAX_LEVEL,
            coarsest=1,
            decibels=math.inf,
            pixel_formats={name: name for name in LOSSLESS_PIXEL_FORMATS},
        ),
    )
}
"""Tile codecs by name."""


VIEW_CODECS = {
    name: TileCodec(
        name=name,
        codec=name,
        encoder="",
        options={},
        rules=LayoutRules(align=2, minimum_width=2, minimum_height=2),
        quality=0,
        finest=0,
        coarsest=0,
        decibels=1.0,
        pixel_formats={"yuv420p": "yuv420p", "yuvj420p": "yuv420p"},
    )
    for name in VIEW_PROFILES
}
"""Codecs of cells that were encoded for a view by `vfsd.codecs.encoding.encoder`, by name.

Tiles are never encoded in them.
"""


def tile_codec(name: str, media: MediaInfo) -> TileCodec:
    """Return the tile codec of that name for pictures of a video.

    Raises `UsageError` if there is none, or if it does not support the pixel format.
    """
    codec = TILE_CODECS.get(name)
    if codec is None:
        raise not_one_of("the tile codec", name, TILE_CODECS)
    if media.pixel_format not in codec.pixel_formats:
        raise UsageError(
            f"tile codec {name!r} does not support pixel format {media.pixel_format}",
            hint=f"{name} supports {', '.join(codec.pixel_formats)}",
        )
    return codec


def require_encoder(codec: TileCodec) -> None:
    """Raise `ExtraMissingError` if the encoder of such tiles is not installed."""
    if codec.name == STITCHABLE:
        require_kvazaar()


def _with_gop(options: Mapping[str, str], gop: int) -> dict[str, str]:
    """Return the options of an encoder for a key picture every `gop` pictures."""
    changed = {
        name: value.replace("keyint=infinite", f"keyint={gop}:min-keyint={gop}").replace(
            "keyint=-1", f"keyint={gop}"
        )
        for name, value in options.items()
    }
    if "x264-params" in changed:
        changed["forced-idr"] = "1"  # decoders start at these pictures
    return changed


class CellEncoder:
    """Encodes one cell from the pictures of a segment, and measures its quality.

    Raises `UsageError` if the encoder refuses, `IntegrityError` unless each packet decodes to its
    picture.
    """

    def __init__(
        self,
        codec: TileCodec,
        media: MediaInfo,
        rect: Rect,
        quality: int,
        gop: int | None = None,
    ) -> None:
        self._codec = codec
        self._gop = gop
        self._rect = rect
        self._media = media
        self._format = codec.pixel_formats[media.pixel_format]
        self._width, self._height = rect.width + rect.width % 2, rect.height + rect.height % 2
        self._context = self._opened(quality)
        self._comparer = SitedFrameComparer(media, rect.width, rect.height)
        self._check = CellVerifier(codec.codec, self._comparer.compare)
        self._siting: str | None = None  # chroma location of the first picture
        self._packets: list[bytes] = []
        self._received = 0
        self._held: deque[av.VideoFrame] = deque()  # sources of packets not yet decoded
        self._spare: list[av.VideoFrame] = []  # reused: allocating takes as long as filling

    def put(self, shot: SourcePicture) -> None:
        """Add the next whole picture of the segment."""
        picture = shot.picture
        tile = self._spare.pop() if self._spare else self._blank(shot)
        cut_out(picture, self._rect, tile)
        copy_colors(picture, tile)
        self._held.append(tile)
        # Otherwise the encoder repeats the decoded picture type.
        tile.pict_type = PictureType.I if self._is_key(self._received) else PictureType.NONE
        tile.pts = self._received
        tile.time_base = self._context.time_base
        self._received += 1
        self._check.source(shot.part(self._rect, tile))
        self._take(self._context.encode(tile))

    def finish(self) -> tuple[CellStream, PsnrFigures]:
        """Return the cell and its PSNR figures."""
        self._take(self._context.encode(None))
        likeness = self._check.finish()
        stream = CellStream(
            self._codec.codec,
            self._width,
            self._height,
            bytes(self._context.extradata or b""),
            self._packets,
            self._comparer.siting,
            self._gop,
        )
        return stream, likeness

    def _is_key(self, number: int) -> bool:
        return self._gop is not None and number % self._gop == 0

    def abandon(self) -> None:
        """Stop encoding and discard the cell."""
        # SVT-AV1 prints a warning if an encoder is closed without being flushed.
        with suppress(FFmpegError, EOFError):
            self._context.encode(None)

    def _opened(self, quality: int) -> VideoCodecContext:
        context = new_encoder(self._codec.encoder)
        context.width, context.height = self._width, self._height
        context.pix_fmt = self._format
        rate = _rate_of(self._media) if self._codec.name == WEB else NOMINAL_RATE
        context.framerate = rate
        context.time_base = 1 / rate
        context.thread_count = 1
        context.options = {
            "crf": str(quality),
            "flags": "+global_header+cgop",
            **color_options(self._media),
            **self._codec.options,
        }
        if self._codec.name == WEB:
            # Views copy the packets, and some players read these from the stream alone.
            context.sample_aspect_ratio = _sample_aspect_ratio(self._media) or Fraction(1)
        elif self._gop is not None:
            context.options = _with_gop(context.options, self._gop)
        try:
            open_encoder(context)
        except FFmpegError as error:
            raise UsageError(
                f"a tile of {self._width}x{self._height} cannot be encoded in "
                f"{self._codec.codec}: {error.strerror}"
            ) from error
        return context

    def _blank(self, shot: SourcePicture) -> av.VideoFrame:
        """Return a picture for a tile, with the chroma location of the first source picture."""
        if self._siting is None:
            self._siting = shot.siting
        return blank(self._width, self._height, self._format, self._siting, interlaced=False)

    def _take(self, packets: Iterable[Packet[VideoStream]]) -> None:
        for packet in packets:
            payload = bytes(packet)
            if self._is_key(len(self._packets)) and not packet.is_keyframe:
                raise IntegrityError(f"packet {len(self._packets)} of a tile is not a key packet")
            self._packets.append(payload)
            self._check.packet(payload, self._context.extradata)
        while len(self._held) > self._check.pending:
            self._spare.append(self._held.popleft())


_FORMAT = "yuv420p"
_MAX_RATE = 1000

PlanarBytes = npt.NDArray[np.uint8]
"""Flat samples; those of a picture are luma and both chroma planes in sequence."""


def encode_stitchable(
    codec: TileCodec,
    media: MediaInfo,
    tiles: Mapping[Rect, int],
    shots: Iterable[SourcePicture],
) -> list[tuple[CellStream, PsnrFigures]]:
    """Encode stitchable cells; see `encode_cells`.

    Tiles that cover the picture with one quality come from one run of kvazaar, others from a run
    each. The bytes are the same.
    """
    even = [_even_rect(rect) for rect in tiles]
    with tempfile.TemporaryFile() as file:
        stored = _PaddedPictures(file, shots, media)
        streams = _encoded_tiles(stored, media, dict(zip(even, tiles.values(), strict=True)))
        return [
            _measured_cell(codec, media, stored, rect, stream)
            for rect, stream in zip(tiles, streams, strict=True)
        ]


def _encoded_tiles(
    stored: _PaddedPictures, media: MediaInfo, tiles: Mapping[Rect, int]
) -> list[TileStream]:
    """Return the streams in the order of `tiles`."""
    whole, qualities = Rect.of_size(stored.width, stored.height), set(tiles.values())
    if len(qualities) == 1 and sum(rect.area for rect in tiles) == whole.area:
        settings = _tile_settings(media, whole, qualities.pop())
        widths = _edge_lengths({edge for rect in tiles for edge in (rect.x1, rect.x2)})
        heights = _edge_lengths({edge for rect in tiles for edge in (rect.y1, rect.y2)})
        found = encode_tiled(settings, widths, heights, stored.parts(whole))
        by_place = {stream.rect: stream for stream in found}
        return [by_place[rect] for rect in tiles]
    return [
        encode_tile(_tile_settings(media, rect, quality), stored.parts(rect), x=rect.x1, y=rect.y1)
        for rect, quality in tiles.items()
    ]


def _measured_cell(
    codec: TileCodec, media: MediaInfo, stored: _PaddedPictures, rect: Rect, stream: TileStream
) -> tuple[CellStream, PsnrFigures]:
    configuration = with_start_codes(stream.parameter_sets)
    comparer = SitedFrameComparer(media, rect.width, rect.height)
    shots = stored.shots(_even_rect(rect))
    likeness = verified_likeness(codec.codec, configuration, stream.pictures, shots, comparer)
    form = (codec.codec, _even_rect(rect).width, _even_rect(rect).height, configuration)
    return CellStream(*form, stream.pictures, comparer.siting), likeness


def _tile_settings(media: MediaInfo, rect: Rect, quality: int) -> EncoderSettings:
    """Return the encoder settings; equal for all tiles of a video except size and quality."""
    settings = EncoderSettings(
        codec="hevc",
        width=rect.width,
        height=rect.height,
        quality=quality,
        rate=_rate_of(media),
        sample_aspect_ratio=_sample_aspect_ratio(media),
    )
    return settings.with_colors_of(media)


def _rate_of(media: MediaInfo) -> Fraction:
    """Return the frames per second that a header declares."""
    rate = media.average_rate or NOMINAL_RATE
    return (rate if 0 < rate <= _MAX_RATE else NOMINAL_RATE).limit_denominator(1001)


def _sample_aspect_ratio(media: MediaInfo) -> Fraction | None:
    ratio = media.sample_aspect_ratio
    return None if ratio is None or ratio == 1 or ratio <= 0 else ratio


def _even_rect(rect: Rect) -> Rect:
    """Return the rectangle with even sides. Only sides at the edges of the picture may be odd."""
    return Rect(rect.x1, rect.y1, rect.x2 + rect.x2 % 2, rect.y2 + rect.y2 % 2)


def _edge_lengths(edges: set[int]) -> list[int]:
    return [end - start for start, end in pairwise(sorted(edges))]


class _PaddedPictures:
    """The pictures of a segment in a temporary file, padded to even sizes, with their RGB
    if given.
    """

    def __init__(self, file: IO[bytes], shots: Iterable[SourcePicture], media: MediaInfo) -> None:
        self.width, self.height = media.width + media.width % 2, media.height + media.height % 2
        self._planes = self.width * self.height * 3 // 2
        self._colours: list[tuple[int, ...]] = []  # shapes of the RGB arrays
        self._interlaced: list[bool] = []  # flag of each picture
        whole = Rect.of_size(media.width, media.height)
        self._siting = SITINGS[0]
        self._like = self._blank()
        self._file = file
        for shot in shots:
            if not self._interlaced:
                self._siting = shot.siting
                self._like = self._blank()
            cut_out(shot.picture, whole, self._like)
            copy_colors(shot.picture, self._like)
            self._colours = [one.shape for one in shot.colours]
            self._interlaced.append(shot.is_interlaced)
            try:
                planes = plane_bytes(self._like)
                file.writelines(np.ascontiguousarray(one).data for one in (*planes, *shot.colours))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                raise NoSpaceError(
                    f"the disk is full: {tempfile.gettempdir()} cannot hold the pictures of a "
                    "segment",
                    hint="set TMPDIR to a directory with more space",
                ) from error

    def _blank(self) -> av.VideoFrame:
        return blank(self.width, self.height, _FORMAT, self._siting, interlaced=False)

    def parts(self, rect: Rect) -> Iterator[PlanarBytes]:
        """Yield a part of each picture; `rect` has even edges."""
        for samples, _ in self._stored():
            yield np.concatenate([plane.ravel() for plane in self._cut(samples, rect)])

    def shots(self, rect: Rect) -> Iterator[SourcePicture]:
        """Yield a part of each picture as a new picture."""
        for (samples, colours), interlaced in zip(self._stored(), self._interlaced, strict=True):
            picture = blank_like(self._like, rect.width, rect.height)
            for plane, part in zip(plane_samples(picture), self._cut(samples, rect), strict=True):
                plane[...] = part
            yield SourcePicture(self._like, colours, interlaced, self._siting).part(rect, picture)

    def _stored(self) -> Iterator[tuple[PlanarBytes, list[PlanarBytes]]]:
        """Yield the flat planes of each picture, and its RGB arrays."""
        self._file.seek(0)
        while data := self._file.read(self._planes):
            colours = [
                np.frombuffer(self._file.read(math.prod(shape)), np.uint8).reshape(shape)
                for shape in self._colours
            ]
            yield np.frombuffer(data, np.uint8), colours

    def _cut(self, samples: PlanarBytes, rect: Rect) -> list[PlanarBytes]:
        luma, chroma = self.width * self.height, self.width * self.height // 4
        planes = (
            samples[:luma].reshape(self.height, self.width),
            samples[luma : luma + chroma].reshape(self.height // 2, self.width // 2),
            samples[luma + chroma :].reshape(self.height // 2, self.width // 2),
        )
        return [
            plane[rect.y1 // part : rect.y2 // part, rect.x1 // part : rect.x2 // part]
            for plane, part in zip(planes, (1, 2, 2), strict=True)
        ]


# Luma samples of pictures that one encoder gets before the next encoder. Its working set then
# stays in the caches: sixteen tiles take a tenth less time.
_MAX_HELD_SAMPLES = 32 << 20

EncodedCell = tuple[CellStream, PsnrFigures]
"""A cell and its PSNR figures."""


class _SegmentCellEncoder(Protocol):
    """Encodes one cell of a segment."""

    def put(self, shot: SourcePicture) -> None:
        """Add the next whole picture of the segment."""

    def finish(self) -> EncodedCell:
        """Return the cell, once all pictures were added."""

    def abandon(self) -> None:
        """Stop encoding and discard the cell."""


def encode_cells(
    codec: TileCodec,
    media: MediaInfo,
    tiles: Mapping[Rect, int],
    shots: Iterable[SourcePicture],
    between: Callable[[], None] = lambda: None,
    gop: int | None = None,
) -> list[EncodedCell]:
    """Return the cells of `tiles` with their measured quality, in order.

    Raises `UsageError` if the encoder refuses, or if a picture has another range or matrix than
    `media`, since cells have one. Raises `IntegrityError` unless each packet decodes to its
    picture.

    Args:
        codec: the tile codec
        media: description of the video
        tiles: quality by rectangle
        shots: whole pictures of `media`, iterated once
        between: called between pictures, while no new ones are taken; may raise to cancel
        gop: pictures from one key picture to the next; None: only the first is one
    """
    shots = _uniform_shots(shots, media)
    if codec.name == STITCHABLE:
        assert gop is None  # a stitched stream has its key pictures at the ends of segments
        return encode_stitchable(codec, media, tiles, shots)
    if codec.name == LOSSLESS:
        exact = [LosslessCellEncoder(media, rect, level, gop) for rect, level in tiles.items()]
        return _encode_separately(exact, media, shots, between)
    encoders = [CellEncoder(codec, media, rect, quality, gop) for rect, quality in tiles.items()]
    return _encode_separately(encoders, media, shots, between)


def _uniform_shots(shots: Iterable[SourcePicture], media: MediaInfo) -> Iterator[SourcePicture]:
    settler, siting = ColorNormalizer(media), None
    for shot in shots:
        if not settler.is_normal(shot.picture):
            raise UsageError(
                "the range or the matrix of the pictures changes within the video, and tiles "
                "need a single one",
                hint="such a video can be read and viewed, but not tiled or rendered",
            )
        siting = siting or shot.siting  # all cells have that of the first picture
        yield replace(shot, known_siting=siting)


def _encode_separately(
    encoders: Sequence[_SegmentCellEncoder],
    media: MediaInfo,
    shots: Iterable[SourcePicture],
    between: Callable[[], None],
) -> list[EncodedCell]:
    """Encode every tile by an encoder of its own."""
    left = iter(shots)
    together = max(1, _MAX_HELD_SAMPLES // (media.width * media.height)) if len(encoders) > 1 else 1
    try:
        while some := list(islice(left, together)):
            for encoder in encoders:
                for shot in some:
                    between()
                    encoder.put(shot)
    except BaseException:
        for encoder in encoders:
            encoder.abandon()
        raise
    return [encoder.finish() for encoder in encoders]
