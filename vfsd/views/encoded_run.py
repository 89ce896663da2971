"""Runs of pictures that are encoded in segments, each of which has its place in bytes beforehand.

A segment that was encoded for somebody before, and has become a rendition since
(`vfsd.derive.promotion_candidates`), is not made again: its packets are copied.
"""

from __future__ import annotations

import dataclasses
import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np

from vfsd.codecs.cells.tile_codecs import VIEW_CODECS
from vfsd.codecs.containers.packet_format import NAL_CODECS, Framing, with_start_codes
from vfsd.codecs.containers.segment_muxer import PacketTimes
from vfsd.codecs.encoding.encoder import (
    INTRA_CODECS,
    UNEVEN_CODECS,
    WORST_QUALITY,
    EncoderSettings,
    encode,
    parameter_sets,
    require_encodable,
)
from vfsd.codecs.frames.color import ColorSettler
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import Pixels
from vfsd.core.model import Segment
from vfsd.derive.promotion_candidates import Candidates, Made
from vfsd.disk.block_checksums import merged
from vfsd.errors import IntegrityError
from vfsd.storage.file_cache import Bytes, file_of
from vfsd.tiling import Rect
from vfsd.views.context import Workshop
from vfsd.views.convert import PictureConverter, PictureForm
from vfsd.views.encodetimes import EncodeTimer, EncodeTimes
from vfsd.views.plan_steps import CopiedPart, MadePart, ViewPart
from vfsd.views.quality_probe import Measure, Origins
from vfsd.views.rate_control import coarser, is_lossless
from vfsd.views.read_notes import Pictures
from vfsd.views.render_queue import Check
from vfsd.views.size_model import Shape, allot, allot_lossless
from vfsd.views.source import Footage
from vfsd.views.timeline import Showing, segment_ticks

LEAST_PICTURES = 8
"""Of a segment: fewer would spend most of their bytes on key pictures."""

_TELLING_PICTURES, _TELLING_SHARE = 6, 4
"""After so many pictures, and such a part of a segment, those to come are taken to be like them."""
_BARELY = 1.03, 1.25
"""Times the room that a segment would need for it to be given up then.  With less it may fit after
all; with more it is given up soon in any case, and would be made too coarse if it gets calmer."""
# Pictures of a segment are decoded first and encoded later, so that the next thread can go on
# decoding the same GOP: 2.8 s of CPU instead of 4.0 for 10 s of 1080p to 540p.
_HELD_BYTES = 128 << 20
"""Of pictures that wait to be encoded, for each thread that does: 40 of 1080p."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """The packets of a segment, as its container wants them."""

    payloads: list[bytes]
    quality: int = 0  #: that the encoder was given
    luma: float | None = None
    """dB against the original in that size; None where nobody has measured it."""


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
        self.is_scaled_whole = _is_scaled_whole(footage, pictures, settings)
        """Whether its pictures are what those of a rendition would be."""
        self.stored: Mapping[int, Segment] = self._find_stored()
        """By number of the segment: what was encoded for somebody before, in that codec and size,
        and is stored as a part of a rendition."""

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

    def has_tiles(self, number: int) -> bool:
        """Whether any of the frames of a segment may come from elsewhere than the original."""
        frames = self.frames(number)
        first, last = int(frames[0]), int(frames[-1])
        place = bisect_right(self._tiled, last, key=lambda some: some.start)
        return place > 0 and first < self._tiled[place - 1].stop

    def run(self, number: int) -> range | None:
        """The frames of a segment that are in a row, each shown once; None where they are not."""
        frames = self.frames(number)
        first, end = int(frames[0]), int(frames[-1]) + 1
        return range(first, end) if bool((np.diff(frames) == 1).all()) else None

    @cached_property
    def _tiled(self) -> list[range]:
        """The frames that lie in tiles."""
        tiles = self.footage.tiles
        return [] if tiles is None else merged([one.frames for one in tiles.stored])

    @cached_property
    def extradata(self) -> bytes:
        """The parameter sets, as decoders of packets with start codes want them."""
        if self.settings.codec not in NAL_CODECS:
            return b""
        return with_start_codes(parameter_sets(self.settings))

    def encoded(
        self, number: int, framing: Framing, room: int, workshop: Workshop
    ) -> EncodedSegment:
        """The packets of a segment, which have to fit into `room` bytes.

        Ends: each turn has a coarser quality, up to the coarsest, and then pictures of one gray,
        for which there is room enough always.
        """
        copied = self._copied(number, framing, room, workshop)
        if copied is not None:
            return EncodedSegment(copied)
        first, stop = self._bounds(number)
        quality = self.settings.quality
        origins = Origins()
        held = self._held(first, stop, workshop, origins)
        is_measured = (
            workshop.candidates is not None
            and self.is_scaled_whole
            and self.run(number) is not None
        )
        while True:
            settings = dataclasses.replace(self.settings, quality=quality)
            pictures = iter(held) if held else self._decoded(first, stop, workshop, origins)
            measure = None
            if is_measured:
                measure = Measure(settings, self.extradata)
            payloads, size = _packets(
                settings,
                framing,
                pictures,
                stop - first,
                room,
                workshop.check,
                measure,
                workshop.times,
            )
            if size <= room:
                luma = None
                if measure is not None and origins.is_original:
                    luma = measure.luma
                return EncodedSegment(payloads, quality, luma)
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
        return EncodedSegment(payloads)

    def note(
        self,
        number: int,
        segment: EncodedSegment,
        framing: Framing,
        candidates: Candidates,
        key: str,
        data: Bytes,
    ) -> None:
        """A segment that was measured lies in `data`, which the cache keeps under `key` of this
        video."""
        frames = self.run(number)
        assert frames is not None
        assert segment.luma is not None
        settings = self.settings
        made = Made(
            frames,
            (settings.width, settings.height),
            settings.codec,
            segment.quality,
            segment.luma,
            self.extradata,
        )
        digest = self.footage.digest
        candidates.note(digest, made, framing, segment.payloads, file_of(digest, key), data)

    def _copied(
        self, number: int, framing: Framing, room: int, workshop: Workshop
    ) -> list[bytes] | None:
        """What is stored of a segment, if it is there, whole, and not too large."""
        segment = self.stored.get(number)
        if segment is None:
            return None
        try:
            (cell,) = workshop.packs.cells(segment)
            if cell.extradata != self.extradata:  # another version of the encoder
                return None
            packets = workshop.packs.payloads(segment, 0, len(segment.frames))
        except (IntegrityError, FileNotFoundError) as error:
            _log.debug("a segment of a view is encoded again: %s", error)
            workshop.mender.note(error)
            return None
        payloads = [framing.convert(packet, not place) for place, packet in enumerate(packets)]
        return payloads if sum(map(len, payloads)) <= room else None

    def _find_stored(self) -> dict[int, Segment]:
        tiles, settings = self.footage.tiles, self.settings
        if tiles is None or not self.is_scaled_whole:
            return {}
        good = tiles.good_for(self.pictures, self.footage.physical)
        alike = {
            segment.frames: segment
            for segment in tiles.segments
            if segment.profile == settings.codec
            and segment.picture == (settings.width, settings.height)
            and good(segment, [cell.tile for cell in segment.cells])
        }
        found = {}
        for number in range(len(self.starts)) if alike else ():
            frames = self.run(number)
            if frames is not None and frames in alike:
                found[number] = alike[frames]
        return found

    @property
    def parts(self) -> list[ViewPart]:
        """What is stored already is copied, if it is still there and whole; the rest is made."""
        found: list[ViewPart] = []
        for is_stored, together in groupby(range(len(self.starts)), self.stored.__contains__):
            numbers = list(together)
            found += [self._stored_part(self.stored[number]) for number in numbers if is_stored]
            if not is_stored:
                frames = np.concatenate([self.frames(number) for number in numbers])
                size = int(self.sizes[numbers].sum())
                shown = Pictures(self.footage, frames, self.pictures)
                found.append(MadePart(shown, self.settings.codec, size))
        return found

    def _stored_part(self, segment: Segment) -> CopiedPart:
        cells = segment.cells
        return CopiedPart(
            segment.frames,
            len(segment.frames),
            "tiles",
            segment.profile,
            sum(cell.size for cell in cells),
            self.pictures.psnr_of(cells, segment.picture),
        )

    def _held(self, first: int, stop: int, workshop: Workshop, origins: Origins) -> list[Pixels]:
        """The pictures of a segment; none where they are too large to be held.

        So the next segment can be decoded from where this one ends, while this one is encoded.
        """
        if (stop - first) * PictureConverter(self.pictures).bytes > _HELD_BYTES:
            return []
        with workshop.turn(self._key, first):
            return list(self._decoded(first, stop, workshop, origins))

    def _decoded(
        self, first: int, stop: int, workshop: Workshop, origins: Origins
    ) -> Iterator[Pixels]:
        footage, frames = self.footage, self._showing.frames
        converter = PictureConverter(self.pictures)
        settler = ColorSettler(footage.physical.media)
        threads = workshop.pool.threads_for(footage.physical.media)
        with workshop.cursor(self._key, footage, converter, frames, first, threads) as cursor:
            for picture, held in cursor.pictures(first, stop):
                origins.is_original &= held is None and settler.is_settled(picture)
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


def _packets(
    settings: EncoderSettings,
    framing: Framing,
    pictures: Iterator[Pixels],
    count: int,
    room: int,
    check: Check,
    measure: Measure | None = None,
    times: EncodeTimes | None = None,
) -> tuple[list[bytes], int]:
    """The packets of `count` pictures, and their size together.

    Where it can be foreseen, this stops as soon as they are more than `room` bytes, or bound to be;
    the size is then what it would have become.
    """
    payloads: list[bytes] = []
    size = 0
    foreseen = max(_TELLING_PICTURES, count // _TELLING_SHARE)
    is_uneven = settings.codec in UNEVEN_CODECS
    if is_uneven or settings.quality == WORST_QUALITY[settings.codec]:
        foreseen = count  # what does not fit at the worst quality cannot be made
    if measure is not None:
        pictures = measure.seen(pictures)
    timer = EncodeTimer()
    for ordinal, packet in enumerate(timer.taken(encode(settings, timer.given(pictures)))):
        check()
        if measure is not None:
            measure.packet(packet)
        payloads.append(framing.convert(packet, ordinal == 0))
        size += len(payloads[-1])
        if (size > room and not is_uneven) or ordinal >= foreseen:
            key = len(payloads[0])
            whole = key + (size - key) * (count - 1) // max(1, ordinal)
            if size > room or _BARELY[0] < whole / room < _BARELY[1]:
                return payloads, whole
    if times is not None:
        pixels = settings.width * settings.height * len(payloads)
        times.add(settings.codec, pixels, timer.seconds)
    return payloads, size


def _is_scaled_whole(footage: Footage, pictures: PictureForm, settings: EncoderSettings) -> bool:
    """Whether these are all of the stored pictures, in another size and else as a rendition has
    them."""
    media, size = footage.physical.media, pictures.size
    codec = VIEW_CODECS.get(settings.codec)
    return (
        codec is not None
        and codec.pixel_formats.get(media.pixel_format) == settings.pixel_format
        and not media.is_turned
        and footage.physical.verified  # frame numbers must not change afterwards
        and pictures.region == media.frame_rect
        and size != (media.width, media.height)
        and Rect.of_size(media.width, media.height).contains(Rect.of_size(*size))
    )


def _segment_starts(showing: Showing) -> Ints:
    """The pictures that segments begin with: the first in each stretch of time.

    The first stretch is a quarter of the others, so that a reader soon has something to show.
    """
    ticks = segment_ticks(showing, LEAST_PICTURES)
    stretches = (showing.starts + ticks - ticks // 4) // ticks
    return np.flatnonzero(np.diff(stretches, prepend=-1))
