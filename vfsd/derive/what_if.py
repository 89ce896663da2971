"""What-if: strategies of tiling replayed on a workload, and the layouts that are best for it.

Nothing is encoded or decoded: making and reading tiles take what the host's costs, the original's
bytes and the video's boxes say (`vfsd.derive.catalog_world`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from vfsd.core.model import Segment
from vfsd.derive.baselines import PRESENT, STRATEGIES, Case, Ground, Standing, Strategy
from vfsd.derive.tile_spec import PlannedSegment
from vfsd.errors import NotFoundError
from vfsd.tiling.policy import Query, Tiling, replay

OnProgress = Callable[[int, int], None]
"""Called with (queries done, queries in all), of all strategies together; may raise to give up."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a strategy comes to."""

    name: str  #: of the strategy
    title: str  #: the same for people
    decoding: npt.NDArray[np.float64]  #: CPU seconds of each query
    making: npt.NDArray[np.float64]  #: CPU seconds of the tiles made at each query
    bytes: float  #: of all tiles that there are in the end
    tilings: Mapping[int, Tiling]  #: of SOTs, in the end

    def __repr__(self) -> str:
        return (
            f"<Outcome {self.name!r}: {self.seconds:.3f} s of CPU time for {len(self.decoding)} "
            f"queries, {len(self.tilings)} SOTs tiled>"
        )

    @property
    def seconds(self) -> float:
        """All of it."""
        return float(self.decoding.sum() + self.making.sum())

    @property
    def curve(self) -> npt.NDArray[np.float64]:
        """CPU seconds up to each query, that one included."""
        total: npt.NDArray[np.float64] = np.cumsum(self.decoding + self.making)
        return total


@dataclass(frozen=True, eq=False)
class Advice:
    """What all strategies come to on a workload."""

    outcomes: Sequence[Outcome]  #: "none" is the first
    sots: Sequence[range]  #: the frames of each
    regions: int  #: different ones in the workload
    patches: int  #: that strategies took them for, to decide

    def __repr__(self) -> str:
        return (
            f"<Advice: {self.queries} queries, {len(self.sots)} SOTs, {len(self.outcomes)} "
            f"strategies; best is {self.best.name!r}, {self.relative(self.best):.2f} of the time "
            "without tiles>"
        )

    @property
    def queries(self) -> int:
        """Each as often as it is asked."""
        return len(self.outcomes[0].decoding)

    @property
    def idle(self) -> int:
        """Queries that find nothing, and so decode nothing."""
        return int(np.count_nonzero(self.outcomes[0].decoding == 0))

    @cached_property
    def best(self) -> Outcome:
        """The one that takes least in all; of equals the one that makes least."""
        return min(self.outcomes, key=lambda one: (round(one.seconds, 9), one.making.sum()))

    def __getitem__(self, name: str) -> Outcome:
        """What a strategy comes to.  Raises `NotFoundError`."""
        for one in self.outcomes:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.outcomes)
        raise NotFoundError(
            f"strategy must be one of {known}, got {name!r}", hint=f"give one of {known}"
        )

    def relative(self, outcome: Outcome) -> float:
        """Its seconds in parts of what reading without tiles takes; 1 where that is nothing."""
        untiled = self.outcomes[0].seconds
        return outcome.seconds / untiled if untiled else 1.0

    def layouts(self, outcome: Outcome | None = None) -> list[PlannedSegment]:
        """What it has made in the end (default: the best), for `Video.retile`; by time."""
        tilings = (outcome or self.best).tilings
        return [
            PlannedSegment(self.sots[sot], tiling.layout, tiling.tiles)
            for sot, tiling in sorted(tilings.items())
            if tiling.tiles
        ]


def compare(case: Case, *, on_progress: OnProgress | None = None) -> Advice:
    """Replay all strategies.

    Where a workload has many different regions, strategies that learn decide by a few patches that
    hold them (`vfsd.tiling.policy.region_clusters`); what reading takes is counted by the regions.
    """
    ground = Ground(case)
    strategies = [one for one in STRATEGIES if one.name != PRESENT or case.there]
    total = len(strategies) * len(case.queries)
    outcomes = []
    for number, one in enumerate(strategies):
        before = number * len(case.queries)
        outcomes.append(_outcome(one, ground, _told(case.queries, before, total, on_progress)))
    known = ground.patches
    return Advice(outcomes, case.footage.sots, len(known), len(set(known.values())))


def _told(
    queries: Sequence[Query], before: int, total: int, on_progress: OnProgress | None
) -> Iterator[Query]:
    for number, query in enumerate(queries):
        if on_progress is not None:
            on_progress(before + number, total)
        yield query


def _outcome(strategy: Strategy, ground: Ground, queries: Iterable[Query]) -> Outcome:
    world = ground.world(is_ours=strategy.is_ours)
    bill = replay(strategy.make(world, ground), Standing(world, ground.case.there), queries)
    tilings = {retile.sot: retile.tiling for _, retile in bill.retiles}
    return Outcome(
        strategy.name,
        strategy.title,
        np.array(bill.decoding),
        np.array(bill.making),
        sum(world.making(sot, tiling).bytes for sot, tiling in tilings.items()),
        tilings,
    )


def sots_with(
    sequences: Sequence[range], segments: Sequence[Segment]
) -> tuple[list[range], dict[int, Tiling]]:
    """All frames of a video in SOTs, of which each segment is one; and the tilings these have.

    Frames that no segment has are in SOTs as `sequences` cuts them.  Of segments that share frames
    the newest counts, the others are passed over.
    """
    owner = np.full(sequences[-1].stop, -1)
    for segment in sorted(segments, key=lambda one: one.id):
        owner[segment.first_frame : segment.end_frame] = segment.id
    whole = {
        segment.first_frame: segment
        for segment in segments
        if (owner[segment.first_frame : segment.end_frame] == segment.id).all()
    }
    edges = {sequence.start for sequence in sequences} | {sequences[-1].stop}
    for segment in whole.values():
        edges -= set(segment.frames)
        edges |= {segment.first_frame, segment.end_frame}
    sots = [range(*pair) for pair in pairwise(sorted(edges))]
    there = {
        number: Tiling(whole[sot.start].layout, whole[sot.start].tiles)
        for number, sot in enumerate(sots)
        if sot.start in whole
    }
    return sots, there
