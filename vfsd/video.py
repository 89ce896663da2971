"""`Video`: one video of a store, as a sequence of frames."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, overload

import numpy as np

from vfsd.array import Axis, VideoArray
from vfsd.framepages import Ints
from vfsd.frames import Frame, Frames
from vfsd.videobudget import VideoBudget

if TYPE_CHECKING:
    _IntSlice = slice[int | None, int | None, int | None]


class Video(VideoBudget):
    """One video of a store.  Frames are exact: `video[i]` is the i-th frame of a full decode.

    Indexing with an int gives a `Frame`, with a slice or a list of ints `Frames`; with a slice of
    times, or with several axes, a lazy `VideoArray`:

        video[7]                             frame 7
        video[-1], video[0:30:2]             the last frame; every second frame of the first 30
        video[[5, 900, 17]]                  three frames, each decoded once
        video[10.0:20.0, 100:400, 200:600]   ten seconds of a region, decoded when asked for

    Nothing is opened or scanned before the first frame is read.  Safe to use from several
    threads and after a fork; decoders belong to the store and are shared.
    """

    def __repr__(self) -> str:
        return (
            f"<Video {self.name!r}: {len(self)} frames, {self.width}x{self.height}, "
            f"{float(self.duration):.2f} s, {self.original.media.codec}>"
        )

    def __enter__(self) -> Video:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing of its own is open; decoders go with the store."""

    @overload
    def __getitem__(self, key: int) -> Frame: ...
    @overload
    def __getitem__(self, key: list[int] | Ints) -> Frames: ...
    @overload
    def __getitem__(self, key: _IntSlice) -> Frames: ...
    @overload
    def __getitem__(self, key: slice) -> VideoArray: ...
    @overload
    def __getitem__(self, key: tuple[Axis, ...]) -> VideoArray: ...

    def __getitem__(
        self, key: int | slice | list[int] | Ints | tuple[Axis, ...]
    ) -> Frame | Frames | VideoArray:
        if isinstance(key, (int, np.integer)):
            return self.frames([int(key)])[0]
        if isinstance(key, slice):
            if all(part is None or _is_int(part) for part in (key.start, key.stop, key.step)):
                return self.frames(range(*key.indices(len(self))))
            return self.array()[key]
        if isinstance(key, tuple):
            return self.array()[key]
        return self.frames(key)

    def __iter__(self) -> Iterator[Frame]:
        return self.iterate()

    def array(self) -> VideoArray:
        """The whole video as a lazy array of (time, rows, columns)."""
        return VideoArray(self.read, len(self), self.duration, (self.height, self.width))


def _is_int(part: object) -> bool:
    return isinstance(part, (int, np.integer)) and not isinstance(part, bool)
