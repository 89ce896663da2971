"""What a detector is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, SupportsIndex

from vfsd.core.detections import Detection, Source
from vfsd.core.frames import Frame
from vfsd.errors import UsageError
from vfsd.validation import whole_number

Every = int | Literal["key"]
"""Every n-th frame of a video, from its first; "key": the frames at which decoding can start."""

Found = tuple[int, list[Detection]]
"""The number of a frame, and what is in it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a detector is to be shown.  Raises `UsageError` for what cannot be."""

    size: tuple[int, int] | None = None  #: pixels, width x height; None: as displayed
    format: str = "rgb24"  #: one of those that `Video.read` takes
    every: Every = 1
    block: int = 1
    """Frames that are looked at together.  With more than one, what is found on a frame depends on
    the others of its block, and blocks are cut from the start of the video, so that it depends on
    nothing else; `every` is then part of what the detector is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "every", require_every(self.every))
        if self.block < 1:
            raise UsageError(f"a block of {self.block} frames holds none")


class Detector(Protocol):
    """Looks at frames.  The same frames and `source` give the same boxes, whenever it is asked."""

    @property
    def source(self) -> Source:
        """Who says so: everything that what is found depends on."""
        ...

    def wants(self, width: int, height: int) -> Wanted:
        """What to show of a video whose displayed frame has width x height pixels."""
        ...

    def find(self, frames: Iterable[Frame], width: int, height: int) -> Iterator[Found]:
        """What is on each of `frames`, which are as `wants` says: one block of them, ascending.

        There is one answer for every frame, in order, also where nothing was found.  Boxes lie
        within the displayed frame of width x height pixels, whatever size was shown.
        """
        ...


def require_every(every: SupportsIndex | Literal["key"]) -> Every:
    """What chooses frames, as it is kept.  Raises `UsageError` for what chooses none."""
    if every == "key":
        return "key"
    try:
        number = whole_number(every, "every")
    except UsageError:
        number = 0
    if number < 1:
        raise UsageError(f"{every!r} chooses no frames", hint='give a number from 1, or "key"')
    return number
