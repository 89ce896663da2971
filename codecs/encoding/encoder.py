"""Encodes pictures: a stream of packets, or a single image.

Encoder libraries change the state of the process, stall or waste cores in some settings, so
`vfsd.codecs.pyav.open_encoder` opens all of them:

- It restores thread priorities, because SVT-AV1 takes SCHED_FIFO as root.
- SVT-AV1 never uses ``pred-struct=1``, and with small groups each of its steps has one thread
  (``lp=1``). SVT-AV1 4.1 hung in 2 of 86 files with the first, and in 7 of 8,063 with small groups
  and more threads; with both rules in none of 14,404.
- x265 shares the rows of a picture among two threads: a second of 1080p takes 0.79 s on two cores
  instead of 1.52, with 0.4 % more bytes.
- AV1 views use preset 9 at 28 and may reorder. Written files have no B-frames, so that a prefix of
  a file is complete.
- FFV1 uses only slice counts that a trial encode proves lossless.
"""

from __future__ import annotations

import dataclasses
import io
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.error import FFmpegError
from av.filter import Graph
from av.video.codeccontext import VideoCodecContext
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.nal import av1_sequence_header, without_temporal_delimiter
from vfsd.codecs.bitstreams.splice_parameter_sets import with_parameter_set_id, with_pps_id
from vfsd.codecs.frames.color import ColorCodes, color_codes, planes_range
from vfsd.codecs.frames.planes import plane_bytes, plane_samples
from vfsd.codecs.pyav import decode, new_decoder, new_encoder, open_encoder
from vfsd.core.model import MediaInfo
from vfsd.errors import UsageError

_PREFERRED_SLICES = 4
_MAX_SLICES = 256
# FFV1 splits a picture into two columns and two rows of slices.
_MAX_ASPECT = 2


@lru_cache(1024)
def ffv1_slices(width: int, height: int, pixel_format: str) -> int:
    """Return a number of FFV1 slices that keeps every sample: four if possible, else the next that
    does.

    FFmpeg loses samples where slices split chroma samples. If four slices do not fit evenly, this
    encodes a test picture, and a few more until one number works.
    """
    form = av.VideoFormat(pixel_format)
    across, down = 16 // form.chroma_width(16), 16 // form.chroma_height(16)
    if across == down == 1 or width % (_MAX_ASPECT * across) == height % (_MAX_ASPECT * down) == 0:
        return _PREFERRED_SLICES
    picture = av.VideoFrame(width, height, pixel_format)
    for plane in plane_bytes(picture):
        plane[...] = 1
    for number in chain(range(_PREFERRED_SLICES, _MAX_SLICES + 1), range(1, _PREFERRED_SLICES)):
        if _is_lossless(picture, number):
            return number
    return _PREFERRED_SLICES  # the encoder reports the error


def _is_lossless(picture: av.VideoFrame, slices: int) -> bool:
    """Return whether FFV1 with so many slices restores every sample."""
    encoder, decoder = new_encoder("ffv1"), new_decoder("ffv1")
    encoder.width, encoder.height = picture.width, picture.height
    encoder.pix_fmt, encoder.time_base = picture.format.name, Fraction(1, 25)
    encoder.options = {"level": "3", "coder": "0", "context": "0", "slices": str(slices)}
    try:
        packets = [*encoder.encode(picture), *encoder.encode(None)]
    except FFmpegError:  # the encoder does not open with this number
        return False
    decoder.extradata = encoder.extradata
    decoder.width, decoder.height = picture.width, picture.height
    (shown,) = [*decode(decoder, packets[0]), *decode(decoder, None)]
    planes = zip(plane_bytes(picture), plane_bytes(shown), strict=True)
    return all(np.array_equal(one, other) for one, other in planes)


PictureInput = av.VideoFrame | npt.NDArray[Any]
"""A frame, or its planes one after the other as `PixelConverter` returns them."""

MAX_ENCODED_SIDE = 16384
MIN_ENCODED_SIDE: Mapping[str, int] = MappingProxyType(
    {"h264": 2, "hevc": 16, "av1": 16, "mjpeg": 2, "ffv1": 16}
)
WORST_QUALITY: Mapping[str, int] = MappingProxyType(
    {"h264": 51, "hevc": 51, "av1": 63, "mjpeg": 31, "ffv1": 0}
)
"""The coarsest quantizer of each codec."""
INTRA_ENCODERS = ("mjpeg", "ffv1")
"""Codecs in which every packet is a key packet."""
ODD_SIZE_CODECS = ("av1",)
"""Codecs that encode odd sizes.

The first packet holds the reference of all others, so it does not predict their sizes.
"""

_X264 = (
    "bframes=0:keyint=infinite:scenecut=0:open-gop=0:rc-lookahead=0"
    ":mbtree=0"  # results of mbtree differ from run to run with AVX-512
    ":stitchable=1"  # keeps the quality out of the picture parameter set
    ":threads=1:lookahead-threads=1:sliced-threads=0"
)
_X265 = (
    "bframes=0:keyint=-1:scenecut=0:open-gop=0:rc-lookahead=1"
    ":repeat-headers=0:info=0:log-level=none:frame-threads=1"
    ":wpp=1:pools=2"  # halves the latency of a single segment on two cores
)
_ENCODERS = {
    "h264": ("libx264", {"preset": "veryfast", "x264-params": _X264}),
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": _X265}),
    # 30 pictures of 960x540: preset 9 gives 331 kB (40.1 dB) at 99 pictures/s, preset 8 gives 286
    # kB (40.5 dB) at 59 pictures/s. Presets from 10 on warn of artifacts.
    "av1": ("libsvtav1", {"preset": "9", "svtav1-params": "lp=1:keyint=-1:scd=0"}),
    "mjpeg": ("mjpeg", {"huffman": "optimal"}),
    # Golomb coding limits a sample to 20 bits, and encodes in two thirds of the time.
    "ffv1": (
        "ffv1",
        {"level": "3", "coder": "0", "context": "0", "g": "1", "slicecrc": "1"},
    ),
}
# Encoder threads, as many as slices in most cases. The bytes do not depend on them.
_THREADS = {"ffv1": 4}
_TREE_BLOCK = 32  #: coding tree block of x265's preset
_FFMPEG_FORMATS = {"yuv420p10": "yuv420p10le"}
_JPEG_FORMAT = "yuvj420p"
# Color spaces that `PixelConverter` converts by BT.601.
_BT601 = (None, "bt470bg", "smpte170m", "rgb")
_UNKNOWN_TO_ENCODERS = ("ebu3213",)
_MATRIX_OF_RGB = "smpte170m"
_H264_SEI = 6
NOMINAL_RATE = Fraction(25)
"""The frame rate that encoders get.

Encoders spend more bits on pictures that are shown for longer, so a low rate would cost many times
the bytes. The true rate is written into the parameter sets afterwards.
"""
_TICKS_PER_PICTURE = {"h264": 2, "hevc": 1}


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """How to encode. Colors have the names of `MediaInfo`; None means unspecified."""

    codec: str  #: one of `vfsd.core.output_formats.CODECS`
    width: int  #: even, except for FFV1
    height: int  #: even, except for FFV1
    quality: int
    """Constant rate factor, 0 (best) to `WORST_QUALITY`; for JPEG the quantizer, from 2 on."""
    rate: Fraction  #: nominal frames per second in the stream; the container has the timestamps
    sample_aspect_ratio: Fraction | None = None
    color_range: str | None = None
    color_space: str | None = None
    color_primaries: str | None = None
    color_transfer: str | None = None
    profile: str | None = None  #: H.264: baseline, main or high; None: the encoder chooses
    number: int = 0  #: ID of the parameter sets: H.264 below 32, HEVC below 16
    smallest_block: int | None = None
    """HEVC: MinCbSizeY, 8, 16 or 32 pixels; the coded size is a multiple of it."""
    pixel_format: str = "yuv420p"
    """A pixel format of the codec in `vfsd.core.output_formats.CODECS`; FFV1: also of
    `raw_layout`."""

    @property
    def color_codes(self) -> ColorCodes:
        return color_codes(
            self.color_range, self.color_space, self.color_primaries, self.color_transfer
        )

    @property
    def bits(self) -> int:
        """Bits per sample."""
        return int(av.VideoFormat(_encoder_format(self)).components[0].bits)

    def with_colors_of(self, media: MediaInfo) -> EncoderSettings:
        """Return settings for planes of `media` as `PixelConverter` returns them."""
        is_rgb, in_yuv = media.color_space == "rgb", self.pixel_format.startswith(("yuv", "gray"))
        return dataclasses.replace(
            self,
            color_range=planes_range(media),
            color_space=_MATRIX_OF_RGB if in_yuv and is_rgb else media.color_space,
            color_primaries=media.color_primaries,
            color_transfer=media.color_transfer,
        )


def require_encodable(codec: str, width: int, height: int) -> None:
    """Raise `UsageError` if the encoder does not support the size."""
    if min(width, height) < MIN_ENCODED_SIDE[codec] or max(width, height) > MAX_ENCODED_SIDE:
        raise UsageError(
            f"width and height must be {MIN_ENCODED_SIDE[codec]} to {MAX_ENCODED_SIDE} pixels for "
            f"{codec}, got {width}x{height}"
        )


def parameter_sets(settings: EncoderSettings) -> tuple[bytes, ...]:
    """Return the parameter sets of the header; equal for settings that differ in quality only.

    NAL units of H.264 and HEVC, the sequence header of AV1, the configuration of FFV1; empty for
    JPEG.
    """
    if settings.codec == "av1":
        # The header of an encoder without pictures differs from the one that it writes later.
        gray = av.VideoFrame(settings.width, settings.height, _encoder_format(settings))
        for plane in plane_samples(gray):
            plane[...] = 0
        return (av1_sequence_header(next(encode_pictures(settings, [gray]))),)
    extradata = _open_context(settings).extradata or b""
    if settings.codec in INTRA_ENCODERS:
        return (extradata,) if extradata else ()
    sets = nal.parameter_sets(settings.codec, extradata)
    timed = tuple(_with_rate(settings.codec, unit, settings.rate) for unit in sets)
    if settings.codec == "hevc" and settings.number:
        return tuple(with_parameter_set_id(unit, settings.number) for unit in timed)
    return timed


def encode_pictures(settings: EncoderSettings, pictures: Iterable[PictureInput]) -> Iterator[bytes]:
    """Yield one packet for each picture, without parameter sets.

    Packets of H.264 and HEVC have start codes. The first is a key packet, and the only one unless
    the codec is in `INTRA_ENCODERS`. Raises `UsageError` if the encoder refuses the pictures.
    """
    context = _open_context(settings)
    framed = _FrameBuilder(settings, context)
    count = sent = 0
    try:
        for count, picture in enumerate(pictures, start=1):
            for packet in context.encode(framed.frame(picture, count - 1)):
                yield _packet_payload(settings, bytes(packet), sent)
                sent += 1
        for packet in context.encode(None) if count else ():
            yield _packet_payload(settings, bytes(packet), sent)
            sent += 1
    except GeneratorExit:
        if settings.codec == "av1":
            # SVT-AV1 prints a warning if an encoder is closed without being flushed.
            with suppress(FFmpegError, EOFError):
                context.encode(None)
        raise


def _encoder_format(settings: EncoderSettings) -> str:
    return _FFMPEG_FORMATS.get(settings.pixel_format, settings.pixel_format)


def _quality_options(settings: EncoderSettings) -> dict[str, str]:
    value = str(settings.quality)
    if settings.codec == "mjpeg":
        return {"qmin": value, "qmax": value}
    return {} if settings.codec == "ffv1" else {"crf": value}


def _slice_options(settings: EncoderSettings) -> dict[str, str]:
    if settings.codec != "ffv1":
        return {}
    return {"slices": str(ffv1_slices(settings.width, settings.height, _encoder_format(settings)))}


def _open_context(settings: EncoderSettings) -> VideoCodecContext:
    require_encodable(settings.codec, settings.width, settings.height)
    name, options = _ENCODERS[settings.codec]
    context = new_encoder(name)
    context.width, context.height = settings.width, settings.height
    is_jpeg = settings.codec == "mjpeg"
    context.pix_fmt = _JPEG_FORMAT if is_jpeg else _encoder_format(settings)
    context.framerate = NOMINAL_RATE
    context.time_base = 1 / NOMINAL_RATE
    context.thread_type = "SLICE"
    context.thread_count = _THREADS.get(settings.codec, 1)
    if settings.sample_aspect_ratio is not None:
        context.sample_aspect_ratio = settings.sample_aspect_ratio
    context.options = {
        **({} if is_jpeg else {"flags": "+global_header+cgop", **color_options(settings)}),
        **_quality_options(settings),
        **options,
        **_slice_options(settings),
        **_splice_options(settings),
    }
    try:
        open_encoder(context)
    except FFmpegError as error:
        raise UsageError(
            f"{settings.width}x{settings.height} at {settings.rate} frames per second cannot be "
            f"encoded in {settings.codec}: {error.strerror}"
        ) from error
    return context


def _splice_options(settings: EncoderSettings) -> dict[str, str]:
    """Return options for packets that share a file with those of another encoder."""
    options = {}
    if settings.profile is not None:
        options["profile"] = settings.profile
    if settings.number and settings.codec == "h264":
        options["x264-params"] = f"{_X264}:sps-id={settings.number}"
    if settings.smallest_block is not None:
        block = settings.smallest_block
        options["x265-params"] = f"{_X265}:min-cu-size={block}:ctu={max(_TREE_BLOCK, block)}"
    return options


def _with_rate(codec: str, unit: bytes, rate: Fraction) -> bytes:
    """Return a parameter set with the nominal rate (as ticks per second) replaced by `rate`."""
    ticks = _TICKS_PER_PICTURE[codec]
    nominal = NOMINAL_RATE.denominator << 32 | NOMINAL_RATE.numerator * ticks
    timing = rate.denominator << 32 | rate.numerator * ticks
    payload = nal.unescaped(unit)
    value = int.from_bytes(payload, "big")
    for shift in range(len(payload) * 8 - 64 + 1):
        if value >> shift & (1 << 64) - 1 == nominal:
            value ^= (nominal ^ timing) << shift
            return nal.escaped(value.to_bytes(len(payload), "big"))
    return unit


def color_options(colors: EncoderSettings | MediaInfo) -> dict[str, str]:
    """Return the declared colors as options of an encoder."""
    fields = {
        "color_range": colors.color_range,
        "colorspace": colors.color_space,
        "color_primaries": colors.color_primaries,
        "color_trc": colors.color_transfer,
    }
    return {key: name for key, name in fields.items() if name and name not in _UNKNOWN_TO_ENCODERS}


class _FrameBuilder:
    """Converts pictures to frames for an encoder."""

    def __init__(self, settings: EncoderSettings, context: VideoCodecContext) -> None:
        self._settings = settings
        self._time_base = context.time_base
        self._reformatter = VideoReformatter()

    def frame(self, picture: PictureInput, ordinal: int) -> av.VideoFrame:
        settings = self._settings
        if isinstance(picture, np.ndarray):
            picture = _planar_frame(picture, settings)
        if settings.codec == "mjpeg":
            picture = self._as_jpeg(picture)
        picture.pts = ordinal
        picture.time_base = self._time_base
        picture.pict_type = 0  # otherwise the encoder repeats the decoded picture type
        return picture

    def _as_jpeg(self, picture: av.VideoFrame) -> av.VideoFrame:
        settings = self._settings
        is_full = settings.color_range == "full"
        return self._reformatter.reformat(
            picture,
            format=_JPEG_FORMAT,
            src_colorspace=_colorspace(settings.color_space),
            dst_colorspace=Colorspace.ITU601,
            src_color_range=ColorRange.JPEG if is_full else ColorRange.MPEG,
            dst_color_range=ColorRange.JPEG,
            threads=1,
        )


def _planar_frame(samples: npt.NDArray[Any], settings: EncoderSettings) -> av.VideoFrame:
    """Return a frame from planes that follow each other in one array."""
    frame = av.VideoFrame(settings.width, settings.height, _encoder_format(settings))
    flat, at = samples.reshape(-1), 0
    for plane in plane_samples(frame):
        plane[...] = flat[at : at + plane.size].reshape(plane.shape)
        at += plane.size
    return frame


def _colorspace(name: str | None) -> int:
    """Return the matrix for FFmpeg's scaler, which knows only some; BT.601 for all others."""
    if name in _BT601:
        return Colorspace.ITU601
    matrices = {"bt709": 1, "fcc": 4, "smpte240m": 7, "bt2020nc": 9, "bt2020c": 9}
    return matrices.get(name or "", Colorspace.ITU601)


def _packet_payload(settings: EncoderSettings, packet: bytes, ordinal: int) -> bytes:
    """Remove what containers do not store, and x264's SEI message with its version and options."""
    if settings.codec == "av1":
        return without_temporal_delimiter(packet)
    if settings.codec == "hevc" and settings.number:
        units = (packet[a:b] for a, b in nal.nal_units(packet, 0))
        return b"".join(nal.START_CODE + with_pps_id(unit, settings.number) for unit in units)
    if settings.codec != "h264" or ordinal:
        return packet
    kept = (packet[a:b] for a, b in nal.nal_units(packet, 0) if packet[a] & 0x1F != _H264_SEI)
    return b"".join(nal.START_CODE + unit for unit in kept)


MIN_JPEG_QUANTISER, MAX_JPEG_QUANTISER = 2, 31
"""Bounds of the quantizer scale."""

_PNG_FORMATS = {
    (3, "uint8"): ("rgb24", "rgb24"),
    (1, "uint8"): ("gray", "gray"),
    (3, "uint16"): ("rgb48le", "rgb48be"),
    (1, "uint16"): ("gray16le", "gray16be"),
}


def encode_png(pixels: npt.NDArray[Any], *, compression: int = 3) -> bytes:
    """Return a PNG file of `pixels`: height x width x 3 RGB or x 1 gray, uint8 or uint16.

    `compression` is zlib's level. Raises `UsageError` for another shape or type.
    """
    return _encode_still(
        "png",
        *_PNG_FORMATS[_pixel_form(pixels)],
        pixels,
        {"compression_level": str(compression), "pred": "mixed"},
    )


def encode_jpeg(pixels: npt.NDArray[np.uint8], *, quantiser: int = 3) -> bytes:
    """Return a baseline JPEG (JFIF) file of `pixels`: height x width x 3 RGB or x 1 gray, uint8.

    The file has 4:2:0 chroma; for gray it is neutral. `quantiser` is `MIN_JPEG_QUANTISER` to
    `MAX_JPEG_QUANTISER`. Raises `UsageError` for another shape or type.
    """
    channels, dtype = _pixel_form(pixels)
    if dtype != "uint8":
        raise UsageError(f"JPEG needs uint8 pixels, got {dtype}")
    options = {"qmin": str(quantiser), "qmax": str(quantiser), "huffman": "optimal"}
    return _encode_still("mjpeg", "rgb24" if channels == 3 else "gray", "yuvj420p", pixels, options)


def _pixel_form(pixels: npt.NDArray[Any]) -> tuple[int, str]:
    form = (pixels.shape[-1], pixels.dtype.name)
    if pixels.ndim != 3 or form not in _PNG_FORMATS:
        raise UsageError(
            f"a picture must be gray or RGB pixels, got {pixels.shape} of {pixels.dtype}"
        )
    return form


def _encode_still(
    codec: str,
    given: str,
    stored: str,
    pixels: npt.NDArray[Any],
    options: Mapping[str, str],
) -> bytes:
    array = np.ascontiguousarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    frame = av.VideoFrame.from_ndarray(array, format=given).reformat(format=stored, threads=1)
    frame.pts = 0
    context = new_encoder(codec)
    context.width, context.height, context.pix_fmt = frame.width, frame.height, stored
    context.time_base = Fraction(1, 25)
    context.thread_count = 1
    context.sample_aspect_ratio = Fraction(1)  # makes FFmpeg write a JFIF header
    context.options = {**options, "flags": "+bitexact"}  # omits the version of the encoder
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])


RgbArray = npt.NDArray[np.uint8]
"""height x width x 3."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_STORED_BLOCK = 65535
# Signature 8, IHDR 25, IDAT without data 12 + 2 + 4 (zlib header, Adler-32), IEND 12.
_PNG_BYTES = 63
_BLOCK_BYTES = 5


def uncompressed_png_size(width: int, height: int, pixel_bytes: int = 3) -> int:
    """Return the size in bytes of the result of `uncompressed_png`."""
    rows = height * (1 + pixel_bytes * width)
    return _PNG_BYTES + rows + _BLOCK_BYTES * -(-rows // _STORED_BLOCK)


def uncompressed_png(pixels: RgbArray | npt.NDArray[np.uint16]) -> bytes:
    """Return a PNG file without compression, of height x width x 3 RGB or x 1 gray pixels."""
    height, width, channels = pixels.shape
    samples = pixels.reshape(height, -1)
    if samples.itemsize == 2:
        samples = np.ascontiguousarray(samples, ">u2").view(np.uint8)
    rows = np.zeros((height, 1 + samples.shape[1]), np.uint8)  # each begins with filter type 0
    rows[:, 1:] = samples
    data = memoryview(rows.reshape(-1).data)
    parts = [b"\x78\x01"]
    for start in range(0, len(data), _STORED_BLOCK):
        block = data[start : start + _STORED_BLOCK]
        last = start + len(block) == len(data)
        parts.append(struct.pack("<BHH", last, len(block), len(block) ^ 0xFFFF))
        parts.append(bytes(block))
    parts.append(struct.pack(">I", zlib.adler32(data)))
    color = 2 if channels == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 8 * pixels.itemsize, color, 0, 0, 0)
    body = _png_chunk(b"IDAT", b"".join(parts))
    return b"".join((_SIGNATURE, _png_chunk(b"IHDR", header), body, _png_chunk(b"IEND", b"")))


# Tried in turn; 16 colors, two pixels a byte, always fit.
_PALETTE_SIZES = (256, 128, 64, 32, 16)
_PALETTE_LEVEL = 6
# Signature 8, IHDR 25, PLTE 12 + 768, IDAT 12, padding 12, IEND 12.
_PALETTE_PNG_BYTES = 849
_PALETTE_BYTES = 768
# Private, and editors may copy it.
_PADDING = b"paDd"
# Colors are matched with 6 bits a channel, so that each color is matched only once.
_SHIFT = 2
# Bayer's matrix, scaled to steps that hide the bands in skies and walls.
_DITHER = (
    np.array([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]], np.int16) // 2 - 4
)


def palette_png_size(width: int, height: int) -> int:
    """Return the size in bytes of the result of `palette_png`.

    It is that of 16 colors without compression, a sixth of RGB.  Most pictures keep more colors,
    because they are compressed into the same size.
    """
    rows = height * (1 + -(-width // 2))
    # zlib's bound for data that cannot be compressed.
    return _PALETTE_PNG_BYTES + rows + (rows >> 12) + (rows >> 14) + (rows >> 25) + 13


def palette_png(pixels: RgbArray, exact: Sequence[tuple[int, int, int]] = ()) -> bytes:
    """Return a PNG file of `exact` colors, the important ones first, and of those that fit best.

    The file has as many colors as `palette_png_size` has space for.  At most half of them are of
    `exact`, whose pixels are not dithered.
    """
    height, width, _ = pixels.shape
    size = palette_png_size(width, height)
    for colors in _PALETTE_SIZES:
        kept = np.array(exact[: colors // 2], np.uint8).reshape(-1, 3)
        palette = np.concatenate([kept, _best_colors(pixels, colors - len(kept))])
        data = _compressed_indices(_nearest(pixels, palette, kept), 4 if colors == 16 else 8)
        room = size - _PALETTE_PNG_BYTES - len(data) + _PALETTE_BYTES - 3 * len(palette)
        if room >= 0:
            break
    header = struct.pack(">IIBBBBB", width, height, 4 if colors == 16 else 8, 3, 0, 0, 0)
    return b"".join(
        (
            _SIGNATURE,
            _png_chunk(b"IHDR", header),
            _png_chunk(b"PLTE", palette.tobytes()),
            _png_chunk(b"IDAT", data),
            _png_chunk(_PADDING, bytes(room)),
            _png_chunk(b"IEND", b""),
        )
    )


def _compressed_indices(indices: npt.NDArray[np.uint8], bits: int) -> bytes:
    """Return the rows of indices, each after filter type 0, which suits palettes best."""
    height, width = indices.shape
    if bits == 4:
        pairs = np.zeros((height, width + width % 2), np.uint8)
        pairs[:, :width] = indices
        indices = (pairs[:, ::2] << np.uint8(4)) | pairs[:, 1::2]
    rows = np.zeros((height, 1 + indices.shape[1]), np.uint8)
    rows[:, 1:] = indices
    return zlib.compress(rows.tobytes(), _PALETTE_LEVEL)


def _best_colors(pixels: RgbArray, count: int) -> npt.NDArray[np.uint8]:
    """Return at most `count` colors, x 3."""
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
    frame.pts = 0
    graph = Graph()
    source = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1, 25)
    )
    options = f"max_colors={max(2, count)}:reserve_transparent=0"
    maker, sink = graph.add("palettegen", options), graph.add("buffersink")
    source.link_to(maker)
    maker.link_to(sink)
    graph.configure()
    graph.push(frame)
    graph.push(None)
    made = graph.pull()
    assert isinstance(made, av.VideoFrame)
    # Of 256 entries, those that are not used repeat the last one.
    colors: npt.NDArray[np.uint8] = made.to_ndarray(format="rgb24").reshape(-1, 3).astype(np.uint8)
    return np.unique(colors, axis=0)[:count]


def _nearest(
    pixels: RgbArray, palette: npt.NDArray[np.uint8], kept: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    """Return the index of the nearest color of `palette` for each pixel.

    Pixels are dithered, except those of the colors `kept`, the first ones of `palette`.
    """
    height, width, _ = pixels.shape
    offsets = np.tile(_DITHER, (-(-height // 4), -(-width // 4)))[:height, :width, None]
    codes = _color_codes(np.clip(pixels.astype(np.int16) + offsets, 0, 255))
    used = np.flatnonzero(np.bincount(codes.reshape(-1), minlength=1 << 18))
    colors = np.stack([used >> 12, used >> 6 & 63, used & 63], axis=-1).astype(np.float32)
    colors = colors * (1 << _SHIFT) + (1 << _SHIFT) / 2 - 0.5
    wanted = palette.astype(np.float32)
    table = np.zeros(1 << 18, np.uint8)
    # |p|^2 - 2 c p orders the palette as the distance does.
    squares = (wanted**2).sum(axis=1)
    for start in range(0, len(used), 1 << 14):
        part = slice(start, start + (1 << 14))
        table[used[part]] = (squares - 2 * colors[part] @ wanted.T).argmin(axis=1)
    indices: npt.NDArray[np.uint8] = table[codes]
    given = pixels.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)
    for index, color in enumerate(kept.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1])):
        indices[given == color] = index
    return indices


def _color_codes(pixels: npt.NDArray[np.int16]) -> npt.NDArray[np.int32]:
    reduced = pixels.astype(np.int32) >> _SHIFT
    codes: npt.NDArray[np.int32] = reduced[:, :, 0] << 12 | reduced[:, :, 1] << 6 | reduced[:, :, 2]
    return codes


def npy_file_size(width: int, height: int) -> int:
    """Return the size in bytes of the result of `npy_file`."""
    return len(_npy_header(height, width)) + width * height * 3


def npy_file(pixels: RgbArray) -> bytes:
    """Return a .npy file of one C-contiguous uint8 array, height x width x 3."""
    height, width, _ = pixels.shape
    return _npy_header(height, width) + pixels.tobytes()


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    check = zlib.crc32(body, zlib.crc32(kind))
    return b"".join((struct.pack(">I", len(body)), kind, body, struct.pack(">I", check)))


def _npy_header(height: int, width: int) -> bytes:
    stream = io.BytesIO()
    form = {"descr": "|u1", "fortran_order": False, "shape": (height, width, 3)}
    np.lib.format.write_array_header_1_0(stream, form)
    return stream.getvalue()
