"""The audio of a view: packets of the original that begin during the view, copied or transcoded.

`CopiedViewAudio` and `TranscodedViewAudio` provide the packets; `SegmentedAudio` divides them among
the segments of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vfsd.codecs.audio.samples import (
    AudioSegmentFormat,
    SegmentSamples,
    audio_configuration,
    audio_segment_format,
    encode_audio_packets,
    resampled,
)
from vfsd.codecs.containers.tracks import MIN_PADDING, AudioPackets, AudioTrack, Muxer, scaled_ticks
from vfsd.core.detections import contiguous_ranges
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import Sound
from vfsd.core.timebase import ticks_at_or_after
from vfsd.core.view_request import View, ViewForm
from vfsd.errors import IntegrityError
from vfsd.views.info_files import AUDIO_NOT_INDEXED, copied_audio_track, view_audio_codec
from vfsd.views.render_context import RenderContext
from vfsd.views.view_input import ViewInput, ViewTimeline, undamaged_packets

MAX_AUDIO_TICKS = (1 << 31) - 1
"""Maximum samples of an mp4 packet including silence after it: 12 hours at 48 kHz."""


class ViewAudio(Protocol):
    """The audio packets of a view."""

    @property
    def track(self) -> AudioTrack: ...

    @property
    def origin(self) -> str:
        """The codec of the stored sound, by FFmpeg's name."""

    @property
    def times(self) -> Ints:
        """Start of each packet in samples from the start of the view; ascending."""

    @property
    def end(self) -> int:
        """End of the last packet in samples."""

    @property
    def is_exact(self) -> bool:
        """Whether packets take exactly the bytes of `rooms`; otherwise they may take fewer."""

    @property
    def memory(self) -> int:
        """Bytes of its arrays."""

    def rooms(self, cuts: Ints, stops: Ints) -> Ints:
        """Return, for each pair, the total bytes of the packets ``cut <= p < stop``."""

    def payloads(self, first: int, stop: int, context: RenderContext) -> list[bytes]:
        """Return the packets ``first <= p < stop``.  Raises `IntegrityError`, `OSError`."""


@dataclass(frozen=True)
class CopiedViewAudio:
    """Packets of the stored sound, one array element each."""

    track: AudioTrack
    stored: Sound
    source: ViewInput
    table: FrameTable
    packets: Ints  #: indices in `table`; ascending
    times: Ints
    sizes: Ints  #: bytes
    end: int

    is_exact = True

    @property
    def origin(self) -> str:
        return self.stored.codec

    @property
    def memory(self) -> int:
        return self.packets.nbytes + self.times.nbytes + self.sizes.nbytes

    def rooms(self, cuts: Ints, stops: Ints) -> Ints:
        before = np.concatenate(([0], np.cumsum(self.sizes)))
        rooms: Ints = before[stops] - before[cuts]
        return rooms

    def payloads(self, first: int, stop: int, context: RenderContext) -> list[bytes]:
        own = self.packets[first:stop].tolist()
        with context.readers.audio_reader(self.source, self.stored, self.table) as reader:
            stored = [
                data
                for run in contiguous_ranges(own)
                for _, data in reader.read(run.start, run.stop)
            ]
        if [len(data) for data in stored] != self.sizes[first:stop].tolist():
            raise IntegrityError("the sound of the video has moved in its file")
        return stored


@dataclass(frozen=True)
class TranscodedViewAudio:
    """Packets that are decoded and encoded again, on the view's own grid of packets."""

    track: AudioTrack
    form: AudioSegmentFormat
    stored: Sound
    source: ViewInput
    table: FrameTable
    first: int  #: index of the first packet on the grid
    begin: int  #: the stored sample at the start of the view
    times: Ints
    end: int

    is_exact = False

    @property
    def origin(self) -> str:
        return self.stored.codec

    @property
    def memory(self) -> int:
        return self.times.nbytes

    def rooms(self, cuts: Ints, stops: Ints) -> Ints:
        return self.form.room(stops - cuts)

    def payloads(self, first: int, stop: int, context: RenderContext) -> list[bytes]:
        if first == stop:
            return []
        form, sound = self.form, self.stored
        (room,) = form.room(np.array([stop - first])).tolist()
        decoder = context.readers.audio_samples(self.source, sound, self.table, form.layout)
        with decoder as samples:

            def stored(low: int, high: int) -> SegmentSamples:
                return samples.read(self.begin + low, self.begin + high)

            def wanted(low: int, high: int) -> SegmentSamples:
                rates = sound.sample_rate, form.sample_rate
                return resampled(stored, *rates, form.layout, low, high)

            return encode_audio_packets(form, wanted, self.first + first, self.first + stop, room)


def find_audio(
    source: ViewInput, view: View, form: ViewForm, timeline: ViewTimeline
) -> ViewAudio | str:
    """Return the sound of a view, or the reason why it has none."""
    if form.container not in ("mp4", "matroska"):
        return f"{form.container} has no sound"
    if not form.sound:
        return "no sound was requested"
    if source.sound is None:
        if any(stream.kind == "audio" for stream in source.physical.media.side_streams):
            return AUDIO_NOT_INDEXED
        return "the video has no sound"
    if view.frames is not None and view.frames[2] > 1:
        return "the view runs faster than the video"
    sound, table = source.sound
    silence = sound.reason
    if silence is not None:
        return silence
    codec = view_audio_codec(form.container, sound, form.sound_codec)
    begin = _view_start(source, view, timeline)
    base = sound.time_base
    packets = table.frames_starting_between(
        ticks_at_or_after(begin, base), ticks_at_or_after(begin + timeline.duration, base)
    )
    if codec != sound.codec:
        return _transcoded_audio(source, sound, table, codec, begin, timeline)
    if not packets:
        return "the video is silent in that time"
    columns = table.columns(packets.start, packets.stop)
    following = packets.stop
    end = table.frame_pts(following) if following < len(table) else sound.end_pts
    samples = scaled_ticks(np.append(columns.pts, end), base * sound.sample_rate)
    # Rounding may put the first packet slightly before the start of the view.
    times = np.maximum(0, samples - round(begin * sound.sample_rate))
    whole = undamaged_packets(columns, source.damage)
    if not whole.any():
        return "its packets are damaged on disk"
    if form.container == "mp4" and _max_packet_samples(times, whole) > MAX_AUDIO_TICKS:
        return (
            f"there are {MAX_AUDIO_TICKS} samples or more without a packet, which mp4 cannot store"
        )
    return CopiedViewAudio(
        copied_audio_track(sound),
        sound,
        source,
        table,
        np.arange(packets.start, packets.stop)[whole],
        times[:-1][whole],
        columns.size[whole],
        int(times[-1]),
    )


def _transcoded_audio(
    source: ViewInput,
    sound: Sound,
    table: FrameTable,
    codec: str,
    begin: Fraction,
    timeline: ViewTimeline,
) -> ViewAudio | str:
    form = audio_segment_format(codec, sound.sample_rate, sound.channels)
    grid = Fraction(form.samples, form.sample_rate)
    covered = sound.first_pts * sound.time_base - begin, sound.end_pts * sound.time_base - begin
    first = max(0, int(covered[0] / grid))
    # Rounded up, so that the last packet covers the end of the view.
    stop = -int(-min(timeline.duration, covered[1]) // grid)
    if stop <= first:
        return "the video is silent in that time"
    numbers = np.arange(first, stop, dtype=np.int64)
    track = AudioTrack(
        codec,
        audio_configuration(form),
        form.sample_rate,
        form.channels,
        language=sound.language,
    )
    return TranscodedViewAudio(
        track,
        form,
        sound,
        source,
        table,
        first,
        round(begin * sound.sample_rate),
        numbers * form.samples,
        stop * form.samples,
    )


def _max_packet_samples(times: Ints, whole: npt.NDArray[np.bool_]) -> int:
    """Return the maximum samples of a packet, up to the next packet that is not damaged.

    `times` has one more element, the end of the last packet.
    """
    there = np.append(np.flatnonzero(whole), len(whole))
    return int(np.diff(times[there]).max())


def _view_start(source: ViewInput, view: View, timeline: ViewTimeline) -> Fraction:
    """Return the start of the view in seconds of the file's own timeline."""
    if view.fps is None:
        return source.table.frame_pts(int(timeline.frames[0])) * timeline.time_base
    origin = source.physical.first_pts * source.physical.time_base
    return origin + (view.span[0] if view.span is not None else 0)


class SegmentedAudio:
    """The sound of a view, divided at the starts of the segments of its file."""

    def __init__(
        self,
        sound: ViewAudio | None,
        muxer: Muxer,
        shown: Ints,
        starts: Ints,
        time_base: Fraction,
    ) -> None:
        """Divide `sound`; without sound all segments get none.

        Args:
            shown: display time of each packet's picture, in ticks of `time_base`.
            starts: index of the first packet of each segment.
        """
        self._sound = sound
        self.sizes = np.zeros(len(starts), np.int64)  #: bytes that it adds to each segment
        if sound is None:
            return
        begins = np.maximum.accumulate(shown[starts])
        edges = scaled_ticks(begins, time_base * sound.track.sample_rate)
        self._cuts = np.searchsorted(sound.times, edges)
        # Packets before the first picture belong to the first segment.
        self._cuts[0] = 0
        self._stops = np.append(self._cuts[1:], len(sound.times))
        self.sizes = sound.rooms(self._cuts, self._stops)
        self.sizes += muxer.sound_overheads(sound.times, self._cuts, shown, starts)
        if not sound.is_exact:
            self.sizes += MIN_PADDING

    def packets(self, number: int, context: RenderContext) -> AudioPackets | None:
        """Return the packets of a segment.  Raises `IntegrityError`, `OSError`."""
        sound = self._sound
        if sound is None:
            return None
        first, stop = int(self._cuts[number]), int(self._stops[number])
        stored = sound.payloads(first, stop, context)
        end = int(sound.times[stop]) if stop < len(sound.times) else sound.end
        return AudioPackets(sound.times[first:stop], end, stored)
