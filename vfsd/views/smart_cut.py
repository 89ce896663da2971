"""Views whose packets are copied but for their ends, which are encoded.

A view that begins between key frames, or ends where a decoder needs a packet that is shown later,
cannot be copied as a whole.  It is spliced where at least one whole group of pictures can be: the
frames before the first key frame that nothing before it is needed for, and the last few, whose
packets would be followed by ones that are missing, are encoded with parameter sets of their own.

Of HEVC pictures that precede a key picture on the screen and follow it in the stream, as in open
groups, need not be copied: they are encoded, and the key picture is marked as one that nothing
precedes.

H.264 and HEVC in 4:2:0 of 8 bits, progressive.  What indexing found odd is encoded as a whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.cicp import told_colors
from vfsd.codecs.containers.mux import muxer_for
from vfsd.codecs.containers.packet_format import Framing, framing_for_stream, framing_of_encoder
from vfsd.codecs.containers.segment_muxer import (
    LEAST_PADDING,
    Muxer,
    PacketTimes,
    SegmentIndex,
    Track,
    overhead,
)
from vfsd.codecs.decoding.packet_reader import PacketReader
from vfsd.core.frame_table_pages import PacketColumns, PacketFlag
from vfsd.core.model import NOT_CROPPED, MediaInfo
from vfsd.core.view_path import Form
from vfsd.core.view_request import View
from vfsd.errors import IntegrityError
from vfsd.views.audio import SegmentedSound, ViewSound
from vfsd.views.context import Workshop
from vfsd.views.convert import even_picture_form
from vfsd.views.damage_plan import longest_stretch, shown_by_tiles
from vfsd.views.encoded_run import EncodedRun
from vfsd.views.layout import ListedSlots, Slots
from vfsd.views.plan_steps import ViewPart
from vfsd.views.read_notes import Pictures
from vfsd.views.side_data import marks_of_splice
from vfsd.views.smart_cut_source import SpliceSource, source_of
from vfsd.views.source import Footage
from vfsd.views.stream_copy import CopiedRun, Opening, unheld, unlike_stored, whole_segment
from vfsd.views.timeline import Showing
from vfsd.views.transcode import CONFIGURATION_BYTES, encoder_settings

# Encoding a whole view took 27 times the CPU of splicing where 37 of 790 frames were encoded.
_KEYS_TRIED = 8
"""As many key packets are looked into for one that nothing before it is needed for."""
_MOST_REORDERED = 16
_MOST_PRECEDING = 64
"""As many frames before a key picture are looked at."""
_LENGTH = 4
"""Bytes of the length before each unit, which what is encoded may need."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """Places in the list of a view's frames, and the packets of those between."""

    first: int  #: the first that is copied
    stop: int
    packets: range
    left_out: int  #: of these, behind the first


def find_splice(
    key: str,
    footage: Footage,
    view: View,
    form: Form,
    showing: Showing,
    sound: ViewSound | None = None,
) -> SplicedRendition | str:
    """How to serve `view` by copying all but its ends; or why it has to be encoded.

    Reads the key packet with which the copied part would begin.
    """
    media = footage.physical.media
    unlike = unlike_stored(footage, view, form) or unheld(form.container, media, 0)
    if unlike is not None:
        return unlike
    if media.crop != NOT_CROPPED:
        return "its container crops pictures, which encoded ends would not need"
    if footage.physical.notes:
        return "its packets do not tell the whole story: " + "; ".join(footage.physical.notes)
    source = source_of(media)
    if isinstance(source, str):
        return source
    damaged = shown_by_tiles(footage, showing.frames)
    whole = longest_stretch(damaged)
    cut = _find_cut(footage, showing, whole, source) if whole else None
    if cut is None and damaged.any():
        return "its packets are damaged on disk, and tiles show what they did"
    if cut is None:
        return "no group of pictures in it can be decoded alone"
    columns = _columns(footage, cut)
    if int(columns.size.min()) == 0:
        return "some of its packets are empty"
    too_large = unheld(form.container, media, int(columns.size.max()))
    if too_large is not None:
        return too_large
    framing: Framing | None = Framing(source.codec, b"", source.prefix, _LENGTH)
    if form.container == source.codec:
        framing = framing_for_stream(media)
    if framing is None:
        return "its parameter sets are not at hand"
    opening = Opening(cut.left_out, source.opening)
    part = showing.part(cut.first, cut.stop)
    copied = CopiedRun(footage, part, cut.packets, columns, framing, opening)
    reorder = _reorder(copied, media, source)
    if reorder > _MOST_REORDERED:
        return "its packets are too far from the order of pictures"
    runs: list[CopiedRun | EncodedRun] = [copied]
    if cut.first:
        runs.insert(0, _encoded(f"{key}/head", footage, showing.part(0, cut.first), source))
    if cut.stop < len(showing):
        runs.append(_encoded(f"{key}/tail", footage, showing.part(cut.stop, len(showing)), source))
    if len(runs) == 1:
        return "its beginning cannot be copied as it is"
    return SplicedRendition(key, form, showing, source, runs, reorder, sound)


def _encoded(key: str, footage: Footage, showing: Showing, source: SpliceSource) -> EncodedRun:
    """An end; its pictures lie as those of the source do, turned upright or not."""
    media = dataclasses.replace(footage.physical.media, rotation=0, mirrored=False)
    pictures = even_picture_form(media, View(), "yuv420p")
    settings = encoder_settings(media, source.codec, pictures, showing)
    return EncodedRun(key, footage, pictures, source.settings(settings), showing)


def _columns(footage: Footage, cut: _Cut) -> PacketColumns:
    found = footage.table.columns(cut.packets.start, cut.packets.stop)
    kept = np.ones(len(found), bool)
    kept[1 : 1 + cut.left_out] = False
    return found[kept]


def _find_cut(
    footage: Footage, showing: Showing, within: range, source: SpliceSource
) -> _Cut | None:
    """What of the places `within` the list of a view's frames can be copied."""
    table = footage.table
    frames = showing.frames[within.start : within.stop]
    packets = table.packets_of(range(int(frames[0]), int(frames[-1]) + 1))
    base = int(packets.min())
    flags = table.columns(base, int(packets.max()) + 1).flags
    keys = flags & PacketFlag.KEY != 0
    # Where what follows on the screen is decoded from there on.
    starts = np.minimum.accumulate(packets[::-1])[::-1] == packets
    if not source.drops_preceding:
        # And where nothing before it on the screen comes later.
        starts &= np.maximum.accumulate(np.concatenate(([-1], packets[:-1]))) < packets
    for first in np.flatnonzero(starts & keys[packets - base])[:_KEYS_TRIED].tolist():
        packet = int(packets[first])
        left_out = _preceding(footage, int(frames[first]), packet)
        if left_out is None or (left_out and not source.drops_preceding):
            continue
        # As far as packets and pictures are the same ones.
        following = packets[first:] - left_out
        following[0] = packet
        level = np.flatnonzero(
            np.maximum.accumulate(following) == packet + np.arange(len(following))
        )
        length = int(level[-1]) + 1
        copied = range(packet, packet + length + left_out)
        if _holds_a_group(footage, copied) and _starts_anew(footage, packet, source):
            first += within.start
            return _Cut(first, first + length, copied, left_out)
    return None


def _preceding(footage: Footage, frame: int, packet: int) -> int | None:
    """How many packets that follow a key packet show what comes before its frame.

    None where they do not follow it at once.
    """
    table = footage.table
    before = table.packets_of(range(max(0, frame - _MOST_PRECEDING), frame))
    count = int((before > packet).sum())
    return count if not count or int(before.max()) == packet + count else None


def _holds_a_group(footage: Footage, packets: range) -> bool:
    """Whether `packets`, which begin with a key packet, hold all up to another, or to the end."""
    table = footage.table
    following = table.columns(packets.start + 1, min(packets.stop + 1, table.packets)).flags
    return packets.stop == table.packets or bool((following & PacketFlag.KEY).any())


def _starts_anew(footage: Footage, packet: int, source: SpliceSource) -> bool:
    """Whether decoders forget what was before at a key packet.

    And whether it brings along no other parameter sets than those at hand.
    """
    physical = footage.physical
    with PacketReader(footage.path, physical.media, physical.access, footage.table) as reader:
        try:
            ((_, data),) = reader.read(packet, packet + 1)
            units = [data[start:end] for start, end in nal.units(data, source.prefix)]
        except (IntegrityError, nal.DamagedError):
            return False
    kinds = [nal.unit_type(source.codec, unit) for unit in units]
    sets = {
        unit
        for unit, kind in zip(units, kinds, strict=True)
        if nal.is_parameter_set(source.codec, kind)
    }
    coded = {kind for kind in kinds if nal.holds_slice(source.codec, kind)}
    return source.begins(coded) and sets <= set(source.sets)


def _reorder(run: CopiedRun, media: MediaInfo, source: SpliceSource) -> int:
    """Frames that a decoder may have to hold back."""
    decoded = np.argsort(run.shown, kind="stable")  # of each picture, as shown: its packet
    most = int((decoded - np.arange(len(decoded))).max())
    return max(most, media.reorder_delay, source.reorder)


@dataclass(frozen=True, slots=True)
class _Part:
    """A run within a view."""

    run: CopiedRun | EncodedRun
    first: int  #: pictures before it
    segments: int  #: before it
    ticks: int  #: when it begins

    def times(self, number: int) -> PacketTimes:
        """Those of one of its segments, on the timeline of the view."""
        own = self.run.times(number)
        return PacketTimes(
            shown=own.shown + self.ticks,
            lasting=own.lasting,
            decoded=own.decoded + self.ticks,
            end=own.end + self.ticks,
            keys=own.keys,
        )


class SplicedRendition:
    """A file of segments that are copied or encoded.  Slot 0 is the container's header."""

    made = "spliced"
    is_work = True

    def __init__(
        self,
        key: str,
        form: Form,
        showing: Showing,
        source: SpliceSource,
        runs: Sequence[CopiedRun | EncodedRun],
        reorder: int,
        sound: ViewSound | None = None,
    ) -> None:
        """`runs` follow each other; one of them is copied.

        `reorder` is how many frames a decoder may have to hold back.
        """
        self.memory = 4 * showing.memory + (sound.memory if sound else 0)
        self._sound_track = sound.track if sound else None
        self._container = form.container
        self._showing = showing
        self._source = source
        self._reorder = reorder
        self._parts = list(_placed(runs, showing))
        self.marks = marks_of_splice(self._copied.footage.physical.media, form.container)
        shown = np.concatenate([part.run.shown + part.ticks for part in self._parts])
        keys = np.concatenate([part.run.keys for part in self._parts])
        self._starts = np.concatenate([part.run.starts + part.first for part in self._parts])
        muxer = self._muxer(bytes(1))
        sizes = np.concatenate([part.run.sizes for part in self._parts])
        self._sound = SegmentedSound(sound, muxer, shown, self._starts, showing.time_base)
        sizes += muxer.overheads(shown, keys, self._starts) + self._sound.sizes
        self._index = SegmentIndex(
            sizes=sizes,
            starts=shown[self._starts],
            starts_with_key=keys[self._starts],
            end=showing.end,
        )
        spare = CONFIGURATION_BYTES + sum(len(unit) + 2 for unit in source.sets)
        header = len(muxer.header(spare=spare)) + muxer.index_size(len(sizes))
        self.slots: Slots = ListedSlots(header, sizes)
        self.storable = frozenset(
            1 + part.segments + number
            for part in self._parts
            if isinstance(part.run, EncodedRun)
            for number in range(len(part.run.starts))
        )
        # A segment tells its size, so that one made for another allotment must not be taken for it.
        self.key = blake3(f"{key} spliced".encode() + sizes.tobytes()).hexdigest()
        self.digest = self._copied.footage.digest

    def make(self, slot: int, workshop: Workshop) -> bytes:
        sets, codec = self._own_sets(), self._source.codec
        muxer = self._muxer(self._source.record(sets))
        size = self.slots[slot].size
        if not slot:
            return muxer.header(self._index, spare=size - len(muxer.header(self._index)))
        part, number = self._at(slot)
        times = part.times(number)
        if isinstance(part.run, CopiedRun):
            payloads = part.run.payloads(number, workshop)
        else:
            room = size - overhead(muxer, times) - LEAST_PADDING
            room -= int(self._sound.sizes[slot - 1])
            framing = framing_of_encoder(codec, sets, stream=self._container == codec)
            payloads = part.run.encoded(number, framing, room, workshop).payloads
        sound = self._sound.packets(slot - 1, workshop)
        return whole_segment(muxer.segment(slot - 1, times, payloads, size, sound), size)

    def pictures(self, slots: Sequence[int]) -> Pictures | None:
        places = [self._at(slot) for slot in slots if slot in self.storable]
        frames = [
            part.run.frames(number) for part, number in places if isinstance(part.run, EncodedRun)
        ]
        if not frames:
            return None
        footage = self._copied.footage
        form = even_picture_form(footage.physical.media, View(), "yuv420p")
        return Pictures(footage, np.concatenate(frames), form)

    @property
    def parts(self) -> Sequence[ViewPart]:
        found: list[ViewPart] = []
        for part in self._parts:
            found += [part.run.part] if isinstance(part.run, CopiedRun) else part.run.parts
        return found

    @property
    def _copied(self) -> CopiedRun:
        return next(part.run for part in self._parts if isinstance(part.run, CopiedRun))

    def _at(self, slot: int) -> tuple[_Part, int]:
        """The run that a segment is of, and which of its segments."""
        part = next(part for part in reversed(self._parts) if part.segments < slot)
        return part, slot - 1 - part.segments

    def _own_sets(self) -> tuple[bytes, ...]:
        """The parameter sets of what is encoded."""
        run = next(part.run for part in self._parts if isinstance(part.run, EncodedRun))
        return self._source.own_sets(run.settings, self._reorder)

    def _muxer(self, configuration: bytes) -> Muxer:
        showing, media = self._showing, self._copied.footage.physical.media
        lengths = np.diff(np.append(showing.starts[self._starts], showing.end))
        track = Track(
            codec=self._source.codec,
            width=media.width,
            height=media.height,
            configuration=configuration,
            time_base=showing.time_base,
            duration=showing.end,
            longest=max(int(lengths.max()), self._copied.farthest),
            pixel_format=media.pixel_format,
            reorder=self._copied.reorder,
            rate=showing.rate,
            rotation=media.rotation,
            mirrored=media.mirrored,
            sample_aspect_ratio=media.sample_aspect_ratio,
            colors=told_colors(media),
            marks=self.marks,
        )
        return muxer_for(self._container, track, self._sound_track)


def _placed(runs: Sequence[CopiedRun | EncodedRun], showing: Showing) -> Iterator[_Part]:
    first = segments = 0
    for run in runs:
        yield _Part(run, first, segments, int(showing.starts[first]))
        first += len(run.shown)
        segments += len(run.starts)
