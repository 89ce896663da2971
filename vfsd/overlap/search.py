"""Which videos of a store show the same place.

A few frames of each video give a signature of its colours; only videos whose signatures are near
each other are compared, so that the number of comparisons grows with the videos, not with their
pairs.  All timelines are taken to start at the same time: videos are looked at when 0.5, 1, 2, 4
and so on seconds have passed, so that any two have moments in common, up to the end of the shorter
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from vfsd.api.video import Video
from vfsd.codecs.joints.geometry import Picture
from vfsd.core.view_request import View
from vfsd.errors import IntegrityError, UsageError, VfsdError
from vfsd.labels.detectors.resize import fitted
from vfsd.overlap.color_histogram import candidates, signature
from vfsd.overlap.features import features_of
from vfsd.overlap.join_settings import require_alike
from vfsd.overlap.overlap_pair import Moments, Overlap, Verdict, compare
from vfsd.read.context import Tools
from vfsd.read.executor import Reader
from vfsd.read.plan import plan_frames

LONGEST = 640
"""Pixels of the longer side of what is looked at."""
_FIRST = Fraction(1, 2)
"""Seconds: cameras settle first."""
_MOST_MOMENTS = 12
"""Of a video: up to 17 minutes."""
_KEPT = 16
"""Videos whose pictures and features are kept: 15 MB each at most."""

SearchProgress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is; may raise to give up."""


@dataclass(frozen=True, eq=False, slots=True)
class VideoPair:
    """Two videos that show the same place."""

    left: Video
    right: Video
    overlap: Overlap

    def __repr__(self) -> str:
        return (
            f"<VideoPair {self.left.name!r} and {self.right.name!r}: "
            f"{self.overlap.verdict.value}, {self.common:.2f} in common>"
        )

    @property
    def is_one_file(self) -> bool:
        """Whether both have the same bytes, which the store has once."""
        return self.overlap.verdict is Verdict.SAME

    @property
    def common(self) -> float:
        """`Overlap.common` as a part of both files."""
        return self.overlap.common / (self.left.info.size + self.right.info.size)


@dataclass(frozen=True, eq=False, slots=True)
class OverlapReport:
    """What a search has come to."""

    pairs: Sequence[VideoPair]  #: those with most in common first, those that are refused last
    videos: int  #: that were looked at
    compared: int  #: pairs of them, whose colours are alike
    unreadable: Mapping[str, VfsdError]  #: by name: videos that could not be looked at

    def __repr__(self) -> str:
        return (
            f"<OverlapReport: {self.videos} videos, {self.compared} pairs compared, "
            f"{len(self.pairs)} show the same place, {len(self.joinable)} can be joined, "
            f"{len(self.unreadable)} videos unreadable>"
        )

    @property
    def joinable(self) -> Sequence[VideoPair]:
        """Without those that are refused."""
        return [pair for pair in self.pairs if pair.overlap.verdict is not Verdict.REFUSED]


def moments_of(duration: Fraction) -> tuple[Fraction, ...]:
    """The seconds at which a video is looked at; at its first frame where it is that short."""
    times = tuple(_FIRST * 2**power for power in range(_MOST_MOMENTS))
    return tuple(time for time in times if time < duration) or (Fraction(0),)


def find_overlaps(
    tools: Tools, videos: Sequence[Video], on_progress: SearchProgress | None = None
) -> OverlapReport:
    """Look at all of `videos`, and compare those whose colours are alike."""
    tell = on_progress or (lambda what, done, total: None)
    look = _Looking(tools)
    seen, signatures = [], []
    unreadable: dict[str, VfsdError] = {}
    for done, video in enumerate(videos):
        tell("looking at videos", done, len(videos))
        try:
            pictures = look.pictures(video)
        except VfsdError as error:
            unreadable[video.name] = error
            continue
        seen.append(video)
        signatures.append(signature(list(pictures.values())))
    near = candidates(signatures)
    pairs = []
    for done, (i, j) in enumerate(near):
        tell("comparing pairs", done, len(near))
        found = _compared(look, seen[i], seen[j])
        if found is not None:
            pairs.append(found)
    tell("comparing pairs", len(near), len(near))
    pairs.sort(key=lambda pair: (-pair.overlap.common, pair.left.name, pair.right.name))
    return OverlapReport(pairs, len(seen), len(near), unreadable)


def overlap_of(tools: Tools, one: Video, other: Video) -> VideoPair | None:
    """What two videos have in common, whatever their colours; None where that is nothing.

    Raises `IntegrityError` for one that cannot be read.
    """
    return _compared(_Looking(tools), one, other)


def frame_of(tools: Tools, video: Video, time: Fraction) -> Picture:
    """The displayed frame that is on the screen at `time`, in its own size.

    Raises `OutOfRangeError`, `IntegrityError`.
    """
    picture: Picture = _frames(tools, video, (time,), (video.width, video.height))[0]
    return picture


def _frames(
    tools: Tools, video: Video, times: Sequence[Fraction], size: tuple[int, int]
) -> Sequence[Picture]:
    """From the original, and not remembered as anybody's read."""
    frames = np.array([video.index_at(time) for time in times], dtype=np.int64)
    plan = plan_frames(frames, View(size=size), video.original, video.table)
    try:
        return list(Reader(video.table, tools).execute(plan))
    except OSError as error:
        raise IntegrityError(f"{video.name!r} cannot be read: {error}") from error


def _compared(look: _Looking, one: Video, other: Video) -> VideoPair | None:
    found = compare(look.moments(one), look.moments(other))
    if found is None:
        return None
    found = _of_files(found, one, other)
    return VideoPair(other, one, found) if found.swapped else VideoPair(one, other, found)


def _of_files(found: Overlap, one: Video, other: Video) -> Overlap:
    """The same, by what is stored besides what is seen."""
    if found.verdict is Verdict.REFUSED:
        return found
    if one.info.digest == other.info.digest:
        return replace(
            found, verdict=Verdict.SAME, why="stored once already: the same bytes", common=0
        )
    try:
        require_alike(one.original.media, other.original.media)
    except UsageError as error:
        return replace(found, verdict=Verdict.REFUSED, why=str(error), common=0)
    return found


class _Looking:
    """Reads what is looked at of videos; what the last few have shown is kept."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self.pictures = lru_cache(_KEPT)(self._read)
        self.moments = lru_cache(_KEPT)(self._described)

    def _read(self, video: Video) -> Mapping[Fraction, Picture]:
        times = moments_of(video.duration)
        size = fitted(video.width, video.height, LONGEST)
        return dict(zip(times, _frames(self._tools, video, times, size), strict=True))

    def _described(self, video: Video) -> Moments:
        pictures = self.pictures(video)
        return Moments(
            (video.width, video.height),
            video.duration,
            video.info.size,
            pictures,
            {time: features_of(picture) for time, picture in pictures.items()},
        )
