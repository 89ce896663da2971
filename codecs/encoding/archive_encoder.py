"""Re-encodes runs of frames that replace an original.

Each run is decoded again and compared with its source; `coarsest_run` searches the highest CRF
within an error limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.error import FFmpegError
from av.video.codeccontext import VideoCodecContext

from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.encoding.encoder import NOMINAL_RATE, color_options
from vfsd.codecs.frames.color import SITINGS, frame_colors
from vfsd.codecs.frames.planes import (
    chroma_subsampling,
    copy_colors,
    copy_picture,
    plane_pixels,
    plane_subsampling,
)
from vfsd.codecs.inventory.side_data import UNKNOWN, carried_data, side_data_title
from vfsd.codecs.pyav import decode, new_encoder, numbered_packet, open_encoder, strict_decoder
from vfsd.core.model import MediaInfo, psnr_from_error
from vfsd.errors import IntegrityError, RefusedMediaError, UsageError


def frame_error(one: av.VideoFrame, other: av.VideoFrame) -> float:
    """Return the error of the plane that differs most; see `vfsd.core.model`.

    Raises `IntegrityError` if size or format differ.
    """
    planes, others = plane_pixels(one), plane_pixels(other)
    if [plane.shape for plane in planes] != [plane.shape for plane in others]:
        raise IntegrityError(
            f"a picture must have {one.width}x{one.height} {one.format.name}, "
            f"got {other.width}x{other.height} {other.format.name}"
        )
    squares = (
        float(cv2.norm(a, b, cv2.NORM_L2SQR)) / a.size for a, b in zip(planes, others, strict=True)
    )
    return math.sqrt(max(squares)) / ((1 << one.format.components[0].bits) - 1)


def frame_pairs(
    source: FrameDecoder, made: FrameDecoder, frames: range
) -> Iterator[tuple[int, av.VideoFrame, av.VideoFrame]]:
    """Yield (number, frame of `source`, frame of `made`) for each of `frames`.

    Raises `IntegrityError` if one of the files does not yield a frame, and `RefusedMediaError` if
    the colors or the side data of both differ.
    """
    pictures, others = (each.stream(frames.start, frames.stop) for each in (source, made))
    for (number, one), (other_number, other) in zip(pictures, others, strict=True):
        assert number == other_number
        if frame_colors(one) != frame_colors(other):
            raise RefusedMediaError(f"the colors of frame {number} would change")
        _require_same_data(number, carried_data(one), carried_data(other))
        yield number, one, other


def require_kept_data(number: int, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> None:
    """Raise `RefusedMediaError` if side data of a frame would be lost or changed.

    Both mappings come from `vfsd.codecs.inventory.side_data.carried_data`.
    """
    unknown = {UNKNOWN} & before.keys()  # it cannot be compared
    changed = {kind for kind in before.keys() & after.keys() if before[kind] != after[kind]}
    if lost := sorted((before.keys() - after.keys()) | changed | unknown):
        named = ", ".join(map(side_data_title, lost))
        raise RefusedMediaError(
            f"side data of frame {number} would be lost or changed: {named}",
            hint="the original stays; a copy without that data can be replaced",
        )


def _require_same_data(
    number: int, before: Mapping[str, bytes], after: Mapping[str, bytes]
) -> None:
    require_kept_data(number, before, after)
    if added := sorted(after.keys() - before.keys()):
        named = ", ".join(map(side_data_title, added))
        raise RefusedMediaError(f"side data would be added to frame {number}: {named}")


def blended(
    background: av.VideoFrame, picture: av.VideoFrame, mask: npt.NDArray[np.uint8] | None
) -> av.VideoFrame:
    """Return a new picture: `picture` where the mask is set, `background` elsewhere.

    The mask is rows x columns of luma (None: nothing is set), constant over each chroma sample.
    """
    result = av.VideoFrame(picture.width, picture.height, picture.format.name)
    copy_picture(background, result)
    if mask is not None:
        planes = zip(plane_pixels(picture), plane_pixels(result), strict=True)
        for number, (source, target) in enumerate(planes):
            np.copyto(target, source, where=_plane_mask(mask, picture, number) != 0)
    return result


def low_passed(picture: av.VideoFrame, radius: int) -> av.VideoFrame:
    """Return a new picture with each sample averaged over `radius` luma pixels to each side."""
    result = av.VideoFrame(picture.width, picture.height, picture.format.name)
    copy_colors(picture, result)
    planes = zip(plane_pixels(picture), plane_pixels(result), strict=True)
    for number, (source, target) in enumerate(planes):
        across, down = plane_subsampling(picture, number)
        size = (2 * (radius // across) + 1, 2 * (radius // down) + 1)
        target[...] = cv2.blur(source, size)
    return result


def masked_error(
    one: av.VideoFrame, other: av.VideoFrame, mask: npt.NDArray[np.uint8] | None
) -> float:
    """Return the error as `frame_error` does, where the mask is set only; 0 for None."""
    if mask is None:
        return 0.0
    worst = 0.0
    planes = zip(plane_pixels(one), plane_pixels(other), strict=True)
    for number, (a, b) in enumerate(planes):
        inside = _plane_mask(mask, one, number)
        count = int(np.count_nonzero(inside))
        if count:
            worst = max(worst, float(cv2.norm(a, b, cv2.NORM_L2SQR, inside)) / count)
    return math.sqrt(worst) / ((1 << one.format.components[0].bits) - 1)


def _plane_mask(
    mask: npt.NDArray[np.uint8], picture: av.VideoFrame, number: int
) -> npt.NDArray[np.uint8]:
    across, down = plane_subsampling(picture, number)
    return np.ascontiguousarray(mask[::down, ::across])


ErrorMeasure = Callable[[int, av.VideoFrame, av.VideoFrame], float]
"""Returns the error of picture number n of a run, from its source and its decoded form."""


@dataclass(frozen=True, slots=True)
class ArchiveCodec:
    """A way to encode a whole video."""

    name: str  #: FFmpeg's name of the codec
    encoder: str  #: FFmpeg's name of the encoder
    options: Mapping[str, str]
    quality: int  #: the rate factor to start with
    finest: int
    coarsest: int
    decibels: float  #: approximate PSNR change per step of the rate factor
    delay: int  #: most packets between decode order and display order of a picture


# B-frames are allowed here, unlike in tiles and recordings: the file is written at once.
_X264 = (
    "bframes=3:keyint=infinite:scenecut=0:open-gop=0:rc-lookahead=20"
    ":stitchable=1"  # keeps the quality out of the picture parameter set
)
_X265 = (
    "bframes=4:keyint=-1:scenecut=0:open-gop=0:rc-lookahead=20"
    ":repeat-headers=0:info=0:log-level=none"
)

ARCHIVE_CODECS = {
    codec.name: codec
    for codec in (
        ArchiveCodec(
            name="h264",
            encoder="libx264",
            options={"preset": "medium", "x264-params": _X264, "flags": "+global_header+cgop"},
            quality=20,
            finest=1,
            coarsest=40,
            decibels=0.8,
            delay=2,
        ),
        ArchiveCodec(
            name="hevc",
            encoder="libx265",
            options={"preset": "medium", "x265-params": _X265, "flags": "+global_header+cgop"},
            quality=20,
            finest=1,
            coarsest=40,
            decibels=0.7,
            delay=3,
        ),
        ArchiveCodec(
            name="av1",
            encoder="libsvtav1",
            options={
                "preset": "8",
                "svtav1-params": "keyint=-1:scd=0",
                "flags": "+global_header",
            },
            quality=26,
            finest=1,
            coarsest=55,
            decibels=0.35,
            delay=0,
        ),
    )
}
"""Codecs by name."""
# Codecs whose encoders refuse sizes that split a chroma sample.
_EVEN_SIZE_CODECS = ("h264", "hevc")


def archive_codec(name: str, media: MediaInfo) -> ArchiveCodec:
    """Return the codec by name for pictures of `media`.

    Raises `UsageError` if there is none, or if it cannot store such pictures unchanged in form.
    """
    codec = ARCHIVE_CODECS.get(name)
    if codec is None:
        raise UsageError(
            f"codec must be one of {', '.join(ARCHIVE_CODECS)}, got {name!r}",
        )
    formats = [each.name for each in av.Codec(codec.encoder, "w").video_formats or ()]
    if media.pixel_format not in formats:
        raise UsageError(
            f"{name} cannot store pixel format {media.pixel_format}",
            hint=f"{name} stores {', '.join(formats)}",
        )
    if media.interlaced:
        raise UsageError("interlaced videos cannot be re-encoded")
    columns, rows = chroma_subsampling(media.pixel_format)
    if name in _EVEN_SIZE_CODECS and (media.width % columns or media.height % rows):
        raise UsageError(
            f"{name} cannot store {media.width}x{media.height} in {media.pixel_format}: width and "
            f"height must be multiples of {columns} and {rows}",
            hint="av1 stores odd sizes, in mp4, mkv and webm",
        )
    return codec


@dataclass(frozen=True, slots=True)
class RunPacket:
    """A packet of a re-encoded run."""

    payload: bytes
    shown: int  #: number of its picture in the run, in display order from 0
    is_key: bool


@dataclass(frozen=True, slots=True)
class ReencodedRun:
    """A run of frames as a stream that decodes independently."""

    packets: tuple[RunPacket, ...]  #: in decode order
    configuration: bytes  #: extradata of the encoder
    error: float  #: measured error of the worst picture

    @property
    def size(self) -> int:
        """Bytes of all packets."""
        return sum(len(packet.payload) for packet in self.packets)


def archive_encoder_options(
    codec: ArchiveCodec, media: MediaInfo, quality: int, siting: str
) -> dict[str, str]:
    """Return the options for FFmpeg's encoder; `siting` is one of `SITINGS`."""
    # Captions are copied with the SEI messages of the original.
    captions = {} if codec.name == "av1" else {"a53cc": "0"}
    location = {} if siting == SITINGS[0] else {"chroma_sample_location": siting}
    return {"crf": str(quality), **location, **captions, **color_options(media), **codec.options}


def prepare_encoder(context: VideoCodecContext, media: MediaInfo) -> None:
    """Set size, format, rate and pixel aspect ratio of an encoder."""
    context.width, context.height = media.width, media.height
    context.pix_fmt = media.pixel_format
    context.framerate = media.average_rate or NOMINAL_RATE
    if media.sample_aspect_ratio is not None:
        context.sample_aspect_ratio = media.sample_aspect_ratio


def whole_frame_error(_: int, one: av.VideoFrame, other: av.VideoFrame) -> float:
    """Return `frame_error`; an `ErrorMeasure` that ignores the number of the picture."""
    return frame_error(one, other)


def encode_run(
    codec: ArchiveCodec,
    media: MediaInfo,
    quality: int,
    pictures: Iterable[av.VideoFrame],
    measure: ErrorMeasure = whole_frame_error,
    siting: str = SITINGS[0],
) -> ReencodedRun:
    """Encode a run of pictures of `media`, decode it, and measure each against its source.

    Raises `UsageError` if the encoder refuses, `IntegrityError` if the result is not one packet and
    one picture for each source picture.
    """
    context = new_encoder(codec.encoder)
    prepare_encoder(context, media)
    context.time_base = 1 / (media.average_rate or NOMINAL_RATE)
    context.options = archive_encoder_options(codec, media, quality, siting)
    try:
        open_encoder(context)
    except FFmpegError as error:
        raise UsageError(
            f"{media.width}x{media.height} in {media.pixel_format} cannot be encoded in "
            f"{codec.name}: {error.strerror}"
        ) from error
    run = _RunEncoder(codec, bytes(context.extradata or b""), measure)
    for ordinal, picture in enumerate(pictures):
        picture.pts, picture.time_base = ordinal, context.time_base
        picture.pict_type = 0  # otherwise the encoder repeats the decoded picture type
        run.put(picture)
        for packet in context.encode(picture):
            run.add(packet)
    for packet in context.encode(None):
        run.add(packet)
    return run.finish()


def decode_run(codec: ArchiveCodec, run: ReencodedRun) -> Iterator[av.VideoFrame]:
    """Yield the pictures of a run in display order."""
    decoder = strict_decoder(codec.name, run.configuration)
    for packet in run.packets:
        yield from decode(decoder, numbered_packet(packet.shown, packet.payload))
    yield from decode(decoder, None)


class _RunEncoder:
    """Collects packets, and keeps pictures until they are decoded and measured."""

    def __init__(self, codec: ArchiveCodec, configuration: bytes, measure: ErrorMeasure) -> None:
        self._codec = codec
        self._measure = measure
        self._configuration = configuration
        self._decoder = strict_decoder(codec.name, configuration)
        self._waiting: dict[int, av.VideoFrame] = {}
        self._packets: list[RunPacket] = []
        self._received = 0
        self._worst = 0.0

    def put(self, picture: av.VideoFrame) -> None:
        self._waiting[self._received] = picture
        self._received += 1

    def add(self, packet: av.Packet[av.VideoStream]) -> None:
        number, payload = packet.pts, bytes(packet)
        if number is None or len(self._packets) - number > self._codec.delay:
            raise IntegrityError(f"{self._codec.encoder} reordered pictures unexpectedly")
        self._packets.append(RunPacket(payload, number, packet.is_keyframe))
        try:
            self._compare(decode(self._decoder, numbered_packet(number, payload)))
        except FFmpegError as error:
            raise IntegrityError("the encoded packets do not decode") from error

    def finish(self) -> ReencodedRun:
        self._compare(decode(self._decoder, None))
        numbers = sorted(packet.shown for packet in self._packets)
        if self._waiting or numbers != list(range(self._received)) or not self._packets[0].is_key:
            raise IntegrityError(
                f"{self._received} pictures gave {len(numbers)} packets, and {len(self._waiting)} "
                "pictures do not decode"
            )
        return ReencodedRun(tuple(self._packets), self._configuration, self._worst)

    def _compare(self, pictures: Iterable[av.VideoFrame]) -> None:
        for picture in pictures:
            number = -1 if picture.pts is None else picture.pts
            source = self._waiting.pop(number, None)
            if source is None:
                raise IntegrityError("the decoder returned a picture twice")
            self._worst = max(self._worst, self._measure(number, source, picture))


# Most encodes of a run in the search for its rate factor.
_MAX_TRIES = 8
# A run that exceeds the target by this many dB is encoded coarser.
_SPARE_DECIBELS = 1.0


def coarsest_run(
    codec: ArchiveCodec, quality: int, limit: float, encode: Callable[[int], ReencodedRun]
) -> tuple[ReencodedRun, int] | None:
    """Return the run with the highest rate factor found within the error `limit`, and the factor.

    `encode` makes a run with a rate factor; `quality` is the first one to try. None if even the
    finest exceeds the limit.
    """
    best: tuple[ReencodedRun, int] | None = None
    for _ in range(_MAX_TRIES):
        run = encode(quality)
        spare = psnr_from_error(run.error) - psnr_from_error(limit)
        if run.error <= limit:
            best = run, quality
            steps = int(spare / codec.decibels) if spare != math.inf else 8
            coarser = min(codec.coarsest, quality + steps)
            if spare < _SPARE_DECIBELS or coarser == quality:
                return best
            quality = coarser
        elif best is not None:
            return best
        elif quality == codec.finest:
            return None
        else:
            steps = max(1, math.ceil(-spare / codec.decibels))
            quality = max(codec.finest, quality - steps)
    return best
