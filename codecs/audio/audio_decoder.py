"""Reads the audio packets that a packet table lists, and decodes them.

`AudioDecoder` decodes any interval, and caches blocks of samples.
"""

from __future__ import annotations

import struct
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, islice

import av
import numpy as np
import numpy.typing as npt
from av.audio.codeccontext import AudioCodecContext
from av.audio.stream import AudioStream
from av.bitstream import BitStreamFilterContext
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet

from vfsd.codecs.audio.samples import float_planes
from vfsd.codecs.decoding.demuxer import demux_packets, discard_other_streams, open_container
from vfsd.codecs.decoding.packet_decoder import PacketReader
from vfsd.codecs.pyav import exact_fraction
from vfsd.core.detections import contiguous_ranges
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import PacketColumns
from vfsd.core.model import Access, MediaInfo, Sound
from vfsd.disk.checksums import MediaFile, MediaSource
from vfsd.errors import IntegrityError

SampleBlock = npt.NDArray[np.float32]
"""channels x samples, from -1 to 1."""

_BLOCK_SECONDS = 10
# Most packets of a block.
_MAX_PACKETS = 8192
# Decoded blocks to keep.
_CACHED_BLOCKS = 3
# Packets decoded before a block to restore the state of the decoder.
_LEAD_PACKETS = 32
_LEAD_SECONDS = 2
_GAP_TICKS = 3
# Largest difference in seconds of a timestamp from the end of the previous samples.
_GAP_SECONDS = Fraction(1, 100)
# Missing samples between blocks that are filled by repeating the next one.
_TINY_GAP = 16
# Containers whose packets say how many of their samples are not part of the sound.
_SKIPPING_CONTAINERS = frozenset({"mp4", "mov", "matroska", "webm"})
_OPUS_HEAD_BYTES = 19
# More than the padding of any last packet.
_MOST_PADDING_SECONDS = 1


@dataclass(frozen=True, slots=True)
class _SampleRun:
    """Samples without a gap."""

    start: int  #: number of the first sample, from time 0 of the file
    samples: SampleBlock


class AudioDecoder:
    """Decodes the audio of a file. Not thread-safe; closable."""

    def __init__(
        self,
        source: MediaFile,
        media: MediaInfo,
        sound: Sound,
        table: FrameTable,
        layout: str | None,
        damage: Sequence[range] = (),
    ) -> None:
        """`layout` is FFmpeg's name of the output channels; None keeps the stored channels.

        `damage` has half-open ranges of bytes, whose packets are skipped. Raises `IntegrityError`
        if the file no longer has the stream, `OSError`.
        """
        self._media = media
        self._sound = sound
        self._table = table
        self._end_sample: int | None = None
        self._layout = layout
        self._damage = damage
        self._source = MediaSource(source)
        self._blocks: OrderedDict[int, list[_SampleRun]] = OrderedDict()
        seconds = (sound.end_pts - sound.first_pts) * sound.time_base
        mean = max(seconds / sound.packets, Fraction(1, 100_000))
        self._block_packets = max(1, min(round(_BLOCK_SECONDS / mean), _MAX_PACKETS))
        self._lead_packets = max(2, min(_LEAD_PACKETS, round(_LEAD_SECONDS / mean)))
        self._reader: AudioPacketReader | None = None
        try:
            self._opened, self._context = _decoder(self._source, media, sound)
            self._first_sample = _first_sample(self._opened, media, sound)
            self._reader = audio_packet_reader(self._source.shared, media, sound, table)
        except BaseException:
            self._source.close()
            raise
        self.channels = sound.channels if layout is None else av.AudioLayout(layout).nb_channels

    def read(self, first: int, stop: int) -> SampleBlock:
        """Return the samples ``first <= s < stop`` from time 0 of the file, as channels x samples.

        Missing samples are silent, and so is the padding that encoders add at the start and the
        end. Raises `IntegrityError` if the file does not match the table, `OSError`.
        """
        begin, until = self._first_sample, self._end_of_sound(stop)
        wanted = np.zeros((self.channels, stop - first), np.float32)
        end: int | None = None  # end of the previous run
        for run in self._runs(first, stop):
            start, samples = run.start, run.samples
            if end is not None and 0 < start - end <= _TINY_GAP:
                samples = np.concatenate((np.repeat(samples[:, :1], start - end, 1), samples), 1)
                start = end
            end = start + samples.shape[1]
            low, high = max(first, start, begin), min(stop, end, until)
            if low < high:
                wanted[:, low - first : high - first] = samples[:, low - start : high - start]
        return wanted

    def silent(self, first: int, stop: int) -> list[range]:
        """Return the samples of ``first <= s < stop`` that the file does not have, as ranges.

        Gaps that the rounding of time stamps can explain are left out. Raises as `read`.
        """
        begin, until = self._first_sample, self._end_of_sound(stop)
        slack = max(_TINY_GAP, int(self._sound.time_base * self._sound.sample_rate))
        missing: list[range] = []
        end = first
        for run in self._runs(first, stop):
            low = max(run.start, begin)
            high = min(run.start + run.samples.shape[1], until)
            if low < high and high > first:
                missing.append(range(end, min(low, stop)))
                end = max(end, high)
        missing.append(range(end, stop))
        return [one for one in missing if len(one) > slack]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._opened.close()
        self._source.close()

    def _end_of_sound(self, stop: int) -> int:
        """Return the end of the sound without padding, looked up for reads that come near to it.

        Without padding, the last packet counts as a whole, whatever its duration says.
        """
        sound = self._sound
        end = -(-(sound.end_pts + 1) * sound.time_base * sound.sample_rate // 1)
        if stop < end - _MOST_PADDING_SECONDS * sound.sample_rate:
            return int(end)
        if self._end_sample is None:
            padding = _padding_samples(self._opened, self._media, sound)
            self._end_sample = int(end) - padding if padding else sys.maxsize
        return self._end_sample

    def _runs(self, first: int, stop: int) -> Iterator[_SampleRun]:
        table, ticks = self._table, self._sound.sample_rate * self._sound.time_base
        margin = _GAP_SECONDS * self._sound.sample_rate * 2
        last = len(table) - 1
        low = table.frames_starting_between(
            self._sound.first_pts, int((first - margin) / ticks) + 1
        )
        high = table.frames_starting_between(
            self._sound.first_pts, int((stop + margin) / ticks) + 1
        )
        begin = min(max(0, low.stop - 1), last) // self._block_packets
        end = min(max(0, high.stop - 1), last) // self._block_packets
        for number in range(begin, end + 1):
            yield from self._block(number)

    def _block(self, number: int) -> list[_SampleRun]:
        found = self._blocks.get(number)
        if found is None:
            found = self._blocks[number] = self._decoded(number)
            if len(self._blocks) > _CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return found

    def _decoded(self, number: int) -> list[_SampleRun]:
        sound, table = self._sound, self._table
        first = number * self._block_packets
        end = min(first + self._block_packets, len(table))
        lead = max(0, first - self._lead_packets)
        columns = table.columns(lead, end)
        begins = columns.pts
        ticks = float(sound.time_base * sound.sample_rate)
        apart = max(_GAP_TICKS * ticks, float(_GAP_SECONDS * sound.sample_rate))
        runs: list[_SampleRun] = []
        parts: list[SampleBlock] = []
        places: list[float] = []
        length = 0
        for pts, samples in self._frames(lead, columns):
            if pts < begins[first - lead]:
                continue
            stamp = pts * ticks
            if parts and abs(stamp - (float(np.median(places)) + length)) > apart:
                runs.append(_joined_run(parts, places))
                parts, places, length = [], [], 0
            parts.append(samples)
            places.append(stamp - length)
            length += samples.shape[1]
        return [*runs, _joined_run(parts, places)] if parts else runs

    def _frames(self, lead: int, columns: PacketColumns) -> Iterator[tuple[int, SampleBlock]]:
        """Yield (start in ticks, samples) for each decoded frame.

        A packet may hold several frames, and only the first has a timestamp (AMR in 3GP).
        """
        # PyAV miscounts the planes of eight channels, so samples are fetched interleaved.
        resampler = av.AudioResampler("flt", self._layout, self._sound.sample_rate)
        self._context.flush_buffers()
        for number, payload in self._packets(lead, columns):
            packet = Packet(payload)
            packet.pts = packet.dts = int(columns.pts[number - lead])
            packet.time_base = self._sound.time_base
            following = packet.pts
            with suppress(FFmpegError):  # a damaged packet leaves a gap
                for frame in self._context.decode(packet):
                    pts = following if frame.pts is None else frame.pts
                    seconds = Fraction(frame.samples, frame.sample_rate)
                    following = pts + round(seconds / self._sound.time_base)
                    for ready in resampler.resample(frame):
                        yield pts, float_planes(ready, self.channels)

    def _packets(self, lead: int, columns: PacketColumns) -> Iterator[tuple[int, bytes]]:
        """Yield undamaged packets from number `lead` on."""
        assert self._reader is not None
        whole = np.ones(len(columns), np.bool_)
        for one in self._damage:
            whole &= (columns.position >= one.stop) | (columns.position + columns.size <= one.start)
        for run in contiguous_ranges((np.flatnonzero(whole) + lead).tolist()):
            yield from self._reader.read(run.start, run.stop)


def _joined_run(parts: list[SampleBlock], places: list[float]) -> _SampleRun:
    return _SampleRun(round(float(np.median(places))), np.concatenate(parts, axis=1))


def _decoder(
    source: MediaSource, media: MediaInfo, sound: Sound
) -> tuple[InputContainer, AudioCodecContext]:
    """Return the decoder that FFmpeg sets up, valid while the container is open."""
    try:
        opened = open_container(source, media.container)
    except FFmpegError as error:
        source.check()
        raise IntegrityError(f"{source.name}: can no longer be opened: {error}") from error
    for stream in opened.streams:
        if stream.index == sound.stream_index and isinstance(stream, AudioStream):
            discard_other_streams(opened, stream)
            context = stream.codec_context
            if sound.codec == "aac" and not context.extradata:
                context.extradata = sound.configuration  # packets are stored without headers
            context.thread_count = 1
            return opened, context
    opened.close()
    raise IntegrityError(f"{source.name}: audio stream {sound.stream_index} no longer exists")


def _first_sample(opened: InputContainer, media: MediaInfo, sound: Sound) -> int:
    """Return the first sample after the priming of the encoder, from time 0 of the file.

    A time base of a millisecond may round it down by less than a tick.
    """
    record = b""
    if media.container in _SKIPPING_CONTAINERS:
        with suppress(FFmpegError):
            record = _skip_record(next(demux_packets(opened, _stream(opened, sound)), None))
    priming = 0
    if record:
        priming = int(struct.unpack_from("<I", record)[0])
    elif sound.codec == "opus" and len(sound.configuration) >= _OPUS_HEAD_BYTES:
        priming = int(struct.unpack_from("<H", sound.configuration, 10)[0])  # RFC 7845, 5.1
    return int(sound.first_pts * sound.time_base * sound.sample_rate) + priming


def _padding_samples(opened: InputContainer, media: MediaInfo, sound: Sound) -> int:
    """Return the samples at the end of the last packet that the encoder added."""
    if media.container not in _SKIPPING_CONTAINERS:
        return 0
    record, stream = b"", _stream(opened, sound)
    with suppress(FFmpegError):
        opened.seek(sound.end_pts, stream=stream)
        for packet in demux_packets(opened, stream):
            record = _skip_record(packet) if packet.size else record
    return int(struct.unpack_from("<I", record, 4)[0]) if record else 0


def _stream(opened: InputContainer, sound: Sound) -> AudioStream:
    stream = opened.streams[sound.stream_index]
    assert isinstance(stream, AudioStream)
    return stream


def _skip_record(packet: Packet[AudioStream] | None) -> bytes:
    """Return the samples to skip at the start and the end of a packet; empty if there are none."""
    if packet is None or not packet.has_sidedata("skip_samples"):
        return b""
    return bytes(packet.get_sidedata("skip_samples"))


SPLITTING_CONTAINERS = frozenset({"mpegts", "mpegps", "avi"})
"""Containers whose audio is always read through the demuxer, which seeks to a unit."""

# Units before the wanted packet that seeks target, in the order of attempts.
_SEEK_BACK_UNITS = (2, 8, 32)
# Packets before the wanted one in which these units are searched.
_SEARCHED_PACKETS = 256
# Consecutive packets that must match the table to identify the target of a seek.
_MATCHED_UNITS = 3
# Packets after a seek in which the match is searched.
_MATCH_WINDOW = 64
# The demuxer reads on, rather than seeks, to a packet within this distance.
_NEAR_PACKETS = 64
# Mask of the fourth byte of an ADTS header (ISO/IEC 14496-3, 1.A.2.2): the fixed part.
_ADTS_FIXED = 0xF0


@dataclass(frozen=True, slots=True)
class AudioUnit:
    """An audio packet; times are ticks of its stream."""

    pts: int | None
    duration: int
    position: int  #: offset of the unit in which it begins; -1: unknown
    payload: bytes
    form: bytes  #: equal for packets that are decoded in the same way
    configuration: bytes  #: from the ADTS header of the first packet


class AudioUnits:
    """Iterates over whole packets of a stream, from the current position of its container."""

    def __init__(
        self,
        opened: InputContainer,
        stream: AudioStream,
        *,
        head: list[Packet[AudioStream]] | None = None,
        max_head: int = 0,
    ) -> None:
        """The first `max_head` packets are added to `head` as the demuxer returns them."""
        self._opened = opened
        self._stream = stream
        self._head, self._max_head = head, max_head
        is_filtered = has_adts_headers(stream)
        self._filter = BitStreamFilterContext("aac_adtstoasc", stream) if is_filtered else None

    @property
    def stream(self) -> AudioStream:
        """The audio stream."""
        return self._stream

    @property
    def time_base(self) -> Fraction:
        """Seconds per tick."""
        return exact_fraction(self._stream.time_base) or Fraction(1)

    def __iter__(self) -> Iterator[AudioUnit]:
        """Yield packets. Raises `FFmpegError`."""
        return self._packets(is_cut=False)

    def after_seek(self) -> Iterator[AudioUnit]:
        """Yield packets, without the rest of an earlier one; an error ends them."""
        with suppress(FFmpegError):
            yield from self._packets(is_cut=True)

    def _packets(self, is_cut: bool) -> Iterator[AudioUnit]:
        position = -1
        for packet in demux_packets(self._opened, self._stream):
            if self._head is not None and len(self._head) < self._max_head:
                self._head.append(packet)
            if packet.pos is not None:
                position = packet.pos
            pts, duration = packet.pts, max(0, packet.duration or 0)
            form = self._form(packet)
            try:
                payload, configuration = self._bare(packet)
            except FFmpegError:
                if is_cut:
                    continue
                raise
            yield AudioUnit(pts, duration, position, payload, form, configuration)

    def _form(self, packet: Packet[AudioStream]) -> bytes:
        if self._filter is None:
            changed = packet.has_sidedata("new_extradata")
            return bytes(packet.get_sidedata("new_extradata")) if changed else b""
        head = bytes(packet)[:4]
        return head[:3] + bytes(byte & _ADTS_FIXED for byte in head[3:])

    def _bare(self, packet: Packet[AudioStream]) -> tuple[bytes, bytes]:
        """Return (payload without ADTS header, configuration from the header)."""
        if self._filter is None:
            return bytes(packet), b""
        (bare,) = self._filter.filter(packet)
        has_configuration = bare.has_sidedata("new_extradata")
        return bytes(bare), bytes(bare.get_sidedata("new_extradata")) if has_configuration else b""


def has_adts_headers(stream: AudioStream) -> bool:
    """Return whether each packet begins with its configuration (AAC with ADTS headers)."""
    context = stream.codec_context
    return context.codec.canonical_name == "aac" and not context.extradata


class AudioUnitReader:
    """Reads audio packets of a table through the demuxer. Not thread-safe; closable.

    The positions of `table` are those of `AudioUnit`s.
    """

    def __init__(
        self, source: MediaFile, container: str, stream_index: int, table: FrameTable
    ) -> None:
        self._source = MediaSource(source)
        self._container = container
        self._stream_index = stream_index
        self._table = table
        self._opened: InputContainer | None = None
        self._units: AudioUnits | None = None
        self._packets: Iterator[AudioUnit] = iter(())
        self._next = 0

    def read(self, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield (number, payload) of the packets ``first <= p < end``.

        Raises `IntegrityError` if the file does not match the table, `OSError`.
        """
        self._approach(first)
        sizes = self._table.columns(self._next, max(end, self._next)).size.tolist()
        for number, size in enumerate(sizes, self._next):
            packet = self._following()
            if packet is None or len(packet.payload) != size:
                self._close_container()
                raise IntegrityError(
                    f"{self._source.name}: audio packet {number} is no longer in its place"
                )
            self._next = number + 1
            if number >= first:
                yield number, packet.payload

    def _following(self) -> AudioUnit | None:
        """Return the next packet. Raises `DamagedFileError`, which FFmpeg treats as end of file."""
        try:
            packet = next((one for one in self._packets if one.payload), None)
        except FFmpegError:
            packet = None
        error, self._source.interrupted_by = self._source.interrupted_by, None
        if error is not None:
            self._close_container()
            raise error
        return packet

    def close(self) -> None:
        self._close_container()
        self._source.close()

    def _close_container(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = self._units = None
        self._packets = iter(())

    def _approach(self, first: int) -> None:
        """Move to `first` or to a packet before it."""
        if self._units is not None and self._next <= first <= self._next + _NEAR_PACKETS:
            return
        if first <= _NEAR_PACKETS or not self._seek_before(first):
            self._close_container()
            self._packets = iter(self._opened_units())
            self._next = 0

    def _opened_units(self) -> AudioUnits:
        self._source.interrupted_by = None
        if self._units is not None:
            return self._units
        try:
            self._opened = open_container(self._source, self._container)
        except FFmpegError as error:
            self._source.check()
            raise IntegrityError(
                f"{self._source.name}: can no longer be opened: {error}"
            ) from error
        for stream in self._opened.streams.audio:
            if stream.index == self._stream_index:
                discard_other_streams(self._opened, stream)
                self._units = AudioUnits(self._opened, stream)
                return self._units
        self._close_container()
        raise IntegrityError(
            f"{self._source.name}: audio stream {self._stream_index} no longer exists"
        )

    def _seek_before(self, first: int) -> bool:
        """Return whether a seek has led to `first`, or to a packet before it."""
        if self._container in SPLITTING_CONTAINERS:
            return any(self._seek(first, back) for back in _SEEK_BACK_UNITS)
        return any(self._seek_time(first, back) for back in _SEEK_BACK_UNITS)

    def _seek_time(self, first: int, back: int) -> bool:
        """Seek to the time of the packet `back` packets before `first`; return False if that fails.

        Timestamps may be missing, or shared by several packets. So the first packet of a timestamp
        and those after it must match the table.
        """
        low = max(0, first - _SEARCHED_PACKETS)
        columns = self._table.columns(low, min(first + _MATCHED_UNITS, self._table.packets))
        rows = {pts: row for row, pts in enumerate(columns.pts.tolist())}
        sizes = columns.size.tolist()
        units = self._opened_units()
        assert self._opened is not None
        scale = units.time_base / self._table.time_base
        aim = int(int(columns.pts[max(0, first - low - back)]) / scale)
        try:
            self._opened.seek(aim, stream=units.stream)
        except FFmpegError:
            return False
        following = (packet for packet in units.after_seek() if packet.payload)
        met = list(islice(following, _MATCH_WINDOW))
        for skipped in range(1, len(met) - _MATCHED_UNITS + 1):
            pts, before = met[skipped].pts, met[skipped - 1].pts
            row = rows.get(round(pts * scale)) if pts is not None and pts != before else None
            if row is None or row > first - low:
                continue
            run = [len(packet.payload) for packet in met[skipped : skipped + _MATCHED_UNITS]]
            if sizes[row : row + _MATCHED_UNITS] == run:
                self._packets = chain(met[skipped:], following)
                self._next = low + row
                return True
        return False

    def _seek(self, first: int, back: int) -> bool:
        """Seek to the unit `back` units before that of `first`; return False if that fails.

        The first packet there may be the rest of an earlier one. So the first packet of a later
        unit and those after it must match the table.
        """
        low = max(0, first - _SEARCHED_PACKETS)
        columns = self._table.columns(low, min(first + _MATCHED_UNITS, self._table.packets))
        positions = columns.position[: first - low + 1]
        starts = np.unique(positions[positions >= 0])
        if len(starts) <= back:
            return False
        rows = list(zip(columns.position.tolist(), columns.size.tolist(), strict=True))
        units = self._opened_units()
        assert self._opened is not None
        try:
            self._opened.seek(int(starts[-1 - back]), unsupported_byte_offset=True)
        except FFmpegError:
            return False
        following = units.after_seek()
        met = list(islice(following, _MATCH_WINDOW))
        read = [(packet.position, len(packet.payload)) for packet in met]
        for skipped in range(1, len(read) - _MATCHED_UNITS + 1):
            run = read[skipped : skipped + _MATCHED_UNITS]
            if run[0][0] != read[skipped - 1][0] and run[0] in rows:
                row = rows.index(run[0])
                if row <= first - low and rows[row : row + _MATCHED_UNITS] == run:
                    self._packets = chain(met[skipped:], following)
                    self._next = low + row
                    return True
        return False


AudioPacketReader = PacketReader | AudioUnitReader
"""Both have ``read(first, end)`` and ``close()``."""


def audio_packet_reader(
    source: MediaFile, media: MediaInfo, sound: Sound, table: FrameTable
) -> AudioPacketReader:
    """Return a reader of the packets of `table`, which belong to `sound`. Raises `OSError`."""
    if sound.access is Access.DEMUX:
        return AudioUnitReader(source, media.container, sound.stream_index, table)
    return PacketReader(source, media, Access.EXTENT, table)
