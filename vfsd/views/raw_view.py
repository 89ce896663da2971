"""Uncompressed views: raw pictures, or Y4M with a header before each picture.  All slots have the
same size.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType

import numpy as np

from vfsd.codecs.frames.color import media_coding
from vfsd.core.frames import Pixels
from vfsd.core.view_path import ViewForm
from vfsd.core.view_request import View
from vfsd.storage.file_cache import Bytes
from vfsd.views.decode_cursors import ByteBuffer, DecodeCursor
from vfsd.views.render_context import RenderContext
from vfsd.views.view_frames import PictureConverter, ViewTimeline, decoded_picture_form
from vfsd.views.view_input import ViewInput
from vfsd.views.view_slots import DecodedFrames, FixedSizeSlots, RenderedPart, Slots, ViewPart

_Y4M_FRAME = b"FRAME\n"
_Y4M_LAYOUTS = {
    "yuv420p": "C420mpeg2 XYSCSS=420MPEG2",
    "yuv422p": "C422 XYSCSS=422",
    "yuv444p": "C444 XYSCSS=444",
    "yuv420p10": "C420p10 XYSCSS=420P10",
}
"""Color space tags as FFmpeg writes them."""


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
        self.memory = timeline.memory
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

    def stream(self, context: RenderContext) -> Generator[Bytes, None, None]:
        """Yield the bytes of each slot in order; each buffer is valid until the next iteration."""
        yield self._header
        converter = PictureConverter(self._pictures)
        # One buffer for all pictures: allocating memory takes as long as filling it.
        whole = np.empty(len(self._prefix) + converter.bytes, np.uint8)
        samples = self._samples(whole, converter)
        with self._cursor(context, converter, 0) as cursor:
            for picture, held in cursor.pictures(0, len(self._timeline)):
                converter.convert(picture, held, samples)
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
