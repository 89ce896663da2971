"""Views whose packets are copied but for their ends, which are encoded.

A view that begins between key frames, or ends where a decoder needs a packet that is shown later,
cannot be copied as a whole.  It is spliced where at least one whole group of pictures can be: the
frames before the first key frame that nothing before it is needed for, and the last few, whose
packets would be followed by ones that are missing, are encoded with parameter sets of their own.
Those tell the looks of pictures in the words of the source, so that decoders go on as they are.

H.264 in 4:2:0 of 8 bits, progressive.  What indexing found odd is encoded as a whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from vfsd.codecs import h264_sets, nal, records
from vfsd.codecs.bits import BitReader, unescaped
from vfsd.codecs.encode import parameter_sets
from vfsd.codecs.framing import Framing, framing_for_stream, framing_of_encoder
from vfsd.codecs.mux import muxer_for
from vfsd.codecs.packets import PacketReader
from vfsd.codecs.segments import (
    LEAST_PADDING,
    Muxer,
    PacketTimes,
    SegmentIndex,
    Track,
    overhead,
)
from vfsd.errors import IntegrityError
from vfsd.framepages import PacketFlag
from vfsd.grammar import Form
from vfsd.model import MediaInfo
from vfsd.view import View
from vfsd.views.copying import CopiedRun, can_hold, is_as_stored, whole_segment
from vfsd.views.decoding import Pictures
from vfsd.views.encoding import CONFIGURATION_BYTES, EncodedRun, encoder_settings
from vfsd.views.footage import Footage
from vfsd.views.pictures import picture_form
from vfsd.views.showing import Showing
from vfsd.views.slots import ListedSlots, Slots
from vfsd.views.sounding import SegmentedSound, ViewSound
from vfsd.views.workshop import Workshop

_CODEC = "h264"
_PIXEL_FORMATS = ("yuv420p", "yuvj420p")
_KEYS_TRIED = 8
"""As many key packets are looked into for one that nothing before it is needed for."""
_MOST_NUMBERS = 32
_MOST_REORDERED = 16
_LENGTH = 4
"""Bytes of the length before each unit, which what is encoded may need."""


@dataclass(frozen=True, slots=True)
class _Source:
    """What the stored stream tells its decoders."""

    sets: tuple[bytes, ...]
    sequence: h264_sets.Sequence
    prefix: int  #: as in `nal.units`
    free_number: int  #: that none of its parameter sets has


@dataclass(frozen=True, slots=True)
class _Cut:
    """Places in the list of a view's frames, and the packets of those between."""

    first: int  #: the first that is copied
    stop: int
    packets: range


def find_splice(
    key: str,
    footage: Footage,
    view: View,
    form: Form,
    showing: Showing,
    sound: ViewSound | None = None,
) -> SplicedRendition | None:
    """How to serve `view` by copying all but its ends; None where it has to be encoded.

    Reads the key packet with which the copied part would begin.
    """
    media = footage.physical.media
    if media.codec != _CODEC or not is_as_stored(footage, view, form) or footage.physical.notes:
        return None
    if media.interlaced or media.pixel_format not in _PIXEL_FORMATS:
        return None
    source = _source(media)
    cut = None if source is None else _find_cut(footage, showing, source)
    if source is None or cut is None:
        return None
    columns = footage.table.columns(cut.packets.start, cut.packets.stop)
    if int(columns.size.min()) == 0:
        return None
    if not can_hold(form.container, media, int(columns.size.max())):
        return None
    framing: Framing | None = Framing(_CODEC, b"", source.prefix, _LENGTH)
    if form.container == _CODEC:
        framing = framing_for_stream(media)
    if framing is None:
        return None
    copied = CopiedRun(footage, showing.part(cut.first, cut.stop), cut.packets, columns, framing)
    reorder = _reorder(copied, media, source)
    if reorder > _MOST_REORDERED:
        return None
    runs: list[CopiedRun | EncodedRun] = [copied]
    if cut.first:
        runs.insert(0, _encoded(f"{key}/head", footage, showing.part(0, cut.first), source))
    if cut.stop < len(showing):
        runs.append(_encoded(f"{key}/tail", footage, showing.part(cut.stop, len(showing)), source))
    if len(runs) == 1:
        return None
    return SplicedRendition(key, form, showing, source, runs, reorder, sound)


def _encoded(key: str, footage: Footage, showing: Showing, source: _Source) -> EncodedRun:
    """An end; its pictures lie as those of the source do, turned upright or not."""
    media = dataclasses.replace(footage.physical.media, rotation=0)
    pictures = picture_form(media, View(), "yuv420p")
    settings = dataclasses.replace(
        encoder_settings(media, _CODEC, pictures, View(), showing),
        profile=source.sequence.profile_name,
        number=source.free_number,
    )
    return EncodedRun(key, footage, pictures, settings, showing)


def _source(media: MediaInfo) -> _Source | None:
    """None where there is more than one set of a sequence, or what x264 would not make."""
    try:
        sets = nal.parameter_sets(_CODEC, media.extradata)
        kinds = [nal.unit_type(_CODEC, unit) for unit in sets]
        if kinds.count(nal.H264_SPS) != 1 or nal.H264_PPS not in kinds:
            return None
        sequence = h264_sets.parse(sets[kinds.index(nal.H264_SPS)])
        used = {
            BitReader(unescaped(unit)[1:]).golomb()
            for unit, kind in zip(sets, kinds, strict=True)
            if kind == nal.H264_PPS
        }
    except nal.DamagedError:
        return None
    if sequence is None or not sequence.is_plain(media.width, media.height):
        return None
    free = [number for number in range(_MOST_NUMBERS) if number not in used | {sequence.number}]
    if not free:
        return None
    return _Source(sets, sequence, nal.prefix_size(_CODEC, media.extradata), free[-1])


def _find_cut(footage: Footage, showing: Showing, source: _Source) -> _Cut | None:
    table = footage.table
    packets = table.packets_of(range(int(showing.frames[0]), int(showing.frames[-1]) + 1))
    base = int(packets.min())
    flags = table.columns(base, int(packets.max()) + 1).flags
    keys = flags & PacketFlag.KEY != 0
    # Where neither decoding nor showing what follows needs a packet before it, or is needed by it.
    before = np.maximum.accumulate(np.concatenate(([-1], packets[:-1])))
    after = np.minimum.accumulate(packets[::-1])[::-1]
    starts = np.flatnonzero((before < packets) & (after == packets) & keys[packets - base])
    for first in starts[:_KEYS_TRIED].tolist():
        packet = int(packets[first])
        # As far as packets and pictures are the same ones.
        count = np.arange(1, len(packets) - first + 1)
        level = np.flatnonzero(np.maximum.accumulate(packets[first:]) == packet + count - 1)
        copied = range(packet, packet + int(level[-1]) + 1)
        if _holds_a_group(footage, copied) and _starts_anew(footage, packet, source):
            return _Cut(first, first + len(copied), copied)
    return None


def _holds_a_group(footage: Footage, packets: range) -> bool:
    """Whether `packets`, which begin with a key packet, hold all up to another, or to the end."""
    table = footage.table
    following = table.columns(packets.start + 1, min(packets.stop + 1, table.packets)).flags
    return packets.stop == table.packets or bool((following & PacketFlag.KEY).any())


def _starts_anew(footage: Footage, packet: int, source: _Source) -> bool:
    """Whether decoders forget what was before at a key packet: others are key pictures, too.

    And whether it brings along no other parameter sets than those at hand.
    """
    physical = footage.physical
    with PacketReader(footage.path, physical.media, physical.access, footage.table) as reader:
        try:
            ((_, data),) = reader.read(packet, packet + 1)
            units = [data[start:end] for start, end in nal.units(data, source.prefix)]
        except (IntegrityError, nal.DamagedError):
            return False
    kinds = [nal.unit_type(_CODEC, unit) for unit in units]
    sets = [
        unit for unit, kind in zip(units, kinds, strict=True) if nal.is_parameter_set(_CODEC, kind)
    ]
    coded = {kind for kind in kinds if 1 <= kind <= nal.H264_IDR}
    return coded == {nal.H264_IDR} and set(sets) <= set(source.sets)


def _reorder(run: CopiedRun, media: MediaInfo, source: _Source) -> int:
    """Frames that a decoder may have to hold back."""
    decoded = np.argsort(run.shown, kind="stable")  # of each picture, as shown: its packet
    most = int((decoded - np.arange(len(decoded))).max())
    return max(most, media.reorder_delay, source.sequence.reorder or 0)


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

    def __init__(
        self,
        key: str,
        form: Form,
        showing: Showing,
        source: _Source,
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

    def make(self, slot: int, workshop: Workshop) -> bytes:
        sets = self._own_sets()
        muxer = self._muxer(self._record(sets))
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
            framing = framing_of_encoder(_CODEC, sets, stream=self._container == _CODEC)
            payloads = part.run.payloads(number, framing, room, workshop)
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
        form = picture_form(footage.physical.media, View(), "yuv420p")
        return Pictures(footage, np.concatenate(frames), form)

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
        return tuple(
            h264_sets.dressed(unit, self._source.sequence, self._reorder)
            if nal.unit_type(_CODEC, unit) == nal.H264_SPS
            else unit
            for unit in parameter_sets(run.settings)
        )

    def _record(self, sets: tuple[bytes, ...]) -> bytes:
        return records.avcc((*self._source.sets, *sets), _LENGTH)

    def _muxer(self, configuration: bytes) -> Muxer:
        showing, media = self._showing, self._copied.footage.physical.media
        lengths = np.diff(np.append(showing.starts[self._starts], showing.end))
        track = Track(
            codec=_CODEC,
            width=media.width,
            height=media.height,
            configuration=configuration,
            time_base=showing.time_base,
            duration=showing.end,
            longest=int(lengths.max()),
            pixel_format=media.pixel_format,
            reorder=self._copied.reorder,
            rate=showing.rate,
            rotation=media.rotation,
            sample_aspect_ratio=media.sample_aspect_ratio,
        )
        return muxer_for(self._container, track, self._sound_track)


def _placed(runs: Sequence[CopiedRun | EncodedRun], showing: Showing) -> Iterator[_Part]:
    first = segments = 0
    for run in runs:
        yield _Part(run, first, segments, int(showing.starts[first]))
        first += len(run.shown)
        segments += len(run.starts)
