"""A video as a sequence: indexing, iterating, arrays."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from vfsd.api.array import Axis, SecondsIndex, VideoArray
from vfsd.api.frames import VideoFrames, view_of
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import Frame, Frames
from vfsd.read.read_plan import select_frames
from vfsd.validation import is_one_integer

if TYPE_CHECKING:
    _IntSlice = slice[int | None, int | None, int | None]


class VideoSequence(VideoFrames):
    """Indexing with an int gives a `Frame`, with a slice, a list of ints or a mask `Frames`, and
    with several axes a lazy `VideoArray`.  Indices count frames; `seconds` is indexed by time.
    """

    def __repr__(self) -> str:
        size = f"{self.width}x{self.height}"
        return (
            f"<{type(self).__name__} {self.name!r}: {len(self)} frames, {size}, "
            f"{float(self.duration):.2f} s, {self.original.media.codec}>"
        )

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Frame: ...
    @overload
    def __getitem__(self, key: list[int] | range | Ints | npt.NDArray[np.bool_]) -> Frames: ...
    @overload
    def __getitem__(self, key: _IntSlice) -> Frames: ...
    @overload
    def __getitem__(self, key: slice) -> Frames: ...
    @overload
    def __getitem__(self, key: tuple[Axis, ...]) -> VideoArray: ...

    def __getitem__(
        self,
        key: int
        | np.integer[Any]
        | slice
        | list[int]
        | range
        | Ints
        | npt.NDArray[np.bool_]
        | tuple[Axis, ...],
    ) -> Frame | Frames | VideoArray:
        if is_one_integer(key):
            return self.frames([operator.index(key)])[0]  # type: ignore[arg-type]
        if isinstance(key, slice):
            if all(
                part is None or is_one_integer(part) for part in (key.start, key.stop, key.step)
            ):
                return self.frames(key)
            return self.array()[key].frames()  # raises: times are not indices
        if isinstance(key, tuple):
            return self.array()[key]
        return self.frames(key)  # type: ignore[arg-type]  # a bool is refused there

    def __iter__(self) -> Iterator[Frame]:
        return self.iterate()

    @property
    def seconds(self) -> SecondsIndex:
        """The video as a lazy array that is indexed by seconds.

        ``video.seconds[10:20, 100:400, 200:600]`` shows ten seconds of a region; see `VideoArray`.
        """
        return self.array().seconds

    def array(self) -> VideoArray:
        """The whole video as a lazy array of (time, rows, columns)."""
        full = self.height, self.width
        return VideoArray(self.read, len(self), self.duration, full, self._count_in)

    def _count_in(self, span: tuple[Fraction, Fraction], fps: Fraction | None) -> int:
        """How many frames `read` gives of a span."""
        counted = self._counted()
        view = view_of(counted, span=span, fps=fps)
        return len(select_frames(view, counted.original, counted.table))
