"""What a video has already of tiles or renditions, as policies weigh it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vfsd.core.model import Segment
from vfsd.derive.tile_spec import PlannedSegment
from vfsd.tiling import meet
from vfsd.tiling.policy import Query, Tiling, World


class Present:
    """What reads of each SOT may use: of each size the newest."""

    def __init__(
        self,
        world: World,
        sots: Sequence[range],
        segments: Sequence[Segment],
        minimum_psnr: float,
    ) -> None:
        self._world = world
        self._all = segments
        self._shares: dict[tuple[int, int], list[list[tuple[Segment, float]]]] = {}
        for picture in {segment.picture for segment in segments}:
            usable = [
                segment
                for segment in segments
                if segment.picture == picture and segment.psnr >= minimum_psnr
            ]
            owners = _owners(sots[-1].stop, usable)
            self._shares[picture] = [_shares(frames, owners, usable) for frames in sots]

    def like(self, plan: PlannedSegment, sot: int) -> list[Segment]:
        """Those that reads may use in its place."""
        mine = self._shares.get((plan.layout.width, plan.layout.height))
        return [] if mine is None else [segment for segment, _ in mine[sot]]

    def numbers(self, plan: PlannedSegment) -> frozenset[int]:
        """Of all that are in its place, whether reads may use them or not."""
        picture = plan.layout.width, plan.layout.height
        return frozenset(
            one.id for one in self._all if one.picture == picture and meet(one.frames, plan.frames)
        )

    def seconds(self, sot: int, query: Query) -> float:
        """What a query decodes there.

        Segments that are shorter or longer than the SOT count by the share of it that they have.
        """
        ways = [self._seconds(sot, query, shares[sot]) for shares in self._shares.values()]
        return min(ways, default=self._world.decode(sot, query, None))

    def _seconds(self, sot: int, query: Query, shares: list[tuple[Segment, float]]) -> float:
        rest, total = 1.0, 0.0
        for segment, share in shares:
            tiling = Tiling(segment.layout, segment.tiles)
            total += share * self._world.decode(sot, query, tiling)
            rest -= share
        return total + max(0.0, rest) * self._world.decode(sot, query, None)


def _shares(
    frames: range, owners: npt.NDArray[np.int32], usable: Sequence[Segment]
) -> list[tuple[Segment, float]]:
    numbers, counts = np.unique(owners[frames.start : frames.stop], return_counts=True)
    return [
        (usable[number], count / len(frames))
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
        if number >= 0
    ]


def _owners(frames: int, segments: Sequence[Segment]) -> npt.NDArray[np.int32]:
    """For each frame the place of the newest segment that has it; -1: none."""
    owner = np.full(frames, -1, np.int32)
    for number, segment in sorted(enumerate(segments), key=lambda pair: pair[1].id):
        owner[segment.first_frame : segment.end_frame] = number
    return owner
