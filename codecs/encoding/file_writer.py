"""Writing a video file from pictures, while they come.

Files are made for reading single frames: a key picture every second or so, after which nothing
refers to what was before it, and no B-frames, so that packets come in the order of the pictures.

mp4 and mov are written as fragments, each a few whole groups of pictures, and become an ordinary
file in place when they are finished, by FFmpeg's `hybrid_fragmented`: no packet moves.  Until then
whatever fragments are complete can be read (`vfsd.codecs.probing.growing_fmp4`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fractions import Fraction
from io import FileIO
from types import MappingProxyType

import av
from av.error import FFmpegError
from av.packet import Packet
from av.video.stream import VideoStream

from vfsd.codecs.audio.input import SoundFeed, sound_feed
from vfsd.codecs.audio.samples import SampleArray, Samples
from vfsd.codecs.audio.stream import SoundPieces
from vfsd.codecs.containers.timestamps import FileTimes
from vfsd.codecs.encoding.file_encoder import ArchiveCodec, encoder_options
from vfsd.codecs.encoding.formats import FileForm
from vfsd.codecs.encoding.gop_encoder import GROUP_CODECS, GroupEncoder, group_media
from vfsd.codecs.frames.chroma_location import SITINGS
from vfsd.codecs.pyav import open_output
from vfsd.codecs.registry import open_encoder
from vfsd.errors import UsageError

_BUFFER_BYTES = 1 << 18
_FRAGMENT_MICROSECONDS = 500_000
"""A fragment ends with the first group of pictures that ends after so long."""
_SOUND_OPTIONS = {"max_interleave_delta": "1000000"}
"""Pictures wait a second at most for sound that has ended, or comes later."""
_MOV_OPTIONS = {
    "movflags": "hybrid_fragmented+empty_moov+frag_keyframe+default_base_moof",
    "min_frag_duration": str(_FRAGMENT_MICROSECONDS),
}
# Without an edit list AAC starts 21 ms late. Edit lists count in ticks of the movie: with the usual
# milliseconds MP3 was 47 samples off.
_MOV_SOUND_OPTIONS = {"use_editlist": "1", "movie_timescale": "240000"}
"""What encoders put before the first sample is cut off, to a quarter of a sample."""
# FFmpeg writes no edit list into a header that precedes all times. Sound of growing files was late
# then: AAC by 1024 samples, Opus by 312.
_TIMED_MOVIE = {"movflags": _MOV_OPTIONS["movflags"].replace("empty_moov", "delay_moov")}
"""The first fragment waits for a packet of each stream, so that its movie box has that, too."""
_CONTAINERS: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType(
    {
        "mp4": ("mp4", _MOV_OPTIONS),
        "mov": ("mov", _MOV_OPTIONS),
        "matroska": ("matroska", {}),
    }
)
GROWING_CONTAINERS = ("mp4", "mov")
"""Those that can be read while they are written."""


class FileWriter:
    """Encodes pictures into a file.  Not thread-safe.

    `file` is open for writing at any place, and stays the caller's.  Errors are `UsageError` where
    the encoder or the container refuses, and `OSError` of the file.
    """

    def __init__(self, file: FileIO, form: FileForm) -> None:
        self._form = form
        self.times = FileTimes(form.container, form.time_base)  #: of the pictures that were given
        self._pts: dict[int, int] = {}  # of pictures that are in the encoder, in the file's ticks
        self._given = 0
        self._last = -1  # pts of the picture that came last
        self._step = 1  # ticks between the last two
        self._groups: GroupEncoder | None = None
        self._before_group = (0, -1, 1)  # these three, before the first picture of its group
        self._sound_until = 0  # pts of the last picture whose sound may be in the file by now
        muxer, _ = _CONTAINERS[form.container]
        self._output = open_output(
            file,
            format=muxer,
            options=_muxer_options(form),
            buffer_size=_BUFFER_BYTES,
        )
        try:
            self._sound: SoundFeed | None = None
            self._encode: Callable[[av.VideoFrame | None], list[Packet[VideoStream]]]
            if form.psnr is None:
                self._stream = self._added(form.codec.encoders[form.pixel_format], self._options())
                self._encode = self._stream.encode
            else:
                self._groups = self._add_groups(GROUP_CODECS[form.codec.name], form.psnr)
                self._encode = self._groups.encode
            if form.sound is not None:
                self._sound = sound_feed(form.sound, form.container, self._output)
                if self._sound.is_prompt and form.container in GROWING_CONTAINERS:
                    self._output.options.update(_TIMED_MOVIE)
        except BaseException:
            self._close()
            raise

    @property
    def frames(self) -> int:
        """Pictures that the file has, or will have when it is finished."""
        return self._given

    def put(self, picture: av.VideoFrame, pts: int) -> None:
        """The next picture, which is shown from tick `pts` on.

        Raises `UsageError` unless that is later than the one before, also in the file's own ticks,
        and the container can tell it; and where the pictures of a group cannot be as good as the
        form says: none of these is in the file then (see `frames`), which may go on without them.
        """
        self.times.require(pts)
        if self._groups is None:
            self._sound_until = pts
        elif self._groups.is_between_groups:
            self._before_group = self._given, self._last, self._step
            self._sound_until = pts  # the others may be taken back, and sound in the file stays
        if self._given:
            self._step = pts - self._last
        self._mux_sound(self._sound_until * self._form.time_base)
        picture.pts = self._given
        picture.time_base = 1 / self._form.rate
        picture.pict_type = 0  # else an encoder repeats what a decoder met
        self._pts[self._given] = self.times.in_file(pts)
        self._last = pts
        self._given += 1
        self.times.add(pts)
        self._encode_and_mux(picture)

    def put_sound(self, samples: SampleArray | Samples, first: int | None = None) -> int:
        """The next piece of sound, or that which begins with sample number `first`; how many
        samples of each channel there are now.

        Raises `UsageError` unless the form says that sound comes in pieces, and see `SoundPieces`.
        """
        if not isinstance(self._sound, SoundPieces):
            how = "with all of its sound" if self._sound is not None else "without sound"
            raise UsageError(
                f"it was opened {how}, and not for pieces of it",
                hint="open it with sound=SoundFormat(rate, layout, dtype)",
            )
        count = self._sound.push(samples, first, self._end)
        if self._given:
            self._mux_sound(self._sound_until * self._form.time_base)
        return count

    def require_end(self) -> None:
        """Raises `UsageError` where the pictures have ended long before their sound."""
        if isinstance(self._sound, SoundPieces):
            self._sound.require_end(self._end)

    def finish(self) -> None:
        """All pictures have come; afterwards the file is whole.

        Raises `UsageError` as `put` does.
        """
        self._encode_and_mux(None)
        with _refusing():
            if self._sound is not None:
                for sounding in self._sound.finish(self._end):
                    self._output.mux(sounding)
                self._sound.close()
            self._output.close()

    def abandon(self) -> None:
        """No more pictures will come, and nobody wants the file."""
        with suppress(FFmpegError, OSError, EOFError, ValueError):
            # SVT-AV1 complains of encoders that go without having been told.
            self._stream.encode(None)
        self._close()

    def _close(self) -> None:
        if self._sound is not None:
            self._sound.close()
        with suppress(FFmpegError, OSError, ValueError):
            self._output.close()

    @property
    def _end(self) -> Fraction:
        """When the last picture stops being shown, as far as is known; seconds."""
        return (self._last + self._step) * self._form.time_base if self._given else Fraction(0)

    def _options(self) -> dict[str, str]:
        form = self._form
        if form.quality is None:
            options = form.codec.lossless
            assert options is not None
        elif form.codec.name == "mjpeg":
            options = {"qmin": str(form.quality), "qmax": str(form.quality)}
        else:
            options = {"crf": str(form.quality)}
        return {**form.codec.options, **options, **form.colors}

    def _add_groups(self, codec: ArchiveCodec, psnr: float) -> GroupEncoder:
        form = self._form
        size = form.width, form.height
        media = group_media(
            codec, size, form.pixel_format, form.rate, form.colors, form.sample_aspect_ratio
        )
        # An encoder of its own, which is given nothing, makes the header.
        options = encoder_options(codec, media, codec.quality, SITINGS[0])
        self._stream = self._added(codec.encoder, options)
        return GroupEncoder(codec, media, psnr, form.key_interval)

    def _added(self, encoder: str, options: dict[str, str]) -> VideoStream:
        form = self._form
        stream = self._output.add_stream(encoder, rate=form.rate, options=options)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = form.width, form.height
        stream.pix_fmt = form.pixel_format
        stream.time_base = form.time_base
        context = stream.codec_context
        context.time_base = 1 / form.rate
        if form.sample_aspect_ratio is not None:
            context.sample_aspect_ratio = form.sample_aspect_ratio
        context.gop_size = 1 if form.codec.is_intra else form.key_interval
        try:
            open_encoder(context)
        except FFmpegError as error:
            raise UsageError(
                f"{form.width}x{form.height} in {form.pixel_format} cannot be encoded in "
                f"{form.codec.name}: {error.strerror}"
            ) from error
        return stream

    def _encode_and_mux(self, picture: av.VideoFrame | None) -> None:
        try:
            with _refusing():
                for packet in self._encode(picture):
                    if self._groups is not None:
                        self._mux_sound(self._time_of(packet))
                    self._mux(packet)
        except UsageError:
            if self._groups is not None:
                self._given, self._last, self._step = self._before_group
                self._pts.clear()
                self.times.take_back(self._given, self._last)
            raise

    def _mux_sound(self, seconds: Fraction) -> None:
        """What belongs before the picture of that time."""
        if self._sound is not None:
            with _refusing():
                for sounding in self._sound.until(seconds):
                    self._output.mux(sounding)

    def _time_of(self, packet: Packet[VideoStream]) -> Fraction:
        """When its picture is shown, to a tick of the file; seconds."""
        assert packet.pts is not None
        return self._pts[packet.pts] * self.times.tick

    def _mux(self, packet: Packet[VideoStream]) -> None:
        assert packet.pts is not None
        packet.pts = packet.dts = self._pts.pop(packet.pts)
        packet.time_base = self.times.tick
        # What a picture lasts follows from the next; of the last nothing else is known.
        # One of no length would be given another by whoever reads it.
        packet.duration = max(1, self.times.in_file(self._step))
        packet.stream = self._stream
        self._output.mux(packet)


@contextmanager
def _refusing() -> Iterator[None]:
    """What FFmpeg does not take is the caller's to change; errors of the file are not."""
    try:
        yield
    except FFmpegError as error:
        if isinstance(error, (OSError, MemoryError)):
            raise
        raise UsageError(f"this cannot be written: {error.strerror}") from error


def _muxer_options(form: FileForm) -> dict[str, str]:
    options = {"flush_packets": "1", **_CONTAINERS[form.container][1]}
    if form.sound is not None:
        options.update(_SOUND_OPTIONS)
        if form.container in GROWING_CONTAINERS:
            options.update(_MOV_SOUND_OPTIONS)
    return options
