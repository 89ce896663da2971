"""`RenderedView`, a view as a file of slots, and the choice among its kinds.

`plan_view` takes the cheapest that fits: copy, stitch, smart cut or transcode.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from blake3 import blake3

from vfsd import __version__
from vfsd.codecs import library_versions
from vfsd.codecs.encoding.still_images import (
    MIN_JPEG_QUANTISER,
    encode_jpeg,
    npy_file,
    npy_file_size,
    uncompressed_png,
    uncompressed_png_size,
)
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import Pixels
from vfsd.core.view_path import ViewSpec, format_view_path
from vfsd.core.view_request import View
from vfsd.errors import OutOfRangeError
from vfsd.read.pack_pool import PackPool
from vfsd.read.read_log import Clauses
from vfsd.storage.file_cache import Bytes
from vfsd.tiling import Rect
from vfsd.views.rate_control import is_lossless
from vfsd.views.raw_view import RawView
from vfsd.views.render_cache import ByteBuffer
from vfsd.views.render_context import RenderContext
from vfsd.views.smart_cut import find_smart_cut
from vfsd.views.stitch import find_stitch
from vfsd.views.stream_copy import find_copy
from vfsd.views.transcode import TranscodedView
from vfsd.views.view_audio import find_audio
from vfsd.views.view_frames import (
    PictureConverter,
    PictureForm,
    decoded_picture_form,
    picture_form,
    timeline_of_view,
)
from vfsd.views.view_input import ViewInput
from vfsd.views.view_slots import DecodedFrames, FixedSizeSlots, Slots, ViewPart

STILL_SIZES = {"npy": npy_file_size, "png": uncompressed_png_size}
"""Forms of stills whose size follows from width and height."""

_REVISION = 15
"""To be raised whenever other bytes come out for the same request, between versions too."""


class RenderedView(Protocol):
    """A view as a file."""

    @property
    def key(self) -> str:
        """Stands for its bytes."""

    @property
    def digest(self) -> str:
        """That of the video whose pictures it shows; empty where it shows none."""

    @property
    def slots(self) -> Slots: ...

    @property
    def storable(self) -> Collection[int]:
        """The slots that are dear enough to be kept in files."""

    @property
    def is_work(self) -> bool:
        """Whether any slot takes more than to copy bytes."""

    @property
    def memory(self) -> int:
        """Bytes that it takes up, roughly."""

    def make(self, slot: int, workshop: RenderContext) -> Bytes:
        """The bytes of a slot, without the zeros that fill it up.

        Slow.  Safe to use from several threads.  Raises `IntegrityError`, `OSError`, and what
        `workshop.check` does, for each picture.
        """

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        """What is decoded for those slots, which ascend; None where nothing is."""


@runtime_checkable
class PlannedView(RenderedView, Protocol):
    """What a name of the grammar asks for."""

    @property
    def made(self) -> str:
        """How: copied or stitched (nothing is decoded), spliced (copied but for its ends, which
        are encoded), encoded, or decoded (raw forms)."""

    @property
    def parts(self) -> Sequence[ViewPart]:
        """What of it is copied and what is made, by time."""

    @property
    def marks(self) -> Mapping[str, str]:
        """Data of the pictures besides samples that its header tells."""


@runtime_checkable
class PaddedView(RenderedView, Protocol):
    """One whose slots are larger than what is in them, and which can do without."""

    def trimmed(self, slot: int, data: bytes) -> bytes:
        """What `make` gave for a slot that is not the header, without its padding."""

    def header_of(self, sizes: Ints) -> bytes:
        """As large as that of the file, for segments of these sizes."""


@runtime_checkable
class InPlaceView(RenderedView, Protocol):
    """One whose slots can be made where they are wanted."""

    def fill(self, slot: int, workshop: RenderContext, place: ByteBuffer) -> None:
        """Put there what `make` gives; `place` has just as many bytes as the slot."""


@runtime_checkable
class StreamableView(RenderedView, Protocol):
    """One whose slots cost least one after the other."""

    def stream(self, workshop: RenderContext) -> Generator[Bytes, None, None]:
        """What `make` gives for each slot, in order.  Each is valid until the next is asked for."""


def plan_view(footage: ViewInput, request: ViewSpec, packs: PackPool) -> PlannedView:
    """What `request` asks for: of what can be done, the cheapest.

    Pictures come from no tiles but those of `footage`, and of these only from such as have what the
    request has for `psnr`, in the form that pictures are made in; of a lossless view that has
    nothing for it, from the original.

    Raises `OutOfRangeError` outside the frame or the timeline, `UsageError` for what cannot be
    made.
    """
    media = footage.physical.media
    footage = view_input_for(request, footage)
    request = request.without_crop(media.display_width, media.display_height)
    view = request.resolve(media.display_width, media.display_height)
    form = request.form
    key = view_key(footage, format_view_path(request))
    pictures = decoded_picture_form(media, view, form)  # complains before anything is worked out
    showing = timeline_of_view(view, footage.physical, footage.table)
    if form.is_raw:
        return RawView(key, footage, view, form, showing)
    found = find_audio(footage, view, form, showing)
    sound = None if isinstance(found, str) else found
    whole = find_copy(key, footage, view, form, showing, sound) or find_stitch(
        key, footage, view, form, showing, packs, sound
    )
    if whole is not None:
        return whole
    spliced = find_smart_cut(key, footage, view, form, showing, sound)
    if not isinstance(spliced, str):
        return spliced
    # Tiles that are of no use for it may come and go: what was encoded stays what it is.
    frames = range(int(showing.frames[0]), int(showing.frames[-1]) + 1)
    footage = footage.serving(PictureConverter(pictures), frames)
    keys = (
        view_key(footage, format_view_path(request)),
        view_key(replace(footage, tiles=None), format_view_path(request)),
    )
    return TranscodedView(keys, footage, view, form, showing, sound, why=spliced)


def view_input_for(request: ViewSpec, footage: ViewInput) -> ViewInput:
    """`footage` with what the request has for `psnr`."""
    psnr = request.psnr
    if psnr is None and request.form.codec is not None and is_lossless(request.form.codec):
        psnr = math.inf  # every sample as it is
    return footage if psnr is None else footage.of_quality(psnr)


@dataclass(frozen=True, slots=True)
class ViewAudioSummary:
    """What becomes of the sound of a video in a view."""

    codec: str | None  #: of the sound that the view carries; None: it carries none
    origin: str | None  #: of the stored sound that this is made from
    silence: str | None  #: why the view carries none

    @property
    def made(self) -> str | None:
        """copied or transcoded; None where there is none."""
        if self.codec is None:
            return None
        return "copied" if self.codec == self.origin else "transcoded"

    @property
    def text(self) -> str:
        """For people."""
        if self.codec is None:
            return f"no sound: {self.silence}"
        if self.codec == self.origin:
            return f"{self.codec}, copied"
        return f"{self.codec}, transcoded from {self.origin}"


def audio_summary(footage: ViewInput, request: ViewSpec) -> ViewAudioSummary:
    """What becomes of the sound of a video in a view.  Raises as `plan_view`."""
    media = footage.physical.media
    view = request.resolve(media.display_width, media.display_height)
    found = find_audio(
        footage, view, request.form, timeline_of_view(view, footage.physical, footage.table)
    )
    if isinstance(found, str):
        return ViewAudioSummary(None, None, found)
    return ViewAudioSummary(found.track.codec, found.origin, None)


class StillView:
    """A region of one frame, as it is displayed, as a picture file.

    The size of a .jpg is that of its bytes, once they are made; see `of_size`.
    """

    is_work = True
    memory = 0

    def __init__(
        self,
        footage: ViewInput,
        frame: int,
        region: Rect,
        suffix: str,
        size: int = 0,
        *,
        labels: Clauses | None = None,
    ) -> None:
        """`suffix` is one of `STILL_SIZES`, or jpg, for which `size` counts.

        `labels` say what is seen there, where the region was chosen by that.
        """
        self.key = view_key(footage, f"still/{frame}/{region}.{suffix}")
        self.digest = footage.digest
        self.storable = range(0) if suffix in STILL_SIZES else range(1, 2)
        self._footage = footage
        self._frame = frame
        self._region = region
        self._suffix = suffix
        self._labels = labels
        if suffix in STILL_SIZES:
            size = STILL_SIZES[suffix](region.width, region.height)
        self.slots: Slots = FixedSizeSlots(0, size, 1)

    @property
    def is_measured(self) -> bool:
        """Whether it has to be made before its size is known."""
        return self._suffix not in STILL_SIZES

    def of_size(self, size: int) -> StillView:
        return StillView(
            self._footage, self._frame, self._region, self._suffix, size, labels=self._labels
        )

    def make(self, slot: int, workshop: RenderContext) -> bytes:
        pixels = self._pixels(workshop)
        if self._suffix == "jpg":
            return encode_jpeg(pixels, quantiser=MIN_JPEG_QUANTISER)
        return npy_file(pixels) if self._suffix == "npy" else uncompressed_png(pixels)

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        frames = np.array([self._frame for slot in slots if slot], np.int64)
        if not len(frames):
            return None
        return DecodedFrames(self._footage, frames, self._form(), self._labels)

    def _form(self) -> PictureForm:
        return picture_form(self._footage.physical.media, View(region=self._region), "rgb24")

    def _pixels(self, workshop: RenderContext) -> Pixels:
        """height x width x 3 RGB."""
        converter = PictureConverter(self._form())
        footage, frames = self._footage, np.array([self._frame])
        threads = workshop.pool.threads_for(footage.physical.media)
        with workshop.cursor(self.key, footage, converter, frames, 0, threads) as cursor:
            ((picture, held),) = cursor.pictures(0, 1)
            return converter.convert(picture, held)


class TextView:
    """Bytes that are there already."""

    digest = ""
    storable = range(0)
    is_work = False

    def __init__(self, data: bytes) -> None:
        self.key = blake3(data).hexdigest()
        self.slots: Slots = FixedSizeSlots(0, len(data), 1)
        self.memory = len(data)
        self._data = data

    def make(self, slot: int, workshop: RenderContext) -> bytes:
        return self._data

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        return None


def require_frame(footage: ViewInput, index: int) -> None:
    """Raises `OutOfRangeError` where there is no such frame."""
    if index >= len(footage.table):
        raise OutOfRangeError(f"frame {index} does not exist: the video has {len(footage.table)}")


def view_key(footage: ViewInput, what: str) -> str:
    """A key for `what` is made of a video: another one whenever the bytes may be others."""
    text = "\n".join((__version__, str(_REVISION), library_versions(), footage.key, what))
    return blake3(text.encode()).hexdigest()
