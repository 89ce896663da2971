"""Simulated videos and workloads: boxes and queries, without pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from sample_videos.objects import KINDS, paint_all
from sample_videos.tracks import Street, schedule
from vfsd.tiling import LayoutRules
from vfsd.tiling.cost import Ints
from vfsd.tiling.policy import LabelBoxes, Query, VideoProfile

RATE = 30
SIZE = 1920, 1080
LIGHT = "light"
_LIGHTS = ((0.12, 0.08), (0.47, 0.05), (0.83, 0.1))
"""Where traffic lights hang, in parts of the picture."""
_LIGHT_SIZE = 0.018, 0.07

SPARSE = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
"""Parts of the picture that boxes cover; Visual Road's scenes have 0.0006 to 0.1."""
DENSE = (0.25, 0.3, 0.35, 0.4, 0.45, 0.5)


@dataclass(frozen=True, eq=False)
class Boxes:
    """All boxes of a video."""

    frames: Ints
    labels: npt.NDArray[np.str_]
    corners: Ints

    def footage(self, width: int, height: int, frames: int, rate: int) -> VideoProfile:
        """The video in SOTs of one second."""
        order = np.argsort(self.frames, kind="stable")
        numbers, labels, corners = self.frames[order], self.labels[order], self.corners[order]
        sots = [range(first, min(first + rate, frames)) for first in range(0, frames, rate)]
        seen = []
        for sot in sots:
            low, high = np.searchsorted(numbers, (sot.start, sot.stop))
            here = labels[low:high]
            seen.append(
                {
                    str(label): LabelBoxes(
                        numbers[low:high][here == label], corners[low:high][here == label]
                    )
                    for label in np.unique(here)
                }
            )
        return VideoProfile(width, height, sots, seen, LayoutRules())


def sparse(seed: int, density: float, seconds: int) -> VideoProfile:
    """Cars and persons in front of a fixed camera, and stationary lights."""
    width, height = SIZE
    moving = _moving(("car", "person"), density, seconds, seed)
    frames = np.arange(seconds * RATE)
    lights = [
        (x * width, y * height, (x + _LIGHT_SIZE[0]) * width, (y + _LIGHT_SIZE[1]) * height)
        for x, y in _LIGHTS
    ]
    still = Boxes(
        np.repeat(frames, len(lights)),
        np.full(len(frames) * len(lights), LIGHT),
        np.tile(np.array(lights).astype(np.int64), (len(frames), 1)),
    )
    both = Boxes(
        np.concatenate([moving.frames, still.frames]),
        np.concatenate([moving.labels, still.labels]),
        np.concatenate([moving.corners, still.corners]),
    )
    return both.footage(width, height, seconds * RATE, RATE)


def dense(seed: int, density: float, seconds: int) -> VideoProfile:
    """All classes, which cover a large part of the frame."""
    return _moving(tuple(KINDS), density, seconds, seed).footage(*SIZE, seconds * RATE, RATE)


def _moving(classes: Sequence[str], density: float, seconds: int, seed: int) -> Boxes:
    """Objects that cross the frame, as in the scenes of `sample_videos`."""
    width, height = SIZE
    looks, ways = (np.random.default_rng((seed, purpose)) for purpose in (2, 3))
    frames = seconds * RATE
    sprites = paint_all(classes, width, height, density, looks)
    tracks = schedule(Street(width, height, 0, float(RATE)), sprites, frames, density, ways)
    numbers, labels, corners = [], [], []
    for track in tracks:
        for frame in range(max(0, track.first), min(frames, track.last)):
            x, y = track.corner(frame)
            x1, x2 = max(x, 0), min(x + track.sprite.width, width)
            y1, y2 = max(y, 0), min(y + track.sprite.height, height)
            if x1 < x2 and y1 < y2:
                numbers.append(frame)
                labels.append(track.sprite.label)
                corners.append((x1, y1, x2, y2))
    return Boxes(np.array(numbers), np.array(labels), np.array(corners, np.int64))


# ----------------------------------------------------------------------------------- workloads

Starts = Callable[[int, np.random.Generator], int]
"""The first frame of a window, of so many that it may begin with."""


def anywhere(frames: int, rng: np.random.Generator) -> int:
    return int(rng.integers(frames))


def first_quarter(frames: int, rng: np.random.Generator) -> int:
    return int(rng.integers(frames // 4))


def zipf(frames: int, rng: np.random.Generator) -> int:
    """Zipf distribution with exponent 1 over all frames: frame n is n times as rare as the
    first."""
    weights = 1 / np.arange(1, frames + 1)
    return int(rng.choice(frames, p=weights / weights.sum()))


@dataclass(frozen=True)
class Workload:
    """A workload of TASM, section V-C, with windows of 10 s instead of a minute."""

    name: str
    queries: int
    seconds: int  #: of a window
    starts: Starts
    labels: Callable[[VideoProfile, float, np.random.Generator], str]
    """The label that a query looks for, by the video and the fraction of queries already made."""
    is_sparse: bool

    def draw(self, video: VideoProfile, seed: int) -> list[Query]:
        """Draw a window; an empty one is drawn again."""
        rng = np.random.default_rng((seed, 42))
        frames = video.sots[-1].stop
        rate = len(video.sots[0])
        window = self.seconds * rate
        queries: list[Query] = []
        while len(queries) < self.queries:
            label = self.labels(video, len(queries) / self.queries, rng)
            for _ in range(100):
                start = self.starts(frames - window, rng)
                if _is_there(video, label, range(start, start + window)):
                    queries.append(Query(range(start, start + window), frozenset({label})))
                    break
        return queries


def _is_there(video: VideoProfile, label: str, frames: range) -> bool:
    rate = len(video.sots[0])
    for sot in range(frames.start // rate, -(-frames.stop // rate)):
        seen = video.seen[sot].get(label)
        if seen is not None and ((seen.frames >= frames.start) & (seen.frames < frames.stop)).any():
            return True
    return False


@cache
def coverage(video: VideoProfile) -> dict[str, int]:
    """Pixels covered by the boxes of each label, the most first."""
    found: dict[str, int] = {}
    for sot in video.seen:
        for label, seen in sot.items():
            x1, y1, x2, y2 = seen.corners.T
            found[label] = found.get(label, 0) + int(((x2 - x1) * (y2 - y1)).sum())
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _in_place_of(label: str, video: VideoProfile) -> str:
    """The label itself, or in a video without it, the label of the same rank by covered pixels."""
    there = list(coverage(video))
    rank = ("car", "person", LIGHT).index(label)
    return label if label in there else there[min(rank, len(there) - 1)]


def _of(**chances: float) -> Callable[[VideoProfile, float, np.random.Generator], str]:
    def label(video: VideoProfile, done: float, rng: np.random.Generator) -> str:
        return _in_place_of(str(rng.choice(list(chances), p=list(chances.values()))), video)

    return label


def _in_thirds(video: VideoProfile, done: float, rng: np.random.Generator) -> str:
    return _in_place_of(("car", "person", "car")[int(done * 3)], video)


def _any_primary(video: VideoProfile, done: float, rng: np.random.Generator) -> str:
    return str(rng.choice(list(coverage(video))[:3]))


def _smallest(video: VideoProfile, done: float, rng: np.random.Generator) -> str:
    return list(coverage(video))[-1]


WORKLOADS = (
    Workload("W1", 100, 10, anywhere, _of(car=1.0), True),
    Workload("W2", 100, 10, first_quarter, _of(car=0.5, person=0.5), True),
    Workload("W3", 100, 10, zipf, _of(car=0.475, person=0.475, light=0.05), True),
    Workload("W4", 200, 10, zipf, _in_thirds, True),
    Workload("W5", 200, 1, anywhere, _any_primary, False),
    Workload("W6", 200, 1, anywhere, _smallest, False),
)
