"""Decodes the stored audio of a file at any time.

Samples do not depend on where decoding starts: `AudioDecoder` decodes fixed blocks with a lead-in,
and caches the last ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt
from av.audio.codeccontext import AudioCodecContext
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet

from vfsd.codecs.audio.audio_packets import AudioPacketReader, audio_packet_reader
from vfsd.codecs.audio.sample_arrays import float_planes
from vfsd.codecs.decoding.demuxer import discard_other_streams, open_container
from vfsd.core.detections import contiguous_ranges
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import PacketColumns
from vfsd.core.model import MediaInfo, Sound
from vfsd.disk.checksummed_file import MediaFile, MediaSource
from vfsd.errors import IntegrityError

SampleBlock = npt.NDArray[np.float32]
"""channels x samples, from -1 to 1."""

_BLOCK_SECONDS = 10
_MAX_PACKETS = 8192
"""Most packets of a block."""
_CACHED_BLOCKS = 3
"""Decoded blocks to keep."""
_LEAD_PACKETS = 32
"""Packets decoded before a block to restore the state of the decoder."""
_LEAD_SECONDS = 2
_GAP_TICKS = 3
_GAP_SECONDS = Fraction(1, 100)
"""Largest difference in seconds of a timestamp from the end of the previous samples."""
_TINY_GAP = 16
"""Missing samples between blocks that are filled by repeating the next one."""


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
        layout: str,
        damage: Sequence[range] = (),
    ) -> None:
        """`layout` is FFmpeg's name of the output channels. Packets in `damage` are skipped.

        `damage` has half-open ranges of bytes. Raises `IntegrityError` if the file no longer has
        the stream, `OSError`.
        """
        self._sound = sound
        self._table = table
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
            self._reader = audio_packet_reader(self._source.shared, media, sound, table)
        except BaseException:
            self._source.close()
            raise
        self.channels = av.AudioLayout(layout).nb_channels

    def read(self, first: int, stop: int) -> SampleBlock:
        """Return the samples ``first <= s < stop`` from time 0 of the file, as channels x samples.

        Missing samples are silent. Raises `IntegrityError` if the file does not match the table,
        `OSError`.
        """
        wanted = np.zeros((self.channels, stop - first), np.float32)
        end: int | None = None  # end of the previous run
        for run in self._runs(first, stop):
            start, samples = run.start, run.samples
            if end is not None and 0 < start - end <= _TINY_GAP:
                samples = np.concatenate((np.repeat(samples[:, :1], start - end, 1), samples), 1)
                start = end
            end = start + samples.shape[1]
            low, high = max(first, start), min(stop, end)
            if low < high:
                wanted[:, low - first : high - first] = samples[:, low - start : high - start]
        return wanted

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._opened.close()
        self._source.close()

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
