"""Views that copy the packets of whole GOPs and encode only the frames at both ends.

`SmartCutSource` provides the encoder settings and parameter sets that let copied and encoded parts
play as one stream.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from blake3 import blake3

from vfsd.codecs.bitstreams import nal, splice_parameter_sets
from vfsd.codecs.bitstreams.nal import BitReader, unescaped
from vfsd.codecs.containers.muxers import (
    PacketFormat,
    encoder_packet_format,
    muxer_for,
    stream_packet_format,
)
from vfsd.codecs.containers.tracks import (
    MIN_PADDING,
    Muxer,
    PacketTimes,
    SegmentIndex,
    VideoTrack,
    overhead,
)
from vfsd.codecs.decoding.packet_decoder import PacketReader
from vfsd.codecs.encoding.encoder import EncoderSettings, parameter_sets
from vfsd.codecs.frames.color import media_color_codes
from vfsd.core.frame_table_pages import PacketColumns, PacketFlag
from vfsd.core.model import NO_CROP_MARGINS, MediaInfo
from vfsd.core.view_request import View, ViewForm
from vfsd.errors import IntegrityError
from vfsd.views.render_context import RenderContext
from vfsd.views.stream_copy import (
    CopiedRun,
    RunStart,
    require_segment_fits,
    unsupported_in_container,
)
from vfsd.views.transcode import CONFIGURATION_BYTES, SegmentedEncode, encoder_settings
from vfsd.views.view_audio import SegmentedAudio, ViewAudio
from vfsd.views.view_input import (
    ViewInput,
    ViewTimeline,
    even_picture_form,
    longest_undamaged_range,
    lost_frames_in_tiles,
    side_data_of_smart_cut,
)
from vfsd.views.view_slots import DecodedFrames, Slots, VariableSizeSlots, ViewPart

_PIXEL_FORMATS = ("yuv420p", "yuvj420p")
_MAX_PARAMETER_SET_IDS = 32
# Size of the length field of each unit; encoded units need all of it.
_LENGTH_BYTES = 4
# Key packets that are examined as possible starts of the copied part.
# Encoding a whole view took 27 times the CPU of a smart cut where 37 of 790 frames were encoded.
_MAX_KEYS_TRIED = 8
_MAX_REORDER = 16
# Frames before a key picture that are examined.
_MAX_LEADING_PACKETS = 64


class SmartCutSource(Protocol):
    """The stored stream's parameter sets, and how to encode a compatible stream."""

    codec: ClassVar[str]
    drops_preceding: ClassVar[bool]
    """Whether frames shown before a key picture but decoded after it can be left out."""

    @property
    def sets(self) -> tuple[bytes, ...]: ...

    @property
    def prefix(self) -> int:
        """Size of the length field of each unit, see `nal.nal_units`."""

    @property
    def reorder(self) -> int:
        """Frames that its decoders may have to hold back, according to the parameter sets."""

    def settings(self, settings: EncoderSettings) -> EncoderSettings:
        """Return settings for pictures that are encoded next to the copied ones."""

    def encoded_sets(self, settings: EncoderSettings, reorder: int) -> tuple[bytes, ...]:
        """Return the parameter sets of the encoded part; decoders may hold back `reorder`
        frames.
        """

    def codec_configuration(self, own: tuple[bytes, ...]) -> bytes:
        """Return the codec configuration with both groups of parameter sets."""

    def is_random_access(self, kinds: set[int]) -> bool:
        """Return whether a picture with slices of these types is a random access point."""

    def convert_first(self, packet: bytes) -> bytes:
        """Return the first copied packet in the form that starts a sequence."""


@dataclass(frozen=True, slots=True)
class H264SmartCutSource:
    codec: ClassVar[str] = "h264"
    drops_preceding: ClassVar[bool] = False

    sets: tuple[bytes, ...]
    sequence: splice_parameter_sets.H264Sequence
    prefix: int
    free_number: int  #: not used by its parameter sets

    @property
    def reorder(self) -> int:
        return self.sequence.reorder or 0

    def settings(self, settings: EncoderSettings) -> EncoderSettings:
        return dataclasses.replace(
            settings, profile=self.sequence.profile_name, number=self.free_number
        )

    def encoded_sets(self, settings: EncoderSettings, reorder: int) -> tuple[bytes, ...]:
        """Describe pictures with the VUI of the source, so that decoders are not reset."""
        return tuple(
            splice_parameter_sets.with_source_vui(unit, self.sequence, reorder)
            if nal.unit_type(self.codec, unit) == nal.H264_SPS
            else unit
            for unit in parameter_sets(settings)
        )

    def codec_configuration(self, own: tuple[bytes, ...]) -> bytes:
        return nal.avcc((*self.sets, *own), _LENGTH_BYTES)

    def is_random_access(self, kinds: set[int]) -> bool:
        """Other types may be key pictures too, but only an IDR picture resets the decoder."""
        return kinds == {nal.H264_IDR}

    def convert_first(self, packet: bytes) -> bytes:
        return packet


@dataclass(frozen=True, slots=True)
class HevcSmartCutSource:
    codec: ClassVar[str] = "hevc"
    drops_preceding: ClassVar[bool] = True

    sets: tuple[bytes, ...]
    sequence: splice_parameter_sets.HevcSequence
    prefix: int
    free_number: int
    block: int  #: side of the smallest coding block in luma samples

    @property
    def reorder(self) -> int:
        return self.sequence.reorder

    def settings(self, settings: EncoderSettings) -> EncoderSettings:
        """Code pictures in the same size, so that decoders keep their buffers."""
        return dataclasses.replace(settings, number=self.free_number, smallest_block=self.block)

    def encoded_sets(self, settings: EncoderSettings, reorder: int) -> tuple[bytes, ...]:
        """Ignore `reorder`: a decoder outputs all frames of one sequence before those of the next
        (C.5.2.2).
        """
        return parameter_sets(settings)

    def codec_configuration(self, own: tuple[bytes, ...]) -> bytes:
        return nal.hvcc((*self.sets, *own), _LENGTH_BYTES)

    def is_random_access(self, kinds: set[int]) -> bool:
        known = (
            {splice_parameter_sets.IDR_W_RADL},
            {splice_parameter_sets.IDR_N_LP},
            {splice_parameter_sets.CRA_NUT},
        )
        return kinds in known or (len(kinds) == 1 and kinds <= set(splice_parameter_sets.BLA_TYPES))

    def convert_first(self, packet: bytes) -> bytes:
        return splice_parameter_sets.as_idr_packet(packet, self.prefix)


def smart_cut_source(media: MediaInfo) -> SmartCutSource | str:
    """Return the stream of a video, or the reason why no encoded pictures can be added to it."""
    if media.codec not in ("h264", "hevc"):
        return f"packets of {media.codec} are not spliced"
    if media.interlaced:
        return "its pictures are interlaced"
    if media.pixel_format not in _PIXEL_FORMATS:
        return f"its pictures are {media.pixel_format}, not 4:2:0 of 8 bits"
    try:
        sets = nal.parameter_sets(media.codec, media.extradata)
        prefix = nal.prefix_size(media.codec, media.extradata)
        found = (_h264 if media.codec == "h264" else _hevc)(media, sets, prefix)
    except nal.BitstreamError:
        found = None
    return found or "its parameter sets cannot be combined with others"


def _h264(media: MediaInfo, sets: tuple[bytes, ...], prefix: int) -> H264SmartCutSource | None:
    """Return None if there are several sequence parameter sets, or one that x264 cannot match."""
    kinds = [nal.unit_type("h264", unit) for unit in sets]
    if kinds.count(nal.H264_SPS) != 1 or nal.H264_PPS not in kinds:
        return None
    sequence = splice_parameter_sets.parse_h264_sequence(sets[kinds.index(nal.H264_SPS)])
    used = {
        BitReader(unescaped(unit)[1:]).golomb()
        for unit, kind in zip(sets, kinds, strict=True)
        if kind == nal.H264_PPS
    }
    if sequence is None or not sequence.is_plain(media.width, media.height):
        return None
    free = [
        number for number in range(_MAX_PARAMETER_SET_IDS) if number not in used | {sequence.number}
    ]
    return H264SmartCutSource(sets, sequence, prefix, free[-1]) if free else None


def _hevc(media: MediaInfo, sets: tuple[bytes, ...], prefix: int) -> HevcSmartCutSource | None:
    """Return None if there are several sequence parameter sets, or x265 cannot code the size."""
    kinds = [nal.unit_type("hevc", unit) for unit in sets]
    if kinds.count(nal.HEVC_SPS) != 1 or not {nal.HEVC_VPS, nal.HEVC_PPS} <= set(kinds):
        return None
    sequence = splice_parameter_sets.parse_hevc_sequence(sets[kinds.index(nal.HEVC_SPS)])
    free = splice_parameter_sets.free_parameter_set_id(sets)
    block = sequence.block_of(media.width, media.height)
    if free is None or block is None:
        return None
    return HevcSmartCutSource(sets, sequence, prefix, free, block)


@dataclass(frozen=True, slots=True)
class _CopyRange:
    """Indices into the list of a view's frames, and the packets of the frames between."""

    first: int  #: index of the first copied frame
    stop: int
    packets: range
    left_out: int  #: number of packets that are skipped after the first


def find_smart_cut(
    key: str,
    source: ViewInput,
    form: ViewForm,
    timeline: ViewTimeline,
    sound: ViewAudio | None,
) -> SmartCutView | str:
    """Return a view with all but its ends copied, or the reason why it has to be encoded.

    `why_not_copied` must have returned None for the view.  Reads the key packet at which
    the copied part would begin.
    """
    media = source.physical.media
    reason = unsupported_in_container(form.container, media, 0)
    if reason is not None:
        return reason
    if media.crop != NO_CROP_MARGINS:
        return "its container crops pictures, and encoded ends need no cropping"
    if source.physical.notes:
        return "its packets do not describe it completely:" + "; ".join(source.physical.notes)
    stream = smart_cut_source(media)
    if isinstance(stream, str):
        return stream
    damaged = lost_frames_in_tiles(source, timeline.frames)
    whole = longest_undamaged_range(damaged)
    cut = _find_copy_range(source, timeline, whole, stream) if whole else None
    if cut is None and damaged.any():
        return "its packets are damaged on disk, and tiles show the lost frames"
    if cut is None:
        return "no group of pictures in it can be decoded alone"
    columns = _columns(source, cut)
    if int(columns.size.min()) == 0:
        return "some of its packets are empty"
    too_large = unsupported_in_container(form.container, media, int(columns.size.max()))
    if too_large is not None:
        return too_large
    framing: PacketFormat | None = PacketFormat(stream.codec, b"", stream.prefix, _LENGTH_BYTES)
    if form.container == stream.codec:
        framing = stream_packet_format(media)
    if framing is None:
        return "its parameter sets are not available"
    opening = RunStart(cut.left_out, stream.convert_first)
    part = timeline.part(cut.first, cut.stop)
    copied = CopiedRun(source, part, cut.packets, columns, framing, opening)
    reorder = _reorder_depth(copied, media, stream)
    if reorder > _MAX_REORDER:
        return "its packets are reordered by too many frames"
    runs: list[CopiedRun | SegmentedEncode] = [copied]
    if cut.first:
        runs.insert(0, _encoded_end(f"{key}/head", source, timeline.part(0, cut.first), stream))
    if cut.stop < len(timeline):
        runs.append(
            _encoded_end(f"{key}/tail", source, timeline.part(cut.stop, len(timeline)), stream)
        )
    if len(runs) == 1:
        return "its beginning cannot be copied"
    return SmartCutView(key, form, timeline, stream, runs, reorder, sound)


def encoded_like(
    key: str,
    source: ViewInput,
    form: ViewForm,
    timeline: ViewTimeline,
    sound: ViewAudio | None,
) -> SmartCutView | str:
    """Return a view that is encoded as the ends of smart cuts of the same video are, or the reason
    why it cannot be.

    It can follow or precede copied packets of the video in one file.
    """
    media = source.physical.media
    stream = smart_cut_source(media)
    if isinstance(stream, str):
        return stream
    run = _encoded_end(f"{key}/whole", source, timeline, stream)
    reorder = max(media.reorder_delay, stream.reorder)
    return SmartCutView(key, form, timeline, stream, [run], reorder, sound)


def _encoded_end(
    key: str, source: ViewInput, timeline: ViewTimeline, stream: SmartCutSource
) -> SegmentedEncode:
    """Return the encoded part at one end, in the orientation of the stored pictures."""
    media = dataclasses.replace(source.physical.media, rotation=0, mirrored=False)
    # Stored orientation: the header rotates copied and encoded pictures alike.
    pictures = even_picture_form(media, View(), "yuv420p")
    settings = encoder_settings(media, stream.codec, pictures, timeline)
    return SegmentedEncode(key, source, pictures, stream.settings(settings), timeline)


def _columns(source: ViewInput, cut: _CopyRange) -> PacketColumns:
    found = source.table.columns(cut.packets.start, cut.packets.stop)
    kept = np.ones(len(found), bool)
    kept[1 : 1 + cut.left_out] = False
    return found[kept]


def _find_copy_range(
    source: ViewInput, timeline: ViewTimeline, within: range, stream: SmartCutSource
) -> _CopyRange | None:
    """Find the part of the frames `within` that can be copied; indices into the view's frames."""
    table = source.table
    frames = timeline.frames[within.start : within.stop]
    packets = table.packets_of(range(int(frames[0]), int(frames[-1]) + 1))
    base = int(packets.min())
    flags = table.columns(base, int(packets.max()) + 1).flags
    keys = flags & PacketFlag.KEY != 0
    # Candidates: all frames shown later are decoded later.
    starts = np.minimum.accumulate(packets[::-1])[::-1] == packets
    if not stream.drops_preceding:
        # And all frames shown earlier are decoded earlier.
        starts &= np.maximum.accumulate(np.concatenate(([-1], packets[:-1]))) < packets
    for first in np.flatnonzero(starts & keys[packets - base])[:_MAX_KEYS_TRIED].tolist():
        packet = int(packets[first])
        left_out = _leading_packets(source, int(frames[first]), packet)
        if left_out is None or (left_out and not stream.drops_preceding):
            continue
        # The range ends where packets and pictures are no longer the same set.
        following = packets[first:] - left_out
        following[0] = packet
        level = np.flatnonzero(
            np.maximum.accumulate(following) == packet + np.arange(len(following))
        )
        length = int(level[-1]) + 1
        copied = range(packet, packet + length + left_out)
        if _holds_whole_gop(source, copied) and _is_random_access_point(source, packet, stream):
            first += within.start
            return _CopyRange(first, first + length, copied, left_out)
    return None


def _leading_packets(source: ViewInput, frame: int, packet: int) -> int | None:
    """Count the packets after a key packet that show frames before its own.

    Returns None if they do not follow the key packet immediately.
    """
    table = source.table
    before = table.packets_of(range(max(0, frame - _MAX_LEADING_PACKETS), frame))
    count = int((before > packet).sum())
    return count if not count or int(before.max()) == packet + count else None


def _holds_whole_gop(source: ViewInput, packets: range) -> bool:
    """Return whether `packets`, from a key packet on, reach the next key packet or the end."""
    table = source.table
    following = table.columns(packets.start + 1, min(packets.stop + 1, table.packets)).flags
    return packets.stop == table.packets or bool((following & PacketFlag.KEY).any())


def _is_random_access_point(source: ViewInput, packet: int, stream: SmartCutSource) -> bool:
    """Return whether decoders reset at a key packet that has no unknown parameter sets."""
    physical = source.physical
    with PacketReader(source.path, physical.media, physical.access, source.table) as reader:
        try:
            ((_, data),) = reader.read(packet, packet + 1)
            units = [data[start:end] for start, end in nal.nal_units(data, stream.prefix)]
        except (IntegrityError, nal.BitstreamError):
            return False
    kinds = [nal.unit_type(stream.codec, unit) for unit in units]
    sets = {
        unit
        for unit, kind in zip(units, kinds, strict=True)
        if nal.is_parameter_set(stream.codec, kind)
    }
    coded = {kind for kind in kinds if nal.holds_slice(stream.codec, kind)}
    return stream.is_random_access(coded) and sets <= set(stream.sets)


def _reorder_depth(run: CopiedRun, media: MediaInfo, stream: SmartCutSource) -> int:
    """Return the number of frames that a decoder may have to hold back."""
    decoded = np.argsort(run.shown, kind="stable")  # packet of each picture in display order
    most = int((decoded - np.arange(len(decoded))).max())
    return max(most, media.reorder_delay, stream.reorder)


@dataclass(frozen=True, slots=True)
class _PlacedRun:
    """A run and its position in a view."""

    run: CopiedRun | SegmentedEncode
    first: int  #: number of pictures before it
    segments: int  #: number of segments before it
    ticks: int  #: start time

    def times(self, number: int) -> PacketTimes:
        """Return the times of one of its segments on the timeline of the view."""
        own = self.run.times(number)
        return PacketTimes(
            shown=own.shown + self.ticks,
            lasting=own.lasting,
            decoded=own.decoded + self.ticks,
            end=own.end + self.ticks,
            keys=own.keys,
        )


class SmartCutView:
    """A file of segments that are copied or encoded.  Slot 0 is the container's header."""

    method = "spliced"
    is_work = True

    def __init__(
        self,
        key: str,
        form: ViewForm,
        timeline: ViewTimeline,
        stream: SmartCutSource,
        runs: Sequence[CopiedRun | SegmentedEncode],
        reorder: int,
        sound: ViewAudio | None,
    ) -> None:
        """Combine `runs`, which follow each other; at most one of them is copied.

        `reorder` is the number of frames that a decoder may have to hold back.
        """
        self.memory = 4 * timeline.memory + (sound.memory if sound else 0)
        self.sound_track = sound.track if sound else None
        self._container = form.container
        self._timeline = timeline
        self._stream = stream
        self._reorder = reorder
        self._parts = list(_placed_runs(runs, timeline))
        self._source = runs[0].source
        self.marks = side_data_of_smart_cut(self._source.physical.media, form.container)
        shown = np.concatenate([part.run.shown + part.ticks for part in self._parts])
        keys = np.concatenate([part.run.keys for part in self._parts])
        self._starts = np.concatenate([part.run.starts + part.first for part in self._parts])
        muxer = self._muxer(bytes(1))
        sizes = np.concatenate([part.run.sizes for part in self._parts])
        self._sound = SegmentedAudio(sound, muxer, shown, self._starts, timeline.time_base)
        sizes += muxer.overheads(shown, keys, self._starts) + self._sound.sizes
        self.segment_index = SegmentIndex(
            sizes=sizes,
            starts=shown[self._starts],
            starts_with_key=keys[self._starts],
            end=timeline.end,
        )
        spare = CONFIGURATION_BYTES + sum(len(unit) + 2 for unit in stream.sets)
        header = len(muxer.header(spare=spare)) + muxer.index_size(len(sizes))
        self.slots: Slots = VariableSizeSlots(header, sizes)
        self.storable = frozenset(
            1 + part.segments + number
            for part in self._parts
            if isinstance(part.run, SegmentedEncode)
            for number in range(len(part.run.starts))
        )
        # The header depends on all sizes, so other sizes need another key.
        self.key = blake3(f"{key} spliced".encode() + sizes.tobytes()).hexdigest()
        self.digest = self._source.digest

    def make(self, slot: int, context: RenderContext) -> bytes:
        sets, codec = self._encoded_sets(), self._stream.codec
        muxer = self._muxer(self._stream.codec_configuration(sets))
        size = self.slots[slot].size
        if not slot:
            return muxer.header(
                self.segment_index, spare=size - len(muxer.header(self.segment_index))
            )
        part, number = self._at(slot)
        times = part.times(number)
        if isinstance(part.run, CopiedRun):
            payloads = part.run.payloads(number, context)
        else:
            room = size - overhead(muxer, times) - MIN_PADDING
            room -= int(self._sound.sizes[slot - 1])
            framing = encoder_packet_format(codec, sets, stream=self._container == codec)
            payloads = part.run.encoded(number, framing, room, context).payloads
        sound = self._sound.packets(slot - 1, context)
        return require_segment_fits(muxer.segment(slot - 1, times, payloads, size, sound), size)

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        places = [self._at(slot) for slot in slots if slot in self.storable]
        frames = [
            part.run.frames(number)
            for part, number in places
            if isinstance(part.run, SegmentedEncode)
        ]
        if not frames:
            return None
        source = self._source
        form = even_picture_form(source.physical.media, View(), "yuv420p")
        return DecodedFrames(source, np.concatenate(frames), form)

    @property
    def parts(self) -> Sequence[ViewPart]:
        found: list[ViewPart] = []
        for part in self._parts:
            found += [part.run.part] if isinstance(part.run, CopiedRun) else part.run.parts
        return found

    @property
    def track(self) -> VideoTrack:
        """The video track with the parameter sets of copied and encoded pictures."""
        return self._track(self._stream.codec_configuration(self._encoded_sets()))

    def _at(self, slot: int) -> tuple[_PlacedRun, int]:
        """Return the run of a segment, and the segment's index in it."""
        part = next(part for part in reversed(self._parts) if part.segments < slot)
        return part, slot - 1 - part.segments

    def _encoded_sets(self) -> tuple[bytes, ...]:
        """Return the parameter sets of the encoded part."""
        run = next(part.run for part in self._parts if isinstance(part.run, SegmentedEncode))
        return self._stream.encoded_sets(run.settings, self._reorder)

    def _muxer(self, configuration: bytes) -> Muxer:
        return muxer_for(self._container, self._track(configuration), self.sound_track)

    def _track(self, configuration: bytes) -> VideoTrack:
        timeline, media = self._timeline, self._source.physical.media
        copied = [part.run for part in self._parts if isinstance(part.run, CopiedRun)]
        return VideoTrack(
            codec=self._stream.codec,
            width=media.width,
            height=media.height,
            configuration=configuration,
            time_base=timeline.time_base,
            duration=timeline.end,
            longest=max([timeline.longest(self._starts), *(run.farthest for run in copied)]),
            pixel_format=media.pixel_format,
            reorder=max((run.reorder for run in copied), default=0),
            rate=timeline.rate,
            rotation=media.rotation,
            mirrored=media.mirrored,
            sample_aspect_ratio=media.sample_aspect_ratio,
            colors=media_color_codes(media),
            marks=self.marks,
        )


def _placed_runs(
    runs: Sequence[CopiedRun | SegmentedEncode], timeline: ViewTimeline
) -> Iterator[_PlacedRun]:
    first = segments = 0
    for run in runs:
        yield _PlacedRun(run, first, segments, int(timeline.starts[first]))
        first += len(run.shown)
        segments += len(run.starts)
