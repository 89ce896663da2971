"""Packets of a live stream, and files that they are written to without decoding."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

from av.bitstream import BitStreamFilterContext
from av.error import ExitError, FFmpegError
from av.packet import Packet
from av.stream import Stream
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.containers.muxers import NAL_CODECS
from vfsd.codecs.pyav import open_live, open_output, tick_seconds
from vfsd.errors import RefusedMediaError, UnreachableError

# Codecs of sound that MP4 stores and that its readers know.
_SOUND = frozenset(("aac", "mp3", "ac3", "eac3", "opus", "flac", "alac"))
_CREDENTIALS = re.compile(r"^([a-z0-9+.-]+://)[^/@]*@", re.IGNORECASE)
# FFmpeg's default of 5 seconds delays the first picture.
_PROBING = {"analyzeduration": "2000000"}
# A fragment for each GOP, so that a kill loses at most the last one.
_MP4 = {"movflags": "frag_keyframe+delay_moov+default_base_moof", "flush_packets": "1"}


@dataclass(frozen=True, slots=True)
class LivePacket:
    """A packet of a live stream."""

    packet: Packet[Stream]
    is_video: bool
    is_key: bool  #: a picture at which decoding can start
    seconds: Fraction | None  #: pts on the clock of the stream; None: the packet has none
    sets: bytes = b""  #: parameter sets in a key picture of H.264 or HEVC


class LiveInput:
    """A stream at a URL, opened.  For one thread."""

    def __init__(
        self, url: str, options: Mapping[str, str], timeout: float, *, sound: bool = True
    ) -> None:
        """`timeout` is the longest time in seconds without a packet; `sound`: keep sound.

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
        self.dropped_sound: str | None = None  #: codec of sound that MP4 cannot store
        self.sound: Stream | None = self._opened.streams.best("audio") if sound else None
        context = None if self.sound is None else self.sound.codec_context
        if context is not None and context.codec.canonical_name not in _SOUND:
            self.dropped_sound = context.codec.canonical_name
            self.sound = None
        extradata = bytes(self.video.codec_context.extradata or b"")
        self._prefix = nal.prefix_size(self.codec, extradata) if self.codec in NAL_CODECS else 0

    @property
    def codec(self) -> str:
        """FFmpeg's name of the video's codec."""
        return self.video.codec_context.codec.canonical_name

    def packets(self) -> Iterator[LivePacket]:
        """Yield packets until the stream ends.  Raises `UnreachableError` if it breaks."""
        wanted = [one for one in (self.video, self.sound) if one is not None]
        try:
            for packet in self._opened.demux(wanted):
                if packet.dts is None and packet.pts is None:
                    continue  # FFmpeg's mark of the end
                yield self._described(packet)
        except (FFmpegError, OSError) as error:
            raise UnreachableError(f"{hide_password(self._url)} broke: {_reason(error)}") from error

    def close(self) -> None:
        self._opened.close()

    def _described(self, packet: Packet[Stream]) -> LivePacket:
        is_video = packet.stream.index == self.video.index
        is_key = is_video and packet.is_keyframe
        time = packet.pts if packet.pts is not None else packet.dts
        seconds = None if time is None else time * tick_seconds(packet)
        sets = self._parameter_sets(bytes(packet)) if is_key else b""
        return LivePacket(packet, is_video, is_key, seconds, sets)

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
    """A fragmented MP4 file of packets from one `LiveInput`, readable while it grows.

    The first packet must be a key picture.
    """

    def __init__(self, path: Path, source: LiveInput, started: datetime) -> None:
        """`started` is the time of the first packet.  Raises `RefusedMediaError`, `OSError`."""
        try:
            self._file = open_output(str(path), format="mp4", options=_MP4)
            self._file.metadata["creation_time"] = started.astimezone(UTC).isoformat()
            self._copies = {
                one.index: self._file.add_stream_from_template(one)
                for one in (source.video, source.sound)
                if one is not None
            }
            sound = source.sound
            self._sound_filter: BitStreamFilterContext | None = None
            if sound is not None and sound.codec_context.codec.canonical_name == "aac":
                # Transport streams have a header in each packet, which MP4 does not allow.
                self._sound_filter = BitStreamFilterContext("aac_adtstoasc", sound)
        except (FFmpegError, ValueError) as error:
            raise RefusedMediaError(
                f"{source.codec} cannot be written into mp4: {_reason(error)}"
            ) from error
        self._origin: Fraction | None = None  # seconds of the stream at which the file begins
        self._last: dict[int, int] = {}  # dts by stream
        self.packets = 0  #: of video

    def write(self, one: LivePacket) -> None:
        """Add a packet; one that is not later than the last of its stream is dropped.

        Raises `OSError`.
        """
        packet, index = one.packet, one.packet.stream.index
        tick = tick_seconds(packet)
        time = packet.dts if packet.dts is not None else packet.pts
        if time is None:
            return
        if self._origin is None:
            self._origin = time * tick
        start = round(self._origin / tick)
        dts = time - start
        if dts < 0 or dts <= self._last.get(index, -1):
            return
        self._last[index] = dts
        # The next file gets the same packet object, if it is the first one there.
        pts = max(dts, packet.pts - start) if packet.pts is not None else dts
        copy = Packet(bytes(packet))
        copy.dts, copy.pts, copy.time_base = dts, pts, packet.time_base
        copy.duration = packet.duration
        copy.is_keyframe = packet.is_keyframe
        with _as_os_error():
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
            self._file.close()


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except FFmpegError as error:
        raise OSError(error.errno, error.strerror) from error


def hide_password(url: str) -> str:
    """Return a URL without user name and password."""
    return _CREDENTIALS.sub(r"\1", url)


def _reason(error: BaseException) -> str:
    if isinstance(error, ExitError):  # PyAV ends a call at its time limit in this way
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error)
