"""Views that are decoded and encoded again.

`TranscodedView` is a header and one slot for each segment of about a second.  `SegmentedEncode`
encodes each segment independently into a slot of fixed size.
"""

from __future__ import annotations

import dataclasses
import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import groupby

import numpy as np
from blake3 import blake3

from vfsd.codecs.cells.cell_encoders import VIEW_CODECS
from vfsd.codecs.containers.muxers import (
    NAL_CODECS,
    PacketFormat,
    encoder_packet_format,
    muxer_for,
    with_start_codes,
)
from vfsd.codecs.containers.tracks import (
    MIN_PADDING,
    Muxer,
    PacketTimes,
    SegmentIndex,
    VideoTrack,
    overhead,
)
from vfsd.codecs.encoding.encoder import (
    INTRA_ENCODERS,
    ODD_SIZE_CODECS,
    WORST_QUALITY,
    EncoderSettings,
    encode_pictures,
    parameter_sets,
    require_encodable,
)
from vfsd.codecs.frames.color import ColorNormalizer
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import MediaInfo, Segment
from vfsd.core.pixel_array import Pixels
from vfsd.core.view_request import View, ViewForm
from vfsd.derive.promotion_candidates import CachedRun, CandidateIndex
from vfsd.disk.checksums import merged
from vfsd.errors import IntegrityError
from vfsd.storage.file_cache import Bytes, cache_file_name
from vfsd.tiling import Rect
from vfsd.views.render_context import Checkpoint, EncodeTimer, EncodeTimes, RenderContext
from vfsd.views.view_audio import SegmentedAudio, ViewAudio
from vfsd.views.view_input import (
    PictureConverter,
    PictureForm,
    ViewInput,
    ViewTimeline,
    decoded_picture_form,
    is_lossless,
    packet_times,
    segment_bounds,
    segment_ticks,
    shows_each_frame,
    side_data_of_encoding,
)
from vfsd.views.view_slots import (
    DEFAULT_QUALITY,
    CopiedPart,
    DecodedFrames,
    EncodedShape,
    PictureOrigins,
    QualityProbe,
    RenderedPart,
    Slots,
    VariableSizeSlots,
    ViewPart,
    coarser,
    lossless_slot_sizes,
    slot_sizes,
)

_log = logging.getLogger(__name__)

MIN_SEGMENT_PICTURES = 8
"""Shorter segments would spend most of their bytes on key pictures."""
# After this many pictures, or this fraction of a segment, its final size is extrapolated.
_MIN_SAMPLE_PICTURES, _SAMPLE_DIVISOR = 6, 4
# A predicted size between these multiples of the limit aborts the encode.
#
# Below, the segment may still fit.  Above, it exceeds the limit soon anyway, and aborting now would
# choose too coarse a quality if the rest is easier to encode.
_EXCESS_TO_ABORT = 1.03, 1.25
# Decoded pictures waiting for the encoder, for each thread: 40 of 1080p.
# Pictures of a segment are decoded first and encoded later, so that the next thread can go on
# decoding the same GOP: 2.8 s of CPU instead of 4.0 for 10 s of 1080p to 540p.
_PENDING_PICTURE_BYTES = 128 << 20
DEFAULT_CODEC = "h264"
# The kernel reads whole pages. If slots shared a page, a seek to one segment would also render the
# segment before it. Rounding adds 2 kB a segment.
_PAGE_BYTES = 4096
CONFIGURATION_BYTES = 512
"""Space in the header for the parameter sets, known only to the encoder: about 100 bytes."""


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """The packets of a segment in the container's format."""

    payloads: list[bytes]
    quality: int = 0  #: the encoder's quality setting
    luma: float | None = None
    """dB against the original in that size; None if it was not measured."""


class SegmentedEncode:
    """Pictures that are encoded in segments, each with a number of bytes fixed in advance."""

    def __init__(
        self,
        key: str,
        source: ViewInput,
        pictures: PictureForm,
        settings: EncoderSettings,
        timeline: ViewTimeline,
    ) -> None:
        """`key` identifies the source, the form of the pictures and the timeline.

        Raises `UsageError` for sizes that the codec does not support.
        """
        self.source = source
        self.pictures = pictures
        self.settings = settings
        self._key = key
        self._timeline = timeline
        width, height = pictures.size
        require_encodable(settings.codec, width, height)
        self.shown = timeline.starts  #: display time of each picture, in ticks
        self.starts = _segment_starts(timeline)  #: index of the first picture of each segment
        self.keys = np.zeros(len(timeline), np.int64)  #: 1 for key packets
        self.keys[slice(None) if settings.codec in INTRA_ENCODERS else self.starts] = 1
        self.sizes = self._allotted()  #: bytes of each segment without container overhead
        self.is_scaled_whole = _is_scaled_whole(source, pictures, settings)
        """Whether its pictures are equal to those of a rendition."""
        self.stored: Mapping[int, Segment] = self._find_stored()
        """By segment number: a stored part of a rendition in that codec and size."""

    def _allotted(self) -> Ints:
        settings, media = self.settings, self.source.physical.media
        if is_lossless(settings.codec):
            counts = np.diff(np.append(self.starts, len(self._timeline)))
            return lossless_slot_sizes(
                PictureConverter(self.pictures).samples, settings.bits, counts
            )
        width, height = self.pictures.size
        return slot_sizes(
            settings.codec,
            media.codec,
            EncodedShape(media.frame_rect.area, self.pictures.region.area, width * height),
            self.source.table,
            self._timeline.frames,
            self.starts,
        )

    def frames(self, number: int) -> Ints:
        """Return the frames of a segment."""
        return self._timeline.frames[slice(*self._bounds(number))]

    def has_tiles(self, number: int) -> bool:
        """Return whether any frame of a segment may be decoded from tiles."""
        frames = self.frames(number)
        first, last = int(frames[0]), int(frames[-1])
        place = bisect_right(self._tiled, last, key=lambda some: some.start)
        return place > 0 and first < self._tiled[place - 1].stop

    def run(self, number: int) -> range | None:
        """Return the frames of a segment as a range; None if frames are repeated or skipped."""
        frames = self.frames(number)
        first, end = int(frames[0]), int(frames[-1]) + 1
        return range(first, end) if bool((np.diff(frames) == 1).all()) else None

    @cached_property
    def _tiled(self) -> list[range]:
        """The frames that are available in tiles."""
        tiles = self.source.tiles
        return [] if tiles is None else merged([one.frames for one in tiles.stored])

    @cached_property
    def extradata(self) -> bytes:
        """The parameter sets with start codes, for decoders."""
        if self.settings.codec not in NAL_CODECS:
            return b""
        return with_start_codes(parameter_sets(self.settings))

    def encoded(
        self, number: int, framing: PacketFormat, room: int, context: RenderContext
    ) -> EncodedSegment:
        """Return the packets of a segment, in at most `room` bytes.

        Each attempt has a coarser quality.  After the coarsest the segment becomes plain gray,
        which always fits.
        """
        copied = self._copied(number, framing, room, context)
        if copied is not None:
            return EncodedSegment(copied)
        first, stop = self._bounds(number)
        quality = self.settings.quality
        origins = PictureOrigins()
        held = self._held(first, stop, context, origins)
        is_measured = (
            self.is_scaled_whole and self.run(number) is not None and context.candidates is not None
        )
        while True:
            settings = dataclasses.replace(self.settings, quality=quality)
            # Pictures that are not held in memory are decoded again for each attempt.
            pictures = iter(held) if held else self._decoded(first, stop, context, origins)
            measure = None
            if is_measured:
                measure = QualityProbe(settings, self.extradata)
            payloads, size = _encode_packets(
                settings,
                framing,
                pictures,
                stop - first,
                room,
                context.check,
                measure,
                context.times,
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
                "a lossless view has too few bytes for pictures that are close to noise",
                hint="read them as y4m, or in another codec",
            )
        gray = self._gray(stop - first)
        payloads, size = _encode_packets(settings, framing, gray, stop - first, room, context.check)
        if size > room:
            raise IntegrityError("the encoder exceeded the bytes reserved for plain gray")
        return EncodedSegment(payloads)

    def note(
        self,
        number: int,
        segment: EncodedSegment,
        framing: PacketFormat,
        candidates: CandidateIndex,
        key: str,
        data: Bytes,
    ) -> None:
        """Report a measured segment that the cache keeps in `data` under `key` of this video."""
        frames = self.run(number)
        assert frames is not None
        assert segment.luma is not None
        settings = self.settings
        made = CachedRun(
            frames,
            (settings.width, settings.height),
            settings.codec,
            segment.quality,
            segment.luma,
            self.extradata,
        )
        digest = self.source.digest
        candidates.note(digest, made, framing, segment.payloads, cache_file_name(digest, key), data)

    def _copied(
        self, number: int, framing: PacketFormat, room: int, context: RenderContext
    ) -> list[bytes] | None:
        """Return the stored packets of a segment if they are readable and not too large."""
        segment = self.stored.get(number)
        if segment is None:
            return None
        try:
            (cell,) = context.packs.cells(segment)
            if cell.extradata != self.extradata:  # from another version of the encoder
                return None
            packets = context.packs.payloads(segment, 0, len(segment.frames))
        except (IntegrityError, FileNotFoundError) as error:
            _log.debug("a segment of a view is encoded again: %s", error)
            context.drop_damaged_tiles(error)
            return None
        payloads = [framing.convert(packet, not place) for place, packet in enumerate(packets)]
        return payloads if sum(map(len, payloads)) <= room else None

    def _find_stored(self) -> dict[int, Segment]:
        tiles, settings = self.source.tiles, self.settings
        if tiles is None or not self.is_scaled_whole:
            return {}
        good = tiles.good_for(self.pictures, self.source.physical)
        matching = {
            segment.frames: segment
            for segment in tiles.segments
            if segment.profile == settings.codec
            and segment.picture == (settings.width, settings.height)
            and good(segment, [cell.tile for cell in segment.cells])
        }
        found = {}
        for number in range(len(self.starts)) if matching else ():
            frames = self.run(number)
            if frames is not None and frames in matching:
                found[number] = matching[frames]
        return found

    @property
    def parts(self) -> list[ViewPart]:
        """Copied parts for segments that are stored already, and rendered parts for the others."""
        found: list[ViewPart] = []
        for is_stored, together in groupby(range(len(self.starts)), self.stored.__contains__):
            numbers = list(together)
            found += [self._stored_part(self.stored[number]) for number in numbers if is_stored]
            if not is_stored:
                frames = np.concatenate([self.frames(number) for number in numbers])
                size = int(self.sizes[numbers].sum())
                shown = DecodedFrames(self.source, frames, self.pictures)
                found.append(RenderedPart(shown, self.settings.codec, size))
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

    def _held(
        self, first: int, stop: int, context: RenderContext, origins: PictureOrigins
    ) -> list[Pixels]:
        """Return the pictures of a segment; empty if they are too large to be kept in memory.

        The next segment can be decoded from the end of this one while this one is encoded.
        """
        if (stop - first) * PictureConverter(self.pictures).bytes > _PENDING_PICTURE_BYTES:
            return []
        with context.decode_lock(self._key, first):
            return list(self._decoded(first, stop, context, origins))

    def _decoded(
        self, first: int, stop: int, context: RenderContext, origins: PictureOrigins
    ) -> Iterator[Pixels]:
        source, frames = self.source, self._timeline.frames
        converter = PictureConverter(self.pictures)
        normalizer = ColorNormalizer(source.physical.media)
        threads = context.pool.threads_for(source.physical.media)
        with context.cursor(self._key, source, converter, frames, first, threads) as cursor:
            for number, (picture, held) in enumerate(cursor.pictures(first, stop), first):
                # A PSNR measured against pictures of tiles would ignore their own error.
                origins.is_original &= held is None and normalizer.is_normal(picture)
                samples = converter.convert(picture, held)
                if source.drawn is not None:
                    source.drawn.draw(samples, int(frames[number]), self.pictures)
                yield samples

    def _gray(self, count: int) -> Iterator[Pixels]:
        converter = PictureConverter(self.pictures)
        picture = np.full(converter.shape, 1 << self.settings.bits - 1, converter.dtype)
        return (picture for _ in range(count))

    def _bounds(self, number: int) -> tuple[int, int]:
        return segment_bounds(self.starts, len(self._timeline), number)

    def times(self, number: int) -> PacketTimes:
        first, stop = self._bounds(number)
        return packet_times(self._timeline, first, stop, self.keys[first:stop])


def _encode_packets(
    settings: EncoderSettings,
    framing: PacketFormat,
    pictures: Iterator[Pixels],
    count: int,
    room: int,
    check: Checkpoint,
    measure: QualityProbe | None = None,
    times: EncodeTimes | None = None,
) -> tuple[list[bytes], int]:
    """Return the packets of `count` pictures and their total size.

    Encoding stops as soon as they exceed `room` bytes or are predicted to.  The size is then the
    predicted one.
    """
    payloads: list[bytes] = []
    size = 0
    sample = max(_MIN_SAMPLE_PICTURES, count // _SAMPLE_DIVISOR)
    is_uneven = settings.codec in ODD_SIZE_CODECS
    if is_uneven or settings.quality == WORST_QUALITY[settings.codec]:
        sample = count  # a segment at the worst quality has no further attempt
    if measure is not None:
        pictures = measure.seen(pictures)
    timer = EncodeTimer()
    for ordinal, packet in enumerate(timer.taken(encode_pictures(settings, timer.given(pictures)))):
        check()
        if measure is not None:
            measure.packet(packet)
        payloads.append(framing.convert(packet, ordinal == 0))
        size += len(payloads[-1])
        if (size > room and not is_uneven) or ordinal >= sample:
            key = len(payloads[0])
            whole = key + (size - key) * (count - 1) // max(1, ordinal)
            if size > room or _EXCESS_TO_ABORT[0] < whole / room < _EXCESS_TO_ABORT[1]:
                return payloads, whole
    if times is not None:
        pixels = settings.width * settings.height * len(payloads)
        times.add(settings.codec, pixels, timer.seconds)
    return payloads, size


def _is_scaled_whole(source: ViewInput, pictures: PictureForm, settings: EncoderSettings) -> bool:
    """Return whether these are all stored pictures, scaled, in the form of a rendition."""
    media, size = source.physical.media, pictures.size
    codec = VIEW_CODECS.get(settings.codec)
    return (
        codec is not None
        and source.drawn is None
        and codec.pixel_formats.get(media.pixel_format) == settings.pixel_format
        and not media.is_turned
        and source.physical.verified  # frame numbers may still change otherwise
        and pictures.region == media.frame_rect
        and size != (media.width, media.height)
        and Rect.of_size(media.width, media.height).contains(Rect.of_size(*size))
    )


def _segment_starts(timeline: ViewTimeline) -> Ints:
    """Return the index of the first picture of each segment: the first in each interval.

    The first interval has a quarter of the length, so that a player can start early.
    """
    ticks = segment_ticks(timeline, MIN_SEGMENT_PICTURES)
    stretches = (timeline.starts + ticks - ticks // 4) // ticks
    return np.flatnonzero(np.diff(stretches, prepend=-1))


class TranscodedView:
    """A file of encoded segments.  Slot 0 is the container's header."""

    method = "encoded"

    def __init__(
        self,
        keys: tuple[str, str],
        source: ViewInput,
        view: View,
        form: ViewForm,
        timeline: ViewTimeline,
        sound: ViewAudio | None,
        *,
        why: str,
    ) -> None:
        """Reserve a slot for each segment.

        `keys` identify the view, and the same view made from the original alone.  `why` is the
        reason why none of it can be copied.  Raises `UsageError` for sizes that the codec does not
        support.
        """
        key, original_key = keys
        self.why = why
        self.memory = timeline.memory + (sound.memory if sound else 0)
        self.memory += source.drawn.memory if source.drawn else 0
        self._sound_track = sound.track if sound else None
        self._timeline = timeline
        self._container = form.container
        media = source.physical.media
        pictures = decoded_picture_form(media, view, form)
        codec = form.codec or DEFAULT_CODEC
        settings = encoder_settings(media, codec, pictures, timeline)
        self.marks = side_data_of_encoding(
            media, form.container, pictures, each_frame=shows_each_frame(view)
        )
        self._run = run = SegmentedEncode(key, source, pictures, settings, timeline)
        self._known_framing: PacketFormat | None = None
        muxer = self._muxer(bytes(1))
        self._sound = SegmentedAudio(sound, muxer, timeline.starts, run.starts, timeline.time_base)
        # The limit for pictures must not depend on the sound or on page boundaries.
        self._rooms = run.sizes + muxer.overheads(timeline.starts, run.keys, run.starts)
        sizes = _aligned_to_pages(self._rooms + self._sound.sizes)
        self.segment_index = SegmentIndex(
            sizes=sizes,
            starts=timeline.starts[run.starts],
            starts_with_key=np.ones(len(sizes), np.int64),
            end=timeline.end,
        )
        header = len(muxer.header(spare=CONFIGURATION_BYTES)) + muxer.index_size(len(sizes))
        self.slots: Slots = VariableSizeSlots(int(_aligned_to_pages(np.array([header]))[0]), sizes)
        # Stored parts of a rendition need no copy in the cache.
        self.storable = frozenset(
            slot for slot in range(1, len(self.slots)) if slot - 1 not in run.stored
        )
        self.is_work = bool(self.storable)
        # The header depends on all sizes, so other sizes need another key.
        self.key = blake3(key.encode() + sizes.tobytes()).hexdigest()
        self.digest = source.digest
        self._original_key = blake3(original_key.encode() + sizes.tobytes()).hexdigest()

    @property
    def pixel_format(self) -> str:
        """The pixel format of the encoded pictures."""
        return self._run.settings.pixel_format

    @property
    def is_lossless(self) -> bool:
        return is_lossless(self._run.settings.codec)

    def key_of_slot(self, slot: int) -> str:
        """Return the key of a slot; it survives changes of tiles if the slot is made from the
        original.
        """
        is_changing = slot > 0 and self._run.has_tiles(slot - 1)
        return f"{self.key if is_changing else self._original_key}.{slot}"

    def make(self, slot: int, context: RenderContext) -> bytes:
        framing = self._framing()
        muxer = self._muxer(framing.configuration)
        size = self.slots[slot].size
        if not slot:
            return muxer.header(
                self.segment_index, spare=size - len(muxer.header(self.segment_index))
            )
        number = slot - 1
        times = self._run.times(number)
        room = int(self._rooms[number]) - overhead(muxer, times) - MIN_PADDING
        segment = self._run.encoded(number, framing, room, context)
        sound = self._sound.packets(number, context)
        data = muxer.segment(number, times, segment.payloads, size, sound)
        if segment.luma is not None and context.candidates is not None:
            self._run.note(
                number, segment, framing, context.candidates, self.key_of_slot(slot), data
            )
        return data

    def trimmed(self, slot: int, data: bytes) -> bytes:
        """Return what `make` returned for a slot other than the header, without padding."""
        return self._muxer(self._framing().configuration).trimmed(data)

    def header_for(self, sizes: Ints) -> bytes:
        """Return a header of the same size for segments of the given sizes."""
        muxer = self._muxer(self._framing().configuration)
        index = dataclasses.replace(self.segment_index, sizes=sizes)
        return muxer.header(index, spare=self.slots[0].size - len(muxer.header(index)))

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        run = self._run
        parts = [run.frames(slot - 1) for slot in slots if slot]
        return DecodedFrames(run.source, np.concatenate(parts), run.pictures) if parts else None

    @property
    def parts(self) -> Sequence[ViewPart]:
        return self._run.parts

    def _framing(self) -> PacketFormat:
        settings = self._run.settings
        if self._known_framing is None:  # two threads may compute the same value
            stream = self._container in ("h264", "hevc")
            self._known_framing = encoder_packet_format(
                settings.codec, parameter_sets(settings), stream=stream, bits=settings.bits
            )
        return self._known_framing

    def _muxer(self, configuration: bytes) -> Muxer:
        settings, timeline = self._run.settings, self._timeline
        track = VideoTrack(
            codec=settings.codec,
            width=settings.width,
            height=settings.height,
            configuration=configuration,
            time_base=timeline.time_base,
            duration=timeline.end,
            longest=timeline.longest(self._run.starts),
            rate=timeline.rate,
            sample_aspect_ratio=settings.sample_aspect_ratio,
            colors=settings.color_codes if is_lossless(settings.codec) else None,
            marks=self.marks,
        )
        return muxer_for(self._container, track, self._sound_track)


def _aligned_to_pages(sizes: Ints) -> Ints:
    """Round sizes up to whole pages, see `_PAGE_BYTES`."""
    return -(-sizes // _PAGE_BYTES) * _PAGE_BYTES


def encoder_settings(
    media: MediaInfo, codec: str, pictures: PictureForm, timeline: ViewTimeline
) -> EncoderSettings:
    """Return settings for encoding such pictures of `media`."""
    ratio = pictures.sample_aspect_ratio
    settings = EncoderSettings(
        codec=codec,
        width=pictures.size[0],
        height=pictures.size[1],
        quality=DEFAULT_QUALITY[codec],
        rate=timeline.mean_rate,
        sample_aspect_ratio=ratio if ratio != Fraction(1) else None,
        pixel_format=pictures.pixel_format,
    )
    return settings.with_colors_of(media)
