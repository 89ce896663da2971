"""Views that copy the packets of a browser rendition: whole pictures in its size, in H.264."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.containers.muxers import (
    PacketFormat,
    encoder_packet_format,
    muxer_for,
)
from vfsd.codecs.containers.tracks import MIN_PADDING, PacketTimes, SegmentIndex, VideoTrack
from vfsd.codecs.frames.color import media_color_codes
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import scaled_aspect
from vfsd.core.model import MediaInfo, Segment
from vfsd.core.view_request import View, ViewForm
from vfsd.errors import IntegrityError
from vfsd.read.pack_pool import PackPool
from vfsd.tiling.cost import WEB
from vfsd.views.render_context import RenderContext
from vfsd.views.stream_copy import require_segment_fits
from vfsd.views.view_audio import SegmentedAudio, ViewAudio
from vfsd.views.view_input import (
    MAX_SEGMENTS,
    PictureForm,
    ViewInput,
    ViewTimeline,
    packet_times,
    picture_form,
    shows_each_frame,
    side_data_of_encoding,
)
from vfsd.views.view_slots import CopiedPart, DecodedFrames, Slots, VariableSizeSlots, ViewPart

_log = logging.getLogger(__name__)

_CODEC = "h264"
# A packet grows by so much in a container, since start codes of three bytes become lengths of four.
# A packet has one slice, and the first of a segment also a message about the encoder.
_PACKET_GROWTH = 2
# Approximate memory of a run.
_RUN_BYTES = 1000


@dataclass(frozen=True, slots=True)
class RenditionRun:
    """The frames of a segment that a view shows, counted from the segment's first."""

    segment: Segment
    first: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.first

    @property
    def frames(self) -> range:
        """Frames of the video."""
        start = self.segment.first_frame
        return range(start + self.first, start + self.stop)


def find_rendition_copy(
    key: str,
    source: ViewInput,
    view: View,
    form: ViewForm,
    timeline: ViewTimeline,
    packs: PackPool,
    sound: ViewAudio | None,
) -> RenditionView | str | None:
    """Return `view` as a copy of a rendition's packets, or why none in its size can be copied.

    None: the view has another form, or there is no browser rendition in its size.
    """
    media = source.physical.media
    size = view.size or (media.display_width, media.display_height)
    stored = size if media.rotation % 180 == 0 else size[::-1]
    is_whole = view.region in (None, media.frame_rect) and shows_each_frame(view)
    is_form = form.codec in (None, _CODEC) and form.layout == "yuv420p"
    if source.tiles is None or not is_whole or not is_form or form.is_raw:
        return None
    there = [one for one in source.tiles.segments if one.profile == WEB and one.picture == stored]
    if not there:
        return None
    if media.is_turned and form.container != "mp4":
        return f"{form.container} cannot store that its pictures are rotated or mirrored"
    pictures = picture_form(media, view, form.layout)
    # Without a `psnr` of the request, any quality: encoded views have none of their own either.
    good = source.tiles.psnr_test(pictures, source.physical)
    runs = _runs(timeline, [one for one in there if good(one, [cell.tile for cell in one.cells])])
    if isinstance(runs, str):
        return runs
    if len(runs) > MAX_SEGMENTS:
        return "its browser rendition has too many segments for one file"
    try:
        return RenditionView(key, source, form, timeline, runs, pictures, packs, sound)
    except (IntegrityError, nal.BitstreamError, OSError) as error:
        _log.warning("a view is encoded instead of copied: %s", error)
        return f"its browser rendition cannot be read: {error}"


def _runs(timeline: ViewTimeline, segments: Sequence[Segment]) -> list[RenditionRun] | str:
    """Return the parts of `segments` that show the frames of a view, in order."""
    at, stop = int(timeline.frames[0]), int(timeline.frames[-1]) + 1
    found: list[RenditionRun] = []
    for segment in sorted(segments, key=lambda one: one.first_frame):
        if segment.end_frame <= at:
            continue
        if segment.first_frame > at or at >= stop:
            break
        first = at - segment.first_frame
        if first and (segment.gop is None or first % segment.gop):
            return "it begins between two key pictures of its browser rendition"
        at = min(stop, segment.end_frame)
        found.append(RenditionRun(segment, first, at - segment.first_frame))
    return found if at == stop else f"its browser rendition lacks frame {at}"


class RenditionView:
    """A file of the copied packets of a rendition.  Slot 0 is the container's header."""

    method = "copied"
    is_work = False
    storable = range(0)
    """Copying again is as fast as reading from a cache."""

    def __init__(
        self,
        key: str,
        source: ViewInput,
        form: ViewForm,
        timeline: ViewTimeline,
        runs: Sequence[RenditionRun],
        pictures: PictureForm,
        packs: PackPool,
        sound: ViewAudio | None,
    ) -> None:
        """Place the runs in the file.  Raises `IntegrityError`, `BitstreamError`, `OSError`."""
        numbers = ",".join(f"{run.segment.id}:{run.first}:{run.stop}" for run in runs)
        self.key = blake3(f"{key} rendition {numbers}".encode()).hexdigest()
        self.digest = source.digest
        media = source.physical.media
        self.marks = side_data_of_encoding(media, form.container, pictures, each_frame=True)
        self.memory = timeline.memory + _RUN_BYTES * len(runs) + (sound.memory if sound else 0)
        self._timeline = timeline
        self._runs = runs
        self._pictures = pictures
        self._extradata = _common_extradata(runs, packs)
        sets = nal.parameter_sets(_CODEC, self._extradata)
        self._framing = encoder_packet_format(_CODEC, sets, stream=form.container == _CODEC)
        counts = np.array([run.count for run in runs], np.int64)
        self._starts = np.cumsum(counts) - counts  #: index of the first picture of each run
        self._bytes = np.array([_stored_bytes(run, packs) for run in runs], np.int64)
        self._muxer = muxer_for(
            form.container, self._track(media, self._framing), sound.track if sound else None
        )
        self._sound = SegmentedAudio(
            sound, self._muxer, timeline.starts, self._starts, timeline.time_base
        )
        keys = np.concatenate([_keys_of(run) for run in runs])
        repeated = len(self._framing.repeated) * np.add.reduceat(keys, self._starts)
        totals = self._bytes + _PACKET_GROWTH * counts + repeated
        totals += self._muxer.overheads(timeline.starts, keys, self._starts)
        totals += MIN_PADDING + self._sound.sizes
        self.segment_index = SegmentIndex(
            sizes=totals,
            starts=timeline.starts[self._starts],
            starts_with_key=np.ones(len(totals), np.int64),
            end=timeline.end,
        )
        header = len(self._muxer.header()) + self._muxer.index_size(len(totals))
        self.slots: Slots = VariableSizeSlots(header, totals)

    def make(self, slot: int, context: RenderContext) -> bytes:
        if not slot:
            return self._muxer.header(self.segment_index)
        size = self.slots[slot].size
        number = slot - 1
        try:
            keys, payloads = self._payloads(self._runs[number], context.packs)
        except (IntegrityError, nal.BitstreamError, OSError) as error:
            # The size is fixed already, so encoded pictures cannot replace the packets.
            context.drop_damaged_tiles(error)
            frames = self._runs[number].frames
            raise IntegrityError(
                f"the browser rendition of frames {frames.start} to {frames.stop - 1} is damaged "
                f"or gone: {error}",
                hint="`vfsd fsck` lists the damage; `vfsd render` makes it again",
            ) from error
        sound = self._sound.packets(number, context)
        times = self._times(number, keys)
        return require_segment_fits(self._muxer.segment(number, times, payloads, size, sound), size)

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        return None

    @property
    def parts(self) -> Sequence[ViewPart]:
        return [
            CopiedPart(
                run.frames,
                run.count,
                "tiles",
                run.segment.profile,
                int(size),
                self._pictures.psnr_of(run.segment.cells, run.segment.picture),
            )
            for run, size in zip(self._runs, self._bytes, strict=True)
        ]

    def _payloads(self, run: RenditionRun, packs: PackPool) -> tuple[Ints, list[bytes]]:
        """Return 1 for each key packet, and the packets in the form of the container."""
        (cell,) = packs.cells(run.segment)
        if cell.extradata != self._extradata:
            raise IntegrityError("a segment of a rendition has other headers than the first one")
        stored = packs.payloads(run.segment, 0, run.stop)[run.first :]
        keys = _keys_of(run)
        return keys, [
            self._framing.convert(packet, bool(is_key))
            for packet, is_key in zip(stored, keys, strict=True)
        ]

    def _times(self, number: int, keys: Ints) -> PacketTimes:
        first = int(self._starts[number])
        return packet_times(self._timeline, first, first + self._runs[number].count, keys)

    def _track(self, media: MediaInfo, framing: PacketFormat) -> VideoTrack:
        timeline = self._timeline
        width, height = self._runs[0].segment.picture
        ratio = media.sample_aspect_ratio
        return VideoTrack(
            codec=_CODEC,
            width=width,
            height=height,
            configuration=framing.configuration,
            time_base=timeline.time_base,
            duration=timeline.end,
            longest=timeline.longest(self._starts),
            rate=timeline.rate,
            rotation=media.rotation,
            mirrored=media.mirrored,
            sample_aspect_ratio=None
            if ratio is None
            else scaled_aspect(ratio, (media.width, media.height), (width, height)),
            colors=media_color_codes(media),
            marks=self.marks,
        )


def _common_extradata(runs: Sequence[RenditionRun], packs: PackPool) -> bytes:
    """Return the headers of the stream.  Raises `IntegrityError` if segments differ.

    Segments of one encoding have equal headers, so one of each is examined; `make` compares all.
    """
    segments = {run.segment.physical_id: run.segment for run in reversed(runs)}
    found = {packs.cells(segment)[0].extradata for segment in segments.values()}
    if len(found) > 1:
        raise IntegrityError("its segments come from different versions of the encoder")
    return found.pop()


def _stored_bytes(run: RenditionRun, packs: PackPool) -> int:
    """Return the bytes of its packets.  Only the runs at the ends of a view are parts."""
    if run.count == len(run.segment.frames):
        return sum(cell.size for cell in run.segment.cells)
    (cell,) = packs.cells(run.segment)
    return cell.offsets[run.stop] - cell.offsets[run.first]


def _keys_of(run: RenditionRun) -> Ints:
    """Return 1 for each key packet of a run, 0 for others."""
    gop = run.segment.gop or run.stop
    keys: Ints = (np.arange(run.first, run.stop) % gop == 0).astype(np.int64)
    return keys
