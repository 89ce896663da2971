"""What was encoded for views and need not be encoded again, as policies weigh it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from vfsd.codecs.cells.tile_codecs import VIEW_CODECS
from vfsd.core.model import LogicalVideo, Segment
from vfsd.core.psnr import chained_psnr
from vfsd.derive.promotion_candidates import Candidate, Candidates, Made
from vfsd.disk.block_checksums import merged
from vfsd.storage.context import Parts
from vfsd.tiling import common
from vfsd.tiling.policy import Tiling


class AtHand:
    """Candidates of one video that reads might use if they became renditions."""

    def __init__(self, candidates: Sequence[Candidate], renditions: Sequence[Segment]) -> None:
        """`candidates` of a size do not overlap; `renditions` are those that reads may use."""
        stored = _Stored(renditions)
        self.candidates = [one for one in candidates if not stored.has(one.made)]
        found: dict[tuple[int, int], list[range]] = {}
        for made in (one.made for one in self.candidates):
            found.setdefault(made.size, []).append(made.frames)
        self._waiting = dict(found)
        for segment in renditions:
            found[segment.picture] = [*found.get(segment.picture, ()), segment.frames]
        self._there = {size: merged(list(ranges)) for size, ranges in found.items()}

    @classmethod
    def of(
        cls,
        parts: Parts,
        video: LogicalVideo,
        renditions: Sequence[Segment],
        minimum_psnr: float,
    ) -> AtHand:
        """Those with so many dB, as things are; none where the store does not want any."""
        original = video.original
        usable = [one for one in renditions if one.psnr >= minimum_psnr]
        if not parts.settings.admit_views or original.media.pixel_format not in _SOURCES:
            return cls([], usable)
        candidates = [
            one
            for one in Candidates.of_store(parts).of(video.digest)
            if chained_psnr(one.made.luma, original.error, scaled_to_bits=8) >= minimum_psnr
        ]
        return cls(candidates, usable)

    def frames(self, size: tuple[int, int], frames: range) -> int:
        """How many of some frames are at hand in a size, or there already."""
        return _count(self._there.get(size, ()), frames)

    def left(self, opinion: Mapping[int, Tiling], sots: Sequence[range]) -> dict[int, Tiling]:
        """Those tilings, by SOT, for which there are no candidates."""

        def waiting(tiling: Tiling) -> Sequence[range]:
            return self._waiting.get((tiling.layout.width, tiling.layout.height), ())

        return {
            sot: tiling for sot, tiling in opinion.items() if not _count(waiting(tiling), sots[sot])
        }


_SOURCES = frozenset[str]().union(*(codec.pixel_formats for codec in VIEW_CODECS.values()))


class _Stored:
    """Frames that renditions have, by size."""

    def __init__(self, renditions: Sequence[Segment]) -> None:
        runs: dict[tuple[int, int], list[range]] = {}
        for one in sorted(renditions, key=lambda one: one.first_frame):
            runs.setdefault(one.picture, []).append(one.frames)
        # The first frames, and how far one of those up to there reaches.
        self._of = {
            size: ([one.start for one in each], list(accumulate((one.stop for one in each), max)))
            for size, each in runs.items()
        }

    def has(self, made: Made) -> bool:
        """Whether one of them has all of its frames, in its size."""
        starts, reach = self._of.get(made.size, ([], []))
        place = bisect_right(starts, made.frames.start)
        return place > 0 and made.frames.stop <= reach[place - 1]


def _count(ranges: Sequence[range], frames: range) -> int:
    return sum(len(common(one, frames)) for one in ranges)
