"""Reads frames of a video in the order in which a reader asks for them.

Readers of other libraries give one frame per call.  A call for the frame after the previous one
continues a stream, so that reading in order decodes each frame once.  Any other call reads its
frames alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from vfsd.core.process_control import leak, reset_after_fork
from vfsd.errors import OutOfRangeError
from vfsd.tiling import Rect
from vfsd.validation import decibels

if TYPE_CHECKING:
    from collections.abc import Generator

    from vfsd.api.video import Video
    from vfsd.core.frame_table_pages import Ints
    from vfsd.core.frames import Frame, Frames
    from vfsd.tiling import Region


@dataclass(frozen=True, slots=True)
class _Choice:
    psnr: float
    region: Rect | None


_WHOLE_AND_EXACT = _Choice(math.inf, None)
_choice: ContextVar[_Choice] = ContextVar("choice", default=_WHOLE_AND_EXACT)


@contextmanager
def quality(psnr: float = math.inf, *, region: Region | None = None) -> Iterator[None]:
    """Let readers that are opened in this block use tiles and renditions of at least `psnr` dB.

    By default readers decode the original alone, so their pixels are exact.  With `region`, their
    frames are that part of the displayed frame, and have its width and height.  The block holds in
    the thread that enters it, and for videos of a store only.  Raises `UsageError` for a malformed
    `psnr` or `region`.  A reader of a smaller video cannot be opened.

        with quality(psnr=40, region="320x240+100+60"):
            capture = VideoCapture("/mnt/videos/cam1/a.mp4")
    """
    area = None if region is None else Rect.from_value(region)
    token = _choice.set(_Choice(decibels(psnr), area))
    try:
        yield
    finally:
        _choice.reset(token)


def allowed_psnr() -> float:
    """Return the least quality of readers that are opened here; infinite outside `quality`."""
    return _choice.get().psnr


def chosen_region(video: Video) -> Rect | None:
    """Return the part of each frame that readers opened here show; None: the whole frame.

    Raises `OutOfRangeError` if it reaches outside the frames of `video`.
    """
    region = _choice.get().region
    if region is not None and not Rect.of_size(video.width, video.height).contains(region):
        raise OutOfRangeError(
            f"the region {region} reaches outside the frame of "
            f"{video.width}x{video.height} of {video.name}"
        )
    return region


class FrameCursor:
    """Reads frames of one video in one pixel format and size.  Not thread-safe, as its callers.

    Raises the errors of `Video.read`.
    """

    def __init__(
        self,
        video: Video,
        pixel_format: str,
        size: tuple[int, int] | None = None,
        region: Rect | None = None,
    ) -> None:
        """Frames are cut to `region` and scaled to `size`, (width, height), by default neither."""
        self._video = video
        self._format = pixel_format
        self._size = size
        self._region = region
        self._psnr = allowed_psnr()
        self._stream: Generator[Frame, None, None] | None = None
        self._next = 0  # the frame that the stream yields next, or would if there were one
        reset_after_fork(self)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_stream": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        # Its decoder may have threads, which the child lacks.
        if self._stream is not None:
            leak(self._stream)
        self._stream = None

    def frame(self, number: int) -> Frame:
        """Return one frame; `number` is within the video."""
        if number != self._next:
            self.close()
            found = self.frames([number])[0]
        else:
            # The first call of a new cursor is a stream as well: most readers go on.
            if self._stream is None:
                self._stream = cast(
                    "Generator[Frame, None, None]",
                    self._video.iterate(
                        frames=range(number, len(self._video)),
                        region=self._region,
                        size=self._size,
                        format=self._format,
                        psnr=self._psnr,
                    ),
                )
            try:
                found = next(self._stream)
            except BaseException:
                self.close()
                raise
        self._next = number + 1
        return found

    def frames(self, numbers: Sequence[int] | Ints) -> Frames:
        """Return several frames in the order of `numbers`, which may repeat."""
        return self._video.frames(
            numbers,
            region=self._region,
            size=self._size,
            format=self._format,
            psnr=self._psnr,
        )

    def close(self) -> None:
        """Give the decoder back to the store.  The cursor can be used again."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
