"""Encoding whole videos anew, to be kept in the place of what they were made from.

A video is cut into runs of frames, each of which starts with a key picture and decodes alone.
Other than views and tiles, they are made once and kept for long: encoders take their time, and
pictures may be coded in another order than they are shown in.  All runs of a video have the same
parameter sets, whatever their quality, so that one header does for the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import av
from av.error import FFmpegError
from av.video.codeccontext import VideoCodecContext

from vfsd.codecs.decoding.context import decoder_for, numbered_packet
from vfsd.codecs.encoding.compare import picture_error
from vfsd.codecs.encoding.encoder import NOMINAL_RATE, color_options
from vfsd.codecs.frames.chroma_location import SITINGS
from vfsd.codecs.frames.planes import chroma_shares
from vfsd.codecs.pyav import decode
from vfsd.codecs.registry import new_encoder, open_encoder
from vfsd.core.model import MediaInfo
from vfsd.errors import IntegrityError, UsageError

Measure = Callable[[int, av.VideoFrame, av.VideoFrame], float]
"""The error of a picture of a run, counted from 0: as it was, and as it came out."""


@dataclass(frozen=True, slots=True)
class ArchiveCodec:
    """A way to encode a whole video."""

    name: str  #: FFmpeg's name of the codec
    encoder: str  #: FFmpeg's name of the encoder
    options: Mapping[str, str]
    quality: int  #: the rate factor to start with
    finest: int
    coarsest: int
    decibels: float  #: that a step of the rate factor changes, about
    delay: int  #: packets that a picture may come after its turn


# B-frames are allowed here, unlike in tiles and recordings: the file is written once, complete.
_X264 = (
    "bframes=3:keyint=infinite:scenecut=0:open-gop=0:rc-lookahead=20"
    ":stitchable=1"  # the picture parameter set does not tell the quality
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
"""By name."""
_WHOLE_CHROMA = ("h264", "hevc")
"""Whose encoders take no picture that ends in the midst of a sample of chroma."""


def archive_codec(name: str, media: MediaInfo) -> ArchiveCodec:
    """The codec of that name, for the pictures of a video.

    Raises `UsageError` where there is none, or it cannot keep such pictures as they are.
    """
    codec = ARCHIVE_CODECS.get(name)
    if codec is None:
        raise UsageError(
            f"videos cannot be encoded anew in {name!r}",
            hint=f"one of {', '.join(ARCHIVE_CODECS)}",
        )
    formats = [each.name for each in av.Codec(codec.encoder, "w").video_formats or ()]
    if media.pixel_format not in formats:
        raise UsageError(
            f"pictures in {media.pixel_format} cannot be kept in {name}",
            hint=f"it takes {', '.join(formats)}",
        )
    if media.interlaced:
        raise UsageError("interlaced pictures are not encoded anew")
    columns, rows = chroma_shares(media.pixel_format)
    if name in _WHOLE_CHROMA and (media.width % columns or media.height % rows):
        raise UsageError(
            f"pictures of {media.width}x{media.height} in {media.pixel_format} cannot be kept in "
            f"{name}: its sides are multiples of {columns} and {rows}",
            hint="av1 takes odd sides, in mp4, mkv and webm",
        )
    return codec


@dataclass(frozen=True, slots=True)
class RunPacket:
    payload: bytes
    shown: int  #: which picture of the run it shows, from 0
    is_key: bool


@dataclass(frozen=True, slots=True)
class EncodedRun:
    """A run of frames as a stream that decodes alone."""

    packets: tuple[RunPacket, ...]  #: in the order in which they are decoded
    configuration: bytes  #: parameter sets, as the encoder gives them
    error: float  #: of the worst picture, see `vfsd.codecs.encoding.compare`; measured

    @property
    def size(self) -> int:
        """Bytes of all packets."""
        return sum(len(packet.payload) for packet in self.packets)


def encoder_options(
    codec: ArchiveCodec, media: MediaInfo, quality: int, siting: str
) -> dict[str, str]:
    """What FFmpeg's encoder is told; `siting`: where chroma lies, one of `SITINGS`."""
    # Captions are copied with the messages of the original.
    captions = {} if codec.name == "av1" else {"a53cc": "0"}
    told = {} if siting == SITINGS[0] else {"chroma_sample_location": siting}
    return {"crf": str(quality), **told, **captions, **color_options(media), **codec.options}


def prepare_encoder(context: VideoCodecContext, media: MediaInfo) -> None:
    """What pictures an encoder is to expect."""
    context.width, context.height = media.width, media.height
    context.pix_fmt = media.pixel_format
    context.framerate = media.average_rate or NOMINAL_RATE
    if media.sample_aspect_ratio is not None:
        context.sample_aspect_ratio = media.sample_aspect_ratio


def whole_picture_error(_: int, one: av.VideoFrame, other: av.VideoFrame) -> float:
    """`picture_error`, whichever picture of the run it is."""
    return picture_error(one, other)


def encode_run(
    codec: ArchiveCodec,
    media: MediaInfo,
    quality: int,
    pictures: Iterable[av.VideoFrame],
    measure: Measure = whole_picture_error,
    siting: str = SITINGS[0],
) -> EncodedRun:
    """Encode a run of pictures of `media`, decode it, and compare each with what it was.

    Raises `UsageError` where the encoder refuses, `IntegrityError` where what comes out is not one
    packet and one picture for each.
    """
    context = new_encoder(codec.encoder)
    prepare_encoder(context, media)
    context.time_base = 1 / (media.average_rate or NOMINAL_RATE)
    context.options = encoder_options(codec, media, quality, siting)
    try:
        open_encoder(context)
    except FFmpegError as error:
        raise UsageError(
            f"{media.width}x{media.height} in {media.pixel_format} cannot be encoded in "
            f"{codec.name}: {error.strerror}"
        ) from error
    run = _Run(codec, bytes(context.extradata or b""), measure)
    for ordinal, picture in enumerate(pictures):
        picture.pts, picture.time_base = ordinal, context.time_base
        picture.pict_type = 0  # else an encoder repeats what the decoder met
        run.put(picture)
        for packet in context.encode(picture):
            run.add(packet)
    for packet in context.encode(None):
        run.add(packet)
    return run.finish()


def decode_run(codec: ArchiveCodec, run: EncodedRun) -> Iterator[av.VideoFrame]:
    """The pictures of a run, in the order in which they are shown."""
    decoder = decoder_for(codec.name, run.configuration)
    for packet in run.packets:
        yield from decode(decoder, numbered_packet(packet.shown, packet.payload))
    yield from decode(decoder, None)


class _Run:
    """Collects packets, and holds pictures until they have been decoded again."""

    def __init__(self, codec: ArchiveCodec, configuration: bytes, measure: Measure) -> None:
        self._codec = codec
        self._measure = measure
        self._configuration = configuration
        self._decoder = decoder_for(codec.name, configuration)
        self._waiting: dict[int, av.VideoFrame] = {}
        self._packets: list[RunPacket] = []
        self._given = 0
        self._worst = 0.0

    def put(self, picture: av.VideoFrame) -> None:
        self._waiting[self._given] = picture
        self._given += 1

    def add(self, packet: av.Packet[av.VideoStream]) -> None:
        number, payload = packet.pts, bytes(packet)
        if number is None or len(self._packets) - number > self._codec.delay:
            raise IntegrityError(f"{self._codec.encoder} has put pictures out of order")
        self._packets.append(RunPacket(payload, number, packet.is_keyframe))
        try:
            self._compare(decode(self._decoder, numbered_packet(number, payload)))
        except FFmpegError as error:
            raise IntegrityError("what was encoded does not decode") from error

    def finish(self) -> EncodedRun:
        self._compare(decode(self._decoder, None))
        numbers = sorted(packet.shown for packet in self._packets)
        if self._waiting or numbers != list(range(self._given)) or not self._packets[0].is_key:
            raise IntegrityError(
                f"{self._given} pictures became {len(numbers)} packets, and {len(self._waiting)} "
                "of them do not decode"
            )
        return EncodedRun(tuple(self._packets), self._configuration, self._worst)

    def _compare(self, pictures: Iterable[av.VideoFrame]) -> None:
        for picture in pictures:
            number = -1 if picture.pts is None else picture.pts
            source = self._waiting.pop(number, None)
            if source is None:
                raise IntegrityError("a picture came out twice")
            self._worst = max(self._worst, self._measure(number, source, picture))
