"""Views that copy stored packets without decoding.

`find_copy` checks that a view shows whole GOPs in full size.  `CopiedRun` also serves the middle of
smart cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.containers.matroska import MATROSKA_CODECS, MAX_PACKET
from vfsd.codecs.containers.muxers import (
    MP4_CODECS,
    PacketFormat,
    container_packet_format,
    muxer_for,
    stream_packet_format,
)
from vfsd.codecs.containers.tracks import MIN_PADDING, PacketTimes, SegmentIndex, VideoTrack
from vfsd.codecs.decoding.packet_decoder import PacketReader
from vfsd.codecs.frames.color import media_color_codes
from vfsd.core.frame_table_pages import Ints, PacketColumns, PacketFlag
from vfsd.core.model import NO_CROP_MARGINS, MediaInfo
from vfsd.core.view_request import View, ViewForm
from vfsd.errors import IntegrityError
from vfsd.views.render_context import RenderContext
from vfsd.views.view_audio import SegmentedAudio, ViewAudio
from vfsd.views.view_input import (
    ViewInput,
    ViewTimeline,
    lost_frames_in_tiles,
    picture_form,
    segment_bounds,
    segment_ticks,
    side_data_of_copy,
)
from vfsd.views.view_slots import CopiedPart, DecodedFrames, Slots, VariableSizeSlots, ViewPart

# A larger segment is split, even if the next packet is not a key packet.
_SEGMENT_BYTES = 16 << 20


def find_copy(
    key: str,
    source: ViewInput,
    form: ViewForm,
    timeline: ViewTimeline,
    sound: ViewAudio | None,
) -> CopiedView | None:
    """Return a view as a copy of packets, or None if it cannot be copied.

    `why_not_copied` must have returned None for the view.
    """
    media = source.physical.media
    packets = _packet_range(source, timeline)
    if packets is None or lost_frames_in_tiles(source, timeline.frames).any():
        return None
    columns = source.table.columns(packets.start, packets.stop)
    largest = int(columns.size.max())
    if unsupported_in_container(form.container, media, largest) is not None:
        return None
    if form.container in ("mp4", "matroska"):
        framing = container_packet_format(media, largest)
    else:
        framing = stream_packet_format(media)
    if framing is None:
        return None
    run = CopiedRun(source, timeline, packets, columns, framing)
    return CopiedView(key, form, run, sound)


def _packet_range(source: ViewInput, timeline: ViewTimeline) -> range | None:
    """Return the packets of the view if they are consecutive and start at a key packet."""
    table = source.table
    frames = range(int(timeline.frames[0]), int(timeline.frames[-1]) + 1)
    packets = table.packets_of(frames)
    first, stop = int(packets[0]), int(packets[0]) + len(packets)
    if int(packets.min()) != first or int(packets.max()) != stop - 1:
        return None
    columns = table.columns(first, stop)
    if not columns.flags[0] & PacketFlag.KEY or int(columns.size.min()) == 0:
        return None
    # Otherwise the second field of the last picture would be lost.
    if stop < table.packets and table.columns(stop, stop + 1).flags[0] & PacketFlag.HIDDEN:
        return None
    return range(first, stop)


def unsupported_in_container(container: str, media: MediaInfo, largest: int) -> str | None:
    """Return why a container does not support packets of a stream, or None.

    `largest` is the size of the largest packet in bytes.
    """
    name = "mkv" if container == "matroska" else container
    refusal = f"{name} does not support {media.codec} in the stored form"
    if media.codec == "av1" and media.extradata[:1] != b"\x81":
        return refusal  # both containers need an av1C record
    if container == "mp4":
        if media.codec == "vp9" and media.pixel_format not in ("yuv420p", "yuv422p", "yuv444p"):
            return refusal
        is_held = (
            media.codec in MP4_CODECS and max(media.decoded_width, media.decoded_height) < 1 << 16
        )
        return None if is_held else refusal
    if media.is_turned:
        return f"{name} cannot store that its pictures are rotated or mirrored"
    if media.crop != NO_CROP_MARGINS and container != "matroska":
        return f"{name} cannot store that its pictures are cropped"
    if container == "matroska":
        if media.codec in MATROSKA_CODECS and largest >= MAX_PACKET:
            return f"its packets are too large for {name}"
        return None if media.codec in MATROSKA_CODECS else refusal
    return None if media.codec == container else refusal


class CopiedView:
    """A file of copied packets.  Slot 0 is the container's header."""

    method = "copied"
    is_work = False
    storable = range(0)
    """Copying from the video is as fast as reading from a cache."""

    def __init__(self, key: str, form: ViewForm, run: CopiedRun, sound: ViewAudio | None) -> None:
        self.key = key
        self.digest = run.source.digest
        self.memory = 2 * run.timeline.memory + (sound.memory if sound else 0)
        self._run = run
        timeline = run.timeline
        longest = max(timeline.longest(run.starts), run.farthest)
        self.marks = side_data_of_copy(run.source.physical.media, form.container)
        track = replace(
            _track(run.source.physical.media, timeline, run.framing, run.reorder, longest),
            marks=self.marks,
        )
        self.track = track
        self.sound_track = sound.track if sound else None
        self._muxer = muxer = muxer_for(form.container, track, self.sound_track)
        self._sound = SegmentedAudio(sound, muxer, run.shown, run.starts, timeline.time_base)
        totals = run.sizes + muxer.overheads(run.shown, run.keys, run.starts)
        totals += self._sound.sizes
        self.segment_index = SegmentIndex(
            sizes=totals,
            starts=run.shown[run.starts],
            starts_with_key=run.keys[run.starts],
            end=timeline.end,
        )
        header = len(muxer.header()) + muxer.index_size(len(totals))
        self.slots: Slots = VariableSizeSlots(header, totals)

    def make(self, slot: int, context: RenderContext) -> bytes:
        if not slot:
            return self._muxer.header(self.segment_index)
        size = self.slots[slot].size
        times = self._run.times(slot - 1)
        payloads = self._run.payloads(slot - 1, context)
        sound = self._sound.packets(slot - 1, context)
        return require_segment_fits(
            self._muxer.segment(slot - 1, times, payloads, size, sound), size
        )

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        return None

    @property
    def parts(self) -> Sequence[ViewPart]:
        return [self._run.part]


def require_segment_fits(data: bytes, size: int) -> bytes:
    """Return `data`.  Raises `IntegrityError` if it is larger than its slot."""
    if len(data) > size:
        raise IntegrityError(
            "a segment is larger than its slot: its packets have more slices than expected"
        )
    return data


@dataclass(frozen=True, slots=True)
class RunStart:
    """How to start a run whose first pictures refer to earlier packets."""

    left_out: int  #: packets to skip after the first
    convert: Callable[[bytes], bytes]  #: rewrites the first packet; raises `nal.BitstreamError`


class CopiedRun:
    """Copied packets, one for each picture, divided into segments."""

    def __init__(
        self,
        source: ViewInput,
        timeline: ViewTimeline,
        packets: range,
        columns: PacketColumns,
        framing: PacketFormat,
        opening: RunStart | None = None,
    ) -> None:
        """`columns` are those of `packets` without the ones that `opening` skips."""
        self._opening = opening
        self.source = source
        self.timeline = timeline
        self.framing = framing
        self._packets = packets
        self.shown = columns.pts - source.table.frame_pts(int(timeline.frames[0]))
        """Display time of each packet's picture, in ticks."""
        self.keys = _key_packets(columns)  #: 1 for key packets
        self.bytes = int(columns.size.sum())  #: of the stored packets
        self.starts = _segment_starts(columns, self.shown, timeline)
        """Index of the first packet of each segment."""
        self.reorder = int((timeline.starts - self.shown).max())  #: see `VideoTrack.reorder`
        self.sizes = np.add.reduceat(framing.bound(columns.size, self.keys), self.starts)
        """Bytes of each segment without container overhead."""
        self.farthest = self.reorder + int((self.shown - timeline.starts).max())
        """Maximum number of ticks between decoding and showing a picture."""
        if not framing.is_exact:
            self.sizes += MIN_PADDING

    def payloads(self, number: int, context: RenderContext) -> list[bytes]:
        """Return the packets of a segment.  Raises `IntegrityError`, `OSError`."""
        first, stop = self._bounds(number)
        payloads = []
        with context.readers.reader(self.source) as reader:
            stored = self._stored(reader, first, stop)
            for (index, packet), is_key in zip(stored, self.keys[first:stop], strict=True):
                try:
                    if index == self._packets.start and self._opening is not None:
                        packet = self._opening.convert(packet)
                    payloads.append(self.framing.convert(packet, bool(is_key)))
                except nal.BitstreamError as error:
                    raise IntegrityError(f"packet {index} is damaged: {error}") from error
        return payloads

    def _stored(self, reader: PacketReader, first: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield the copied packets ``first <= p < stop`` with their indices in the file."""
        base = self._packets.start
        left_out = self._opening.left_out if self._opening is not None else 0
        skip = range(base + 1, base + 1 + left_out)
        return reader.read(base + first + left_out * (first > 0), base + stop + left_out, skip=skip)

    def times(self, number: int) -> PacketTimes:
        first, stop = self._bounds(number)
        timeline, shown = self.timeline, self.shown[first:stop]
        # The i-th packet is decoded when the i-th picture is shown, see `VideoTrack.reorder`.
        ends = timeline.ends(first, stop)
        following = np.searchsorted(timeline.starts, shown, side="right")
        last = len(timeline) - 1
        after = np.where(
            following > last, timeline.end, timeline.starts[np.minimum(following, last)]
        )
        return PacketTimes(
            shown=shown,
            lasting=after - shown,
            decoded=timeline.starts[first:stop],
            end=int(ends[-1]),
            keys=self.keys[first:stop],
        )

    @property
    def part(self) -> CopiedPart:
        frames, physical = self.timeline.frames, self.source.physical
        form = picture_form(physical.media, View(), "yuv420p")
        return CopiedPart(
            range(int(frames[0]), int(frames[-1]) + 1),
            len(frames),
            "original",
            physical.media.codec,
            self.bytes,
            form.psnr_of_original(physical),
        )

    def _bounds(self, number: int) -> tuple[int, int]:
        return segment_bounds(self.starts, len(self.shown), number)


def _track(
    media: MediaInfo, timeline: ViewTimeline, framing: PacketFormat, reorder: int, longest: int
) -> VideoTrack:
    return VideoTrack(
        codec=media.codec,
        width=media.decoded_width,
        height=media.decoded_height,
        configuration=framing.configuration,
        time_base=timeline.time_base,
        duration=timeline.end,
        longest=longest,
        pixel_format=media.pixel_format,
        reorder=reorder,
        rate=timeline.rate,
        rotation=media.rotation,
        mirrored=media.mirrored,
        crop=media.crop,
        sample_aspect_ratio=media.sample_aspect_ratio,
        colors=media_color_codes(media),
    )


def _segment_starts(columns: PacketColumns, shown: Ints, timeline: ViewTimeline) -> Ints:
    """Return the index of the first packet of each segment: key packets where possible."""
    ticks = segment_ticks(timeline)
    keys = np.flatnonzero(_key_packets(columns))
    times = shown[keys]
    bytes_before = np.concatenate(([0], np.cumsum(columns.size)))
    starts: list[int] = []
    at = 0
    while at < len(columns):
        starts.append(at)
        following = int(np.searchsorted(times, shown[at] + ticks))
        following = max(following, int(np.searchsorted(keys, at, side="right")))
        stop = int(keys[following]) if following < len(keys) else len(columns)
        fits = int(np.searchsorted(bytes_before, bytes_before[at] + _SEGMENT_BYTES, side="right"))
        at = max(at + 1, min(stop, fits - 1))
    return np.array(starts, np.int64)


def _key_packets(columns: PacketColumns) -> Ints:
    keys: Ints = (columns.flags & PacketFlag.KEY != 0).astype(np.int64)
    return keys
