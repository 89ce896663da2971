"""Packets of a live stream, and files that they are written to without decoding."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import cast

from av.audio.stream import AudioStream
from av.bitstream import BitStreamFilterContext
from av.container import OutputContainer
from av.error import ExitError, FFmpegError, InvalidDataError
from av.packet import Packet
from av.stream import Stream
from av.video.stream import VideoStream

from vfsd.codecs.audio.audio_input import AudioEncoder
from vfsd.codecs.audio.samples import CHANNEL_LAYOUTS
from vfsd.codecs.bitstreams import nal
from vfsd.codecs.containers.muxers import NAL_CODECS
from vfsd.codecs.pyav import open_live, open_output, tick_seconds
from vfsd.core.capture_time import NS
from vfsd.errors import RefusedMediaError, UnreachableError, UsageError

# Codecs of sound that a container stores and that its readers know.  Matroska stores more, but a
# file that grows can be read only if it is a fragmented MP4 or MOV.
_MP4_SOUND = frozenset(("aac", "mp3", "ac3", "eac3", "opus", "flac", "alac"))
_MOV_SOUND = frozenset(("pcm_alaw", "pcm_mulaw", "pcm_s16be", "pcm_s16le"))
SOUND_FORMS = ("copy", "aac", "no")
"""Sound of a recording: packets as they are, encoded in AAC unless they are that, or none."""
_CREDENTIALS = re.compile(r"^([a-z0-9+.-]+://)[^/@]*@", re.IGNORECASE)
# FFmpeg's default of 5 seconds delays the first picture.
_PROBING = {"analyzeduration": "2000000"}
# A fragment for each GOP, so that a kill loses at most the last one.
_FRAGMENTS = {"movflags": "frag_keyframe+delay_moov+default_base_moof", "flush_packets": "1"}


@dataclass(frozen=True, slots=True)
class LivePacket:
    """A packet of a live stream."""

    packet: Packet[Stream]
    is_video: bool
    is_key: bool  #: a picture at which decoding can start
    seconds: Fraction | None  #: pts on the clock of the stream; None: the packet has none
    sets: bytes = b""  #: parameter sets in a key picture of H.264 or HEVC
    sent_ns: int | None = None  #: Unix time by the sender's reports (RTCP); None: not known


class LiveInput:
    """A stream at a URL, opened.  For one thread."""

    def __init__(
        self, url: str, options: Mapping[str, str], timeout: float, *, sound: str = "copy"
    ) -> None:
        """`timeout` is the longest time in seconds without a packet; `sound` is a `SOUND_FORMS`.

        Raises `UnreachableError`, and `RefusedMediaError` without a video stream.
        """
        self._url = url
        try:
            self._opened = open_live(url, {**_PROBING, **options}, timeout)
        except (FFmpegError, OSError, ValueError) as error:
            raise UnreachableError(
                f"{hide_password(url)} cannot be opened: {_reason(error)}",
                hint="check the address, the credentials and the network",
            ) from error
        video = self._opened.streams.best("video")
        if not isinstance(video, VideoStream):
            self._opened.close()
            raise RefusedMediaError(f"{hide_password(url)} has no video")
        self.video = video
        self.sound: AudioStream | None = None
        self.dropped_sound: str | None = None  #: codec of sound that no container stores
        self.encodes_sound = False  #: its sound becomes AAC
        self.container = "mp4"  #: of files with these packets: mp4 or mov
        found = self._opened.streams.best("audio") if sound != "no" else None
        if isinstance(found, AudioStream):
            self._choose_sound(found, sound)
        extradata = bytes(self.video.codec_context.extradata or b"")
        self._prefix = nal.prefix_size(self.codec, extradata) if self.codec in NAL_CODECS else 0

    def _choose_sound(self, found: AudioStream, form: str) -> None:
        codec = found.codec_context.codec.canonical_name
        if form == "aac":
            self.sound, self.encodes_sound = found, codec != "aac"
        elif codec in _MP4_SOUND:
            self.sound = found
        elif codec in _MOV_SOUND:
            self.sound, self.container = found, "mov"
        else:
            self.dropped_sound = codec

    @property
    def codec(self) -> str:
        """FFmpeg's name of the video's codec."""
        return self.video.codec_context.codec.canonical_name

    def packets(self) -> Iterator[LivePacket]:
        """Yield packets until the stream ends.  Raises `UnreachableError` if it breaks."""
        wanted = [one for one in (self.video, self.sound) if one is not None]
        try:
            untimed: list[Packet[Stream]] = []
            for packet in self._opened.demux(wanted):
                if packet.dts is None and packet.pts is None:
                    if packet.size and packet.stream.index == self.video.index:
                        untimed.append(packet)  # others are FFmpeg's mark of the end
                    continue
                if untimed and packet.stream.index == self.video.index:
                    for early in self._with_times(untimed, packet):
                        yield self._described(early)
                    untimed = []
                yield self._described(packet)
        except (FFmpegError, OSError) as error:
            raise UnreachableError(f"{hide_password(self._url)} broke: {_reason(error)}") from error

    def close(self) -> None:
        self._opened.close()

    def _with_times(
        self, untimed: Sequence[Packet[Stream]], following: Packet[Stream]
    ) -> Iterator[Packet[Stream]]:
        """Yield the first pictures of RTSP, whose time FFmpeg learns from the next one only.

        The sender's reports give the distance, or else the rate.
        """
        time = following.pts if following.pts is not None else following.dts
        sent, rate = _sent_ns(following), self.video.average_rate or self.video.guessed_rate
        tick = tick_seconds(following)
        for number, packet in enumerate(untimed):
            own = _sent_ns(packet)
            if sent is not None and own is not None:
                before = Fraction(sent - own, NS)
            elif rate:
                before = (len(untimed) - number) / Fraction(rate)
            else:
                continue
            packet.pts = packet.dts = (time or 0) - round(before / tick)
            packet.time_base = following.time_base
            yield packet

    def _described(self, packet: Packet[Stream]) -> LivePacket:
        is_video = packet.stream.index == self.video.index
        is_key = is_video and packet.is_keyframe
        time = packet.pts if packet.pts is not None else packet.dts
        seconds = None if time is None else time * tick_seconds(packet)
        sets = self._parameter_sets(bytes(packet)) if is_key else b""
        return LivePacket(packet, is_video, is_key, seconds, sets, _sent_ns(packet))

    def _parameter_sets(self, data: bytes) -> bytes:
        if self.codec not in NAL_CODECS:
            return b""
        try:
            units = (data[start:end] for start, end in nal.nal_units(data, self._prefix))
            kinds = ((nal.unit_type(self.codec, unit), unit) for unit in units if unit)
            return b"".join(unit for kind, unit in kinds if nal.is_parameter_set(self.codec, kind))
        except nal.BitstreamError:
            return b""


class LiveFile:
    """A fragmented MP4 or MOV file of packets from one `LiveInput`, readable while it grows.

    The first packet must be a key picture.
    """

    def __init__(self, path: Path, source: LiveInput, started: datetime) -> None:
        """`started` is the time of the first packet.  Raises `RefusedMediaError`, `OSError`."""
        try:
            self._file = open_output(str(path), format=source.container, options=_FRAGMENTS)
            self._file.metadata["creation_time"] = started.astimezone(UTC).isoformat()
            video = self._file.add_stream_from_template(source.video)
            self._copies: dict[int, Stream] = {source.video.index: video}
            sound = source.sound
            self._encoded: _EncodedSound | None = None
            self._sound_filter: BitStreamFilterContext | None = None
            if sound is not None and source.encodes_sound:
                self._encoded = _EncodedSound(self._file, sound)
            elif sound is not None:
                self._copies[sound.index] = self._file.add_stream_from_template(sound)
                if sound.codec_context.codec.canonical_name == "aac":
                    # Transport streams have a header in each packet, which MP4 does not allow.
                    self._sound_filter = BitStreamFilterContext("aac_adtstoasc", sound)
        except (FFmpegError, ValueError, UsageError) as error:
            raise RefusedMediaError(
                f"{source.codec} cannot be written into {source.container}: {_reason(error)}"
            ) from error
        self._origin: Fraction | None = None  # seconds of the stream at which the file begins
        self._last: dict[int, int] = {}  # dts by stream
        self.packets = 0  #: of video

    def write(self, one: LivePacket) -> None:
        """Add a packet.

        Sound that is not later than the last of its stream is dropped.  A picture must not be: the
        next ones refer to it.  It gets the next possible time.  Raises `OSError`.
        """
        packet, index = one.packet, one.packet.stream.index
        tick = tick_seconds(packet)
        time = packet.dts if packet.dts is not None else packet.pts
        if time is None:
            return
        if self._origin is None:
            self._origin = time * tick
        start = round(self._origin / tick)
        dts, last = time - start, self._last.get(index, -1)
        if not one.is_video and (dts < 0 or dts <= last):
            return
        dts = max(dts, last + 1)
        self._last[index] = dts
        # The next file gets the same packet object, if it is the first one there.
        pts = max(dts, packet.pts - start) if packet.pts is not None else dts
        copy = Packet(bytes(packet))
        copy.dts, copy.pts, copy.time_base = dts, pts, packet.time_base
        copy.duration = packet.duration
        copy.is_keyframe = packet.is_keyframe
        with _as_os_error():
            if not one.is_video and self._encoded is not None:
                self._encoded.write(copy)
                return
            for ready in self._filtered(one, copy):
                ready.stream = self._copies[index]
                self._file.mux(ready)
        self.packets += one.is_video

    def _filtered(self, one: LivePacket, copy: Packet[Stream]) -> Sequence[Packet[Stream]]:
        if one.is_video or self._sound_filter is None:
            return [copy]
        found = self._sound_filter.filter(copy)
        for packet in found:
            packet.time_base = one.packet.time_base  # FFmpeg has emptied `copy`
        return found

    def close(self) -> None:
        """Write the last fragment.  Raises `OSError`."""
        with _as_os_error():
            try:
                if self._encoded is not None:
                    self._encoded.finish()
            finally:
                self._file.close()


class _EncodedSound:
    """Sound of a live stream, encoded in AAC; samples keep their times, and gaps are silent."""

    def __init__(self, file: OutputContainer, sound: AudioStream) -> None:
        context = sound.codec_context
        self._file, self._decoder = file, context
        layout = CHANNEL_LAYOUTS.get(context.channels, context.layout.name)
        self._encoder = AudioEncoder(file, "aac", context.sample_rate, layout, "s16")

    def write(self, packet: Packet[Stream]) -> None:
        try:
            frames = self._decoder.decode(cast("Packet[AudioStream]", packet))
        except InvalidDataError:
            return  # a damaged packet becomes silence
        for frame in frames:
            frame.time_base = packet.time_base
            self._encoder.push(frame)
        for ready in self._encoder.packets(self._encoder.taken):
            self._file.mux(ready)

    def finish(self) -> None:
        self._encoder.push(None)
        for ready in self._encoder.finish(self._encoder.taken):
            self._file.mux(ready)


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except FFmpegError as error:
        raise OSError(error.errno, error.strerror) from error


def _sent_ns(packet: Packet[Stream]) -> int | None:
    """Return the time that the sender's reports give to a packet."""
    if not packet.has_sidedata("prft"):
        return None
    (microseconds,) = struct.unpack_from("=q", bytes(packet.get_sidedata("prft")))
    return int(microseconds) * 1000


def hide_password(url: str) -> str:
    """Return a URL without user name and password."""
    return _CREDENTIALS.sub(r"\1", url)


def _reason(error: BaseException) -> str:
    if isinstance(error, ExitError):  # PyAV ends a call at its time limit in this way
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error)
