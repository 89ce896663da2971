"""Views that are decoded and encoded again: a region, another size or rate, another codec.

The file is a header and one segment for each second of the view, each a closed run of pictures
that is encoded on its own when its bytes are first read.  Its place was measured out beforehand
(`vfsd.views.allotment`); what does not fit is encoded again, more coarsely, and what is left over
is padding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from blake3 import blake3

from vfsd.codecs.encode import (
    INTRA_CODECS,
    WORST_QUALITY,
    EncoderSettings,
    encode,
    parameter_sets,
    require_encodable,
)
from vfsd.codecs.framing import Framing, framing_of_encoder
from vfsd.codecs.mux import muxer_for
from vfsd.codecs.segments import (
    LEAST_PADDING,
    Muxer,
    PacketTimes,
    SegmentIndex,
    Track,
    overhead,
)
from vfsd.errors import IntegrityError
from vfsd.framepages import Ints
from vfsd.frames import Pixels
from vfsd.grammar import Form
from vfsd.model import MediaInfo
from vfsd.view import View
from vfsd.views.allotment import Shape, allot, allot_lossless
from vfsd.views.decoding import Pictures
from vfsd.views.fineness import QUALITY, coarser, is_lossless
from vfsd.views.footage import Footage
from vfsd.views.pictures import PictureConverter, PictureForm, picture_form
from vfsd.views.renderqueue import Check
from vfsd.views.showing import Showing, segment_ticks
from vfsd.views.slots import ListedSlots, Slots
from vfsd.views.sounding import SegmentedSound, ViewSound
from vfsd.views.workshop import Workshop

DEFAULT_CODEC = "h264"
LEAST_PICTURES = 8
"""Of a segment: fewer would spend most of their bytes on key pictures."""

_PAGE = 4096
_HELD_BYTES = 128 << 20
"""Of pictures that wait to be encoded, for each thread that does: 40 of 1080p."""
CONFIGURATION_BYTES = 512
"""Kept free in the header for the parameter sets, which only the encoder knows: about 100."""


class EncodedRendition:
    """A file of encoded segments.  Slot 0 is the container's header."""

    made = "encoded"

    def __init__(
        self,
        key: str,
        footage: Footage,
        view: View,
        form: Form,
        showing: Showing,
        sound: ViewSound | None = None,
        *,
        why: str = "",
    ) -> None:
        """`why` nothing of it can be copied.  Raises `UsageError` for sizes that the codec does not
        take."""
        self.why = why
        self.memory = showing.memory + (sound.memory if sound else 0)
        self._sound_track = sound.track if sound else None
        self._showing = showing
        self._container = form.container
        media = footage.physical.media
        pictures = picture_form(media, view, form.layout)
        codec = form.codec or DEFAULT_CODEC
        settings = encoder_settings(media, codec, pictures, view, showing)
        self._run = run = EncodedRun(key, footage, pictures, settings, showing)
        self._known_framing: Framing | None = None
        muxer = self._muxer(bytes(1))
        self._sound = SegmentedSound(sound, muxer, showing.starts, run.starts, showing.time_base)
        # What pictures may take does not depend on what is heard, nor on where pages end.
        self._rooms = run.sizes + muxer.overheads(showing.starts, run.keys, run.starts)
        sizes = _whole_pages(self._rooms + self._sound.sizes)
        self._index = SegmentIndex(
            sizes=sizes,
            starts=showing.starts[run.starts],
            starts_with_key=np.ones(len(sizes), np.int64),
            end=showing.end,
        )
        header = len(muxer.header(spare=CONFIGURATION_BYTES)) + muxer.index_size(len(sizes))
        self.slots: Slots = ListedSlots(int(_whole_pages(np.array([header]))[0]), sizes)
        self.storable = range(1, len(self.slots))
        # A segment tells its size, so that one made for another allotment must not be taken for it.
        self.key = blake3(key.encode() + sizes.tobytes()).hexdigest()

    def make(self, slot: int, workshop: Workshop) -> bytes:
        framing = self._framing()
        muxer = self._muxer(framing.configuration)
        size = self.slots[slot].size
        if not slot:
            return muxer.header(self._index, spare=size - len(muxer.header(self._index)))
        number = slot - 1
        times = self._run.times(number)
        room = int(self._rooms[number]) - overhead(muxer, times) - LEAST_PADDING
        payloads = self._run.payloads(number, framing, room, workshop)
        sound = self._sound.packets(number, workshop)
        return muxer.segment(number, times, payloads, size, sound)

    def trimmed(self, slot: int, data: bytes) -> bytes:
        """What `make` gave for a slot that is not the header, without its padding."""
        return self._muxer(self._framing().configuration).trimmed(data)

    def header_of(self, sizes: Ints) -> bytes:
        """As large as that of the file, for segments of these sizes."""
        muxer = self._muxer(self._framing().configuration)
        index = dataclasses.replace(self._index, sizes=sizes)
        return muxer.header(index, spare=self.slots[0].size - len(muxer.header(index)))

    def pictures(self, slots: Sequence[int]) -> Pictures | None:
        run = self._run
        parts = [run.frames(slot - 1) for slot in slots if slot]
        return Pictures(run.footage, np.concatenate(parts), run.pictures) if parts else None

    def _framing(self) -> Framing:
        settings = self._run.settings
        if self._known_framing is None:  # it may be made twice, by two threads: it is the same
            stream = self._container in ("h264", "hevc")
            self._known_framing = framing_of_encoder(
                settings.codec, parameter_sets(settings), stream=stream, bits=settings.bits
            )
        return self._known_framing

    def _muxer(self, configuration: bytes) -> Muxer:
        settings, showing = self._run.settings, self._showing
        lengths = np.diff(np.append(showing.starts[self._run.starts], showing.end))
        track = Track(
            codec=settings.codec,
            width=settings.width,
            height=settings.height,
            configuration=configuration,
            time_base=showing.time_base,
            duration=showing.end,
            longest=int(lengths.max()),
            rate=showing.rate,
            sample_aspect_ratio=settings.sample_aspect_ratio,
            colors=settings.color_codes if is_lossless(settings.codec) else None,
        )
        return muxer_for(self._container, track, self._sound_track)


class EncodedRun:
    """Pictures that are encoded in segments, each of which has its place in bytes beforehand."""

    def __init__(
        self,
        key: str,
        footage: Footage,
        pictures: PictureForm,
        settings: EncoderSettings,
        showing: Showing,
    ) -> None:
        """`key` stands for the footage, the form of the pictures and what is shown.

        Raises `UsageError` for sizes that the codec does not take.
        """
        self.footage = footage
        self.pictures = pictures
        self.settings = settings
        self._key = key
        self._showing = showing
        width, height = pictures.size
        require_encodable(settings.codec, width, height)
        self.shown = showing.starts  #: when each picture appears, in ticks
        self.starts = _segment_starts(showing)  #: the picture that each segment begins with
        self.keys = np.zeros(len(showing), np.int64)  #: 1 for key packets
        self.keys[slice(None) if settings.codec in INTRA_CODECS else self.starts] = 1
        self.sizes = self._allotted()  #: bytes of each segment, without what a container adds

    def _allotted(self) -> Ints:
        settings, media = self.settings, self.footage.physical.media
        if is_lossless(settings.codec):
            counts = np.diff(np.append(self.starts, len(self._showing)))
            return allot_lossless(PictureConverter(self.pictures).samples, settings.bits, counts)
        width, height = self.pictures.size
        return allot(
            settings.codec,
            media.codec,
            Shape(media.frame_rect.area, self.pictures.region.area, width * height),
            self.footage.table,
            self._showing.frames,
            self.starts,
        )

    def frames(self, number: int) -> Ints:
        """Those of a segment."""
        return self._showing.frames[slice(*self._bounds(number))]

    def payloads(self, number: int, framing: Framing, room: int, workshop: Workshop) -> list[bytes]:
        """The packets of a segment, which have to fit into `room` bytes.

        Ends: each turn has a coarser quality, up to the coarsest, and then pictures of one gray,
        for which there is room enough always.
        """
        first, stop = self._bounds(number)
        quality = self.settings.quality
        held = self._held(first, stop, workshop)
        while True:
            settings = dataclasses.replace(self.settings, quality=quality)
            pictures = iter(held) if held else self._decoded(first, stop, workshop)
            payloads, size = _packets(
                settings, framing, pictures, stop - first, room, workshop.check
            )
            if size <= room:
                return payloads
            if quality == WORST_QUALITY[settings.codec]:
                break
            quality = coarser(settings.codec, quality, size / room)
        if is_lossless(self.settings.codec):
            raise IntegrityError(
                "pictures like noise need more bytes than a lossless view has for them",
                hint="read them as y4m, or in another codec",
            )
        gray = self._gray(stop - first)
        payloads, size = _packets(settings, framing, gray, stop - first, room, workshop.check)
        if size > room:
            raise IntegrityError("an encoder needs more bytes for plain gray than was allotted")
        return payloads

    def _held(self, first: int, stop: int, workshop: Workshop) -> list[Pixels]:
        """The pictures of a segment; none where they are too large to be held.

        So the next segment can be decoded from where this one ends, while this one is encoded.
        """
        if (stop - first) * PictureConverter(self.pictures).bytes > _HELD_BYTES:
            return []
        with workshop.turn(self._key, first):
            return list(self._decoded(first, stop, workshop))

    def _decoded(self, first: int, stop: int, workshop: Workshop) -> Iterator[Pixels]:
        footage, frames = self.footage, self._showing.frames
        converter = PictureConverter(self.pictures)
        with workshop.cursor(self._key, footage, converter.needed_of, frames, first) as cursor:
            for picture, held in cursor.pictures(first, stop):
                yield converter.convert(picture, held)

    def _gray(self, count: int) -> Iterator[Pixels]:
        converter = PictureConverter(self.pictures)
        picture = np.full(converter.shape, 1 << self.settings.bits - 1, converter.dtype)
        return (picture for _ in range(count))

    def _bounds(self, number: int) -> tuple[int, int]:
        last = number + 1 == len(self.starts)
        stop = len(self._showing) if last else int(self.starts[number + 1])
        return int(self.starts[number]), stop

    def times(self, number: int) -> PacketTimes:
        first, stop = self._bounds(number)
        shown = self._showing.starts[first:stop]
        ends = self._showing.ends(first, stop)
        return PacketTimes(
            shown=shown,
            lasting=ends - shown,
            decoded=shown,
            end=int(ends[-1]),
            keys=self.keys[first:stop],
        )


def _whole_pages(sizes: Ints) -> Ints:
    """No page of the kernel's has bytes of two slots: who reads the first byte of one would wait
    for the one before, too."""
    return -(-sizes // _PAGE) * _PAGE


def _packets(
    settings: EncoderSettings,
    framing: Framing,
    pictures: Iterator[Pixels],
    count: int,
    room: int,
    check: Check,
) -> tuple[list[bytes], int]:
    """The packets of `count` pictures, and their size together.

    Stops as soon as they are more than `room` bytes; the size is then what it would have become.
    """
    payloads: list[bytes] = []
    size = 0
    for ordinal, packet in enumerate(encode(settings, pictures)):
        check()
        payloads.append(framing.convert(packet, ordinal == 0))
        size += len(payloads[-1])
        if size > room:
            key = len(payloads[0])
            return payloads, key + (size - key) * (count - 1) // max(1, ordinal)
    return payloads, size


def encoder_settings(
    media: MediaInfo, codec: str, pictures: PictureForm, view: View, showing: Showing
) -> EncoderSettings:
    """How to encode such pictures of `media`."""
    ratio = media.sample_aspect_ratio if view.size is None else None
    if ratio is not None and media.rotation in (90, 270):
        ratio = 1 / ratio
    settings = EncoderSettings(
        codec=codec,
        width=pictures.size[0],
        height=pictures.size[1],
        quality=QUALITY[codec],
        rate=showing.mean_rate,
        sample_aspect_ratio=ratio if ratio != Fraction(1) else None,
        pixel_format=pictures.pixel_format,
    )
    return settings.with_colors_of(media)


def _segment_starts(showing: Showing) -> Ints:
    """The pictures that segments begin with: the first in each stretch of time.

    The first stretch is a quarter of the others, so that a reader soon has something to show.
    """
    ticks = segment_ticks(showing, LEAST_PICTURES)
    stretches = (showing.starts + ticks - ticks // 4) // ticks
    return np.flatnonzero(np.diff(stretches, prepend=-1))
