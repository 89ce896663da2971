"""The interface of the videos that the tuner works on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from vfsd.core.frame_table import FrameTable
from vfsd.core.model import LogicalVideo, PhysicalVideo
from vfsd.derive.tile_spec import TileSettings
from vfsd.tiling.policy import Aim, AtHand, BoxWorld, SizeWorld


class TunableVideo(Protocol):
    """A video whose reads can be turned into proposals; `vfsd.Video` is one."""

    @property
    def info(self) -> LogicalVideo: ...

    @property
    def name(self) -> str: ...

    @property
    def original(self) -> PhysicalVideo: ...

    @property
    def table(self) -> FrameTable: ...

    def sequences(self) -> list[range]: ...

    def world(
        self,
        aims: Iterable[Aim],
        *,
        settings: TileSettings | None = None,
        within: range | None = None,
    ) -> BoxWorld: ...

    def size_world(
        self, settings: TileSettings | None = None, at_hand: AtHand | None = None
    ) -> SizeWorld: ...

    def verify(self, *, on_progress: Callable[[int, int], None] | None = None) -> bool: ...
