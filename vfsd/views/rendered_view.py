"""`RenderedView`, a view as a file of slots, and the choice of its kind.

`plan_view` takes the first method that applies: copy, stitch, smart cut, transcode. Raw pictures,
stills and text files are defined here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import numpy as np
from blake3 import blake3

from vfsd import __version__
from vfsd.codecs.encoding.encoder import (
    MIN_JPEG_QUANTISER,
    encode_jpeg,
    npy_file,
    npy_file_size,
    uncompressed_png,
    uncompressed_png_size,
)
from vfsd.codecs.frames.color import media_coding
from vfsd.codecs.frames.planes import shows_alpha
from vfsd.codecs.pyav import library_versions
from vfsd.core.frame_table_pages import Ints
from vfsd.core.label_query import Labels
from vfsd.core.pixel_array import Pixels
from vfsd.core.view_request import ALL_BOXES, View, ViewForm, ViewSpec, format_view_path
from vfsd.errors import NotFoundError, OutOfRangeError
from vfsd.read.read_context import ReadContext
from vfsd.read.read_log import Clauses
from vfsd.storage.file_cache import Bytes
from vfsd.tiling import Rect
from vfsd.views.drawn_boxes import DrawnBoxes
from vfsd.views.render_context import ByteBuffer, DecodeCursor, RenderContext
from vfsd.views.rendition_copy import RenditionView, find_rendition_copy
from vfsd.views.smart_cut import find_smart_cut
from vfsd.views.sound_view import SoundView, sound_window, wav_codec
from vfsd.views.stitch import find_stitch
from vfsd.views.stream_copy import find_copy
from vfsd.views.transcode import TranscodedView
from vfsd.views.view_audio import find_audio
from vfsd.views.view_input import (
    PictureConverter,
    PictureForm,
    ViewInput,
    ViewTimeline,
    decoded_picture_form,
    is_lossless,
    picture_form,
    timeline_of_view,
    why_not_copied,
)
from vfsd.views.view_slots import DecodedFrames, FixedSizeSlots, RenderedPart, Slots, ViewPart

STILL_SIZES = {"npy": npy_file_size, "png": uncompressed_png_size}
"""Still formats with a size that follows from width and height."""
# Increase it whenever the same request yields other bytes, also between releases.
_REVISION = 16
_Y4M_FRAME = b"FRAME\n"
# Color space tags as FFmpeg writes them.
_Y4M_LAYOUTS = {
    "yuv420p": "C420mpeg2 XYSCSS=420MPEG2",
    "yuv422p": "C422 XYSCSS=422",
    "yuv444p": "C444 XYSCSS=444",
    "yuv420p10": "C420p10 XYSCSS=420P10",
}


class RenderedView(Protocol):
    """A view as a file of slots."""

    @property
    def key(self) -> str:
        """Identifies its bytes."""

    @property
    def digest(self) -> str:
        """Digest of the video that it shows; empty if it shows none."""

    @property
    def slots(self) -> Slots: ...

    @property
    def storable(self) -> Collection[int]:
        """The slots that are expensive enough to be cached in files."""

    @property
    def is_work(self) -> bool:
        """Whether any slot takes more than copying bytes."""

    @property
    def memory(self) -> int:
        """Approximate bytes of memory that it uses."""

    def make(self, slot: int, context: RenderContext) -> Bytes:
        """Return the bytes of a slot without its zero padding.

        Slow.  Thread-safe.  Raises `IntegrityError`, `OSError`, and what `workshop.check` raises,
        which is called for each picture.
        """

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        """Return the frames that are decoded for the given slots, in ascending order, or None."""


@runtime_checkable
class PlannedView(RenderedView, Protocol):
    """A view that a name of the view grammar stands for."""

    @property
    def method(self) -> str:
        """The method: copied or stitched (nothing is decoded), spliced (copied except for encoded
        ends), encoded, or decoded (raw forms).
        """

    @property
    def parts(self) -> Sequence[ViewPart]:
        """The copied and rendered parts, by time."""

    @property
    def marks(self) -> Mapping[str, str]:
        """Side data of the pictures that the header carries."""


@runtime_checkable
class PaddedView(RenderedView, Protocol):
    """A view with padded slots that can also be written without padding."""

    def trimmed(self, slot: int, data: bytes) -> bytes:
        """Return what `make` returned for a slot other than the header, without padding."""

    def header_for(self, sizes: Ints) -> bytes:
        """Return a header of the same size for segments of the given sizes."""


@runtime_checkable
class InPlaceView(RenderedView, Protocol):
    """A view that can render slots into a given buffer."""

    def fill(self, slot: int, context: RenderContext, place: ByteBuffer) -> None:
        """Write the bytes of a slot to `place`, which has exactly its size."""


@runtime_checkable
class StreamableView(RenderedView, Protocol):
    """A view that is cheapest to render in order."""

    def stream(self, context: RenderContext) -> Generator[Bytes, None, None]:
        """Yield the bytes of each slot in order; each buffer is valid until the next iteration."""


def plan_view(source: ViewInput, request: ViewSpec, tools: ReadContext) -> PlannedView:
    """Return the cheapest way to make the view that `request` describes.

    Pictures come only from tiles of `source` that meet the request's `psnr` in its pixel format.
    A lossless view without a `psnr` is made from the original.

    Raises `OutOfRangeError` for a region or time outside the video, `UsageError` for a form that
    cannot be made.
    """
    media = source.physical.media
    source = view_input_for(request, source)
    # Equal views get equal keys, so a crop that removes nothing is dropped first.
    request = request.without_crop(media.display_width, media.display_height)
    view = request.resolve(media.display_width, media.display_height)
    form = request.form
    if form.is_sound:
        key = view_key(source, format_view_path(request))
        return SoundView(key, source, sound_window(source, view, form.sample_rate))
    pictures = decoded_picture_form(media, view, form)  # raises before any work is done
    timeline = timeline_of_view(view, source.physical, source.table)
    if request.boxes is not None:
        frames = range(int(timeline.frames[0]), int(timeline.frames[-1]) + 1)
        source = replace(source, drawn=boxes_to_draw(source, request.boxes, frames, tools))
    key = view_key(source, format_view_path(request))
    if form.is_raw:
        return RawView(key, source, view, form, timeline)
    found = find_audio(source, view, form, timeline)
    sound = None if isinstance(found, str) else found
    why = why_not_copied(source, view, form)
    if why is None:
        copied = find_copy(key, source, form, timeline, sound)
        if copied is not None:
            return copied
    rendition = None
    if source.drawn is None:
        rendition = find_rendition_copy(key, source, view, form, timeline, tools.packs, sound)
    if isinstance(rendition, RenditionView):
        return rendition
    if source.drawn is None and source.tiles is not None and source.tiles.segments:
        stitched = find_stitch(key, source, view, form, timeline, tools.packs, sound)
        if stitched is not None:
            return stitched
    if why is None:
        spliced = find_smart_cut(key, source, form, timeline, sound)
        if not isinstance(spliced, str):
            return spliced
        why = spliced
    why = rendition or why
    # Tiles that the view cannot use may change without invalidating its cached segments.
    frames = range(int(timeline.frames[0]), int(timeline.frames[-1]) + 1)
    source = source.usable_for(PictureConverter(pictures), frames)
    keys = (
        view_key(source, format_view_path(request)),
        view_key(replace(source, tiles=None), format_view_path(request)),
    )
    return TranscodedView(keys, source, view, form, timeline, sound, why=why)


def boxes_to_draw(
    source: ViewInput, labels: Labels, frames: range, tools: ReadContext
) -> DrawnBoxes:
    """Return the boxes on `frames` of a video.

    Raises `NotFoundError` for labels that no box in the store has ever had, and for a stream that
    has no boxes; `UsageError` for a malformed expression.
    """
    catalog = tools.parts.catalog
    with catalog.reading() as seen:
        info = seen.videos.get(source.physical.video_id)
    if info.original.media.stream_index != source.physical.media.stream_index:
        raise NotFoundError("boxes belong to the video's main stream")
    wanted = None if labels == ALL_BOXES else labels
    if unknown := catalog.detections.unknown_labels(wanted):
        raise NotFoundError(str(unknown))
    return DrawnBoxes(catalog.detections.find(info, wanted, frames=frames).columns())


def view_input_for(request: ViewSpec, source: ViewInput) -> ViewInput:
    """Return `source` limited to the tiles that meet the request's `psnr`."""
    psnr = request.psnr
    keeps_all = request.form.codec is not None and is_lossless(request.form.codec)
    if keeps_all and shows_alpha(source.physical.media):
        psnr = math.inf  # tiles have no alpha channel
    if psnr is None and keeps_all:
        psnr = math.inf  # no loss is allowed
    return source if psnr is None else source.with_quality(psnr)


@dataclass(frozen=True, slots=True)
class ViewAudioSummary:
    """How a view carries the sound of its video."""

    codec: str | None  #: of the view's sound; None if it has none
    origin: str | None  #: of the stored sound
    silence: str | None  #: why the view has no sound; of wav, which parts are silent

    @property
    def method(self) -> str | None:
        """copied or transcoded; None without sound."""
        if self.codec is None:
            return None
        return "copied" if self.codec == self.origin else "transcoded"

    @property
    def text(self) -> str:
        """A description for people."""
        if self.codec is None:
            return f"no sound: {self.silence}"
        if self.codec == self.origin:
            return f"{self.codec}, copied"
        return f"{self.codec}, transcoded from {self.origin}"


def audio_summary(source: ViewInput, request: ViewSpec) -> ViewAudioSummary:
    """Return how a view carries the sound of its video.  Raises as `plan_view` does."""
    media = source.physical.media
    view = request.resolve(media.display_width, media.display_height)
    if request.form.is_sound:
        window = sound_window(source, view, request.form.sample_rate)
        return ViewAudioSummary(wav_codec(window.sound), window.sound.codec, window.silence_text())
    found = find_audio(
        source, view, request.form, timeline_of_view(view, source.physical, source.table)
    )
    if isinstance(found, str):
        return ViewAudioSummary(None, None, found)
    return ViewAudioSummary(found.track.codec, found.origin, None)


class StillView:
    """A region of one displayed frame as a picture file.

    The size of a .jpg is known only after it has been encoded; see `of_size`.
    """

    is_work = True
    memory = 0

    def __init__(
        self,
        source: ViewInput,
        frame: int,
        region: Rect,
        suffix: str,
        size: int = 0,
        *,
        labels: Clauses | None = None,
    ) -> None:
        """Show `region` of `frame`.

        Args:
            suffix: one of `STILL_SIZES`, or jpg.
            size: bytes of a jpg; ignored for other suffixes.
            labels: the labels that the region was chosen by, for the read log.
        """
        self.key = view_key(source, f"still/{frame}/{region}.{suffix}")
        self.digest = source.digest
        self.storable = range(0) if suffix in STILL_SIZES else range(1, 2)
        self._source = source
        self._frame = frame
        self._region = region
        self._suffix = suffix
        self._labels = labels
        if suffix in STILL_SIZES:
            size = STILL_SIZES[suffix](region.width, region.height)
        self.slots: Slots = FixedSizeSlots(0, size, 1)

    @property
    def is_measured(self) -> bool:
        """Whether it has to be encoded before its size is known."""
        return self._suffix not in STILL_SIZES

    def of_size(self, size: int) -> StillView:
        return StillView(
            self._source, self._frame, self._region, self._suffix, size, labels=self._labels
        )

    def make(self, slot: int, context: RenderContext) -> bytes:
        pixels = self._pixels(context)
        if self._suffix == "jpg":
            return encode_jpeg(pixels, quantiser=MIN_JPEG_QUANTISER)
        return npy_file(pixels) if self._suffix == "npy" else uncompressed_png(pixels)

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        frames = np.array([self._frame for slot in slots if slot], np.int64)
        if not len(frames):
            return None
        return DecodedFrames(self._source, frames, self._form(), self._labels)

    def _form(self) -> PictureForm:
        return picture_form(self._source.physical.media, View(region=self._region), "rgb24")

    def _pixels(self, context: RenderContext) -> Pixels:
        """Return height x width x 3, RGB."""
        converter = PictureConverter(self._form())
        source, frames = self._source, np.array([self._frame])
        threads = context.pool.threads_for(source.physical.media)
        with context.cursor(self.key, source, converter, frames, 0, threads) as cursor:
            ((picture, held),) = cursor.pictures(0, 1)
            return converter.convert(picture, held)


class TextView:
    """A file with given bytes."""

    digest = ""
    storable = range(0)
    is_work = False

    def __init__(self, data: bytes) -> None:
        self.key = blake3(data).hexdigest()
        self.slots: Slots = FixedSizeSlots(0, len(data), 1)
        self.memory = len(data)
        self._data = data

    def make(self, slot: int, context: RenderContext) -> bytes:
        return self._data

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        return None


def require_frame(source: ViewInput, index: int) -> None:
    """Raises `OutOfRangeError` if the video has no frame of that index."""
    if index >= len(source.table):
        raise OutOfRangeError(
            f"frame {index} does not exist: the video has {len(source.table)} frames"
        )


def view_key(source: ViewInput, what: str) -> str:
    """Return a key for `what` of a video that changes whenever the bytes may change."""
    text = "\n".join((__version__, str(_REVISION), library_versions(), source.key, what))
    return blake3(text.encode()).hexdigest()


class RawView:
    """A file with one slot for each picture.  Slot 0 is the Y4M header, or empty."""

    storable = range(0)
    method = "decoded"
    marks: Mapping[str, str] = MappingProxyType({})
    is_work = True

    def __init__(
        self, key: str, source: ViewInput, view: View, form: ViewForm, timeline: ViewTimeline
    ) -> None:
        self.key = key
        self.digest = source.digest
        self.memory = timeline.memory + (source.drawn.memory if source.drawn else 0)
        self._source = source
        self._timeline = timeline
        self._pictures = decoded_picture_form(source.physical.media, view, form)
        self._header = self._prefix = b""
        if form.container == "y4m":
            self._header, self._prefix = self._y4m_header(), _Y4M_FRAME
        each = len(self._prefix) + self._pictures.bytes
        self.slots: Slots = FixedSizeSlots(len(self._header), each, len(timeline))

    def make(self, slot: int, context: RenderContext) -> Bytes:
        whole = np.empty(self.slots[slot].size, np.uint8)
        self.fill(slot, context, whole)
        return whole.data

    def fill(self, slot: int, context: RenderContext, place: ByteBuffer) -> None:
        """Like `make`, but writes into `place`, which has exactly the size of the slot."""
        if not slot:
            place[:] = np.frombuffer(self._header, np.uint8)
            return
        number = slot - 1
        converter = PictureConverter(self._pictures)
        samples = self._samples(place, converter)
        with self._cursor(context, converter, number) as cursor:
            ((picture, held),) = cursor.pictures(number, number + 1)
            converter.convert(picture, held, samples)
        self._draw(samples, number)

    def stream(self, context: RenderContext) -> Generator[Bytes, None, None]:
        """Yield the bytes of each slot in order; each buffer is valid until the next iteration."""
        yield self._header
        converter = PictureConverter(self._pictures)
        # One buffer for all pictures: allocating memory takes as long as filling it.
        whole = np.empty(len(self._prefix) + converter.bytes, np.uint8)
        samples = self._samples(whole, converter)
        with self._cursor(context, converter, 0) as cursor:
            for number, (picture, held) in enumerate(cursor.pictures(0, len(self._timeline))):
                converter.convert(picture, held, samples)
                self._draw(samples, number)
                yield whole.data

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        places = [slot - 1 for slot in slots if slot]
        if not places:
            return None
        return DecodedFrames(self._source, self._timeline.frames[places], self._pictures)

    @property
    def parts(self) -> Sequence[ViewPart]:
        shown = DecodedFrames(self._source, self._timeline.frames, self._pictures)
        return [RenderedPart(shown, None, self.slots.size)]

    def _draw(self, samples: Pixels, number: int) -> None:
        drawn = self._source.drawn
        if drawn is not None:
            drawn.draw(samples, int(self._timeline.frames[number]), self._pictures)

    def _cursor(
        self, context: RenderContext, converter: PictureConverter, place: int
    ) -> AbstractContextManager[DecodeCursor]:
        """Return a cursor with threads that decode ahead while a picture is copied and written."""
        source, frames = self._source, self._timeline.frames
        threads = context.pool.threads_ahead(source.physical.media)
        return context.cursor(self.key, source, converter, frames, place, threads)

    def _samples(self, place: ByteBuffer, converter: PictureConverter) -> Pixels:
        """Write the frame prefix and return the part of `place` for the samples."""
        place[: len(self._prefix)] = np.frombuffer(self._prefix, np.uint8)
        return place[len(self._prefix) :].view(converter.dtype).reshape(converter.shape)

    def _y4m_header(self) -> bytes:
        width, height = self._pictures.size
        rate = self._timeline.mean_rate
        full = media_coding(self._pictures.media).is_full
        ratio = self._pictures.sample_aspect_ratio
        shape = "0:0" if ratio is None else f"{ratio.numerator}:{ratio.denominator}"
        # "?" because the field order of interlaced pictures is unknown.
        scanning = "?" if self._pictures.media.interlaced else "p"
        return (
            f"YUV4MPEG2 W{width} H{height} F{rate.numerator}:{rate.denominator} "
            f"I{scanning} A{shape} {_Y4M_LAYOUTS[self._pictures.pixel_format]} "
            f"XCOLORRANGE={'FULL' if full else 'LIMITED'}\n"
        ).encode()
