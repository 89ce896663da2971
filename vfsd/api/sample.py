"""`Sample`: runs of frames to look at next, at random or far from those seen; `Store.sample`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from reprlib import repr as shown
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vfsd.api.labels import find_boxes
from vfsd.api.moments import find_moments
from vfsd.api.vector_search import VectorSet, frames_key
from vfsd.api.video import context_of
from vfsd.core.detections import Ints, Source
from vfsd.core.frames import merge_ranges
from vfsd.core.timebase import Seconds
from vfsd.core.timebase import seconds as exact_seconds
from vfsd.core.vectors import unit
from vfsd.errors import UsageError
from vfsd.read.vector_blocks import FarDistances
from vfsd.validation import whole_number

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video

_MOST_VECTORS = 50_000
"""Of more vectors, so many drawn at random are compared."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A run of frames that was chosen."""

    video: str  #: its name
    frames: range
    span: tuple[Fraction, Fraction]  #: seconds from the first frame, the end exclusive

    @property
    def name(self) -> str:
        """The frames as a key of views: ``video.views.open(one.name + ".mp4")`` plays them."""
        return frames_key(self.frames)


def sample(
    store: Store,
    count: int,
    *,
    seconds: Seconds | None,
    names: str | Iterable[str],
    unlabelled: str | Source | None,
    how: str,
    source: str | Source | None,
    seed: int | None,
) -> list[Sample]:
    """Choose runs of frames; see `Store.sample`."""
    count = whole_number(count, "n")
    if count < 0:
        raise UsageError(f"n must be 0 or more, got {count}")
    if how not in ("random", "far"):
        raise UsageError(f"how must be random or far, got {shown(how)}")
    length = None if seconds is None else exact_seconds(seconds)
    if length is not None and length <= 0:
        raise UsageError(f"seconds must be positive, got {shown(seconds)}")
    if unlabelled is not None and not isinstance(unlabelled, str | Source):
        raise UsageError(f"unlabelled must be a source, got {shown(unlabelled)}")
    random = np.random.default_rng(None if seed is None else whole_number(seed, "seed"))
    if how == "far":
        vectors = VectorSet.of(store, source, names)
        if not vectors.total:
            return []
        return list(_Far(store, vectors, unlabelled, length, random).choose(count))
    if source is not None:
        raise UsageError("source requires how='far'", hint="unlabelled takes a source, too")
    return list(_at_random(store, names, unlabelled, length or Fraction(1), random, count))


class _Seen:
    """The frames of each video that a source has labelled or examined."""

    def __init__(self, source: str | Source | None) -> None:
        self._source = source
        self._known: dict[int, Ints] = {}

    def of(self, video: Video) -> Ints:
        """Return disjoint runs of frames, ascending: N x 2."""
        found = self._known.get(video.info.id)
        if found is None:
            found = self._known[video.info.id] = self._look(video)
        return found

    def overlaps(self, video: Video, runs: Ints) -> npt.NDArray[np.bool_]:
        """Return for each run (N x 2) whether a frame of it was seen."""
        seen = self.of(video)
        if not len(seen):
            return np.zeros(len(runs), bool)
        at = np.searchsorted(seen[:, 1], runs[:, 0], side="right")
        starts = np.append(seen[:, 0], np.iinfo(np.int64).max)[at]
        found: npt.NDArray[np.bool_] = starts < runs[:, 1]
        return found

    def _look(self, video: Video) -> Ints:
        if self._source is None:
            return np.empty((0, 2), np.int64)
        frames = find_boxes(context_of(video), source=self._source).frames().tolist()
        looked = [one.frames for one in video.labels.examined(self._source)]
        looked += [one.frames for one in find_moments([context_of(video)], source=self._source)]
        merged = merge_ranges(
            [*((one, one + 1) for one in frames), *((one.start, one.stop) for one in looked)]
        )
        return np.array(merged, np.int64).reshape(-1, 2)


def _at_random(
    store: Store,
    names: str | Iterable[str],
    unlabelled: str | Source | None,
    length: Fraction,
    random: np.random.Generator,
    count: int,
) -> Iterator[Sample]:
    """Yield windows of `length` seconds, each of all videos as likely as any other."""
    videos = store.named(names) if len(store) else []
    # The rest of a video that is shorter than a window is left out, unless it is all.
    sizes = [max(1, int(video.duration // length)) for video in videos]
    ends = np.cumsum(sizes, dtype=np.int64)
    seen = _Seen(unlabelled)
    for number in _shuffled(int(ends[-1]) if sizes else 0, random):
        if not count:
            return
        at = int(np.searchsorted(ends, number, side="right"))
        video = videos[at]
        start = (number - (int(ends[at]) - sizes[at])) * length
        frames = video.frames_in((start, min(start + length, video.duration)))
        if not frames:
            continue  # one picture is shown all the time
        run = np.array([[frames.start, frames.stop]])
        if not seen.overlaps(video, run)[0]:
            count -= 1
            yield _sample(video, frames)


def _shuffled(total: int, random: np.random.Generator) -> Iterator[int]:
    """Yield the numbers below `total` in random order, without storing all of them."""
    moved: dict[int, int] = {}
    for at in range(total):
        other = int(random.integers(at, total))
        yield moved.pop(other, other)
        if other != at:
            moved[other] = moved.pop(at, at)


def span_of(video: Video, frames: range) -> tuple[Fraction, Fraction]:
    """Return when some frames, at least one, are shown: seconds from the first frame."""
    table, original = context_of(video).table, video.original
    ticks = table.pts(frames.start, min(frames.stop + 1, len(table))).tolist()
    end = original.end_pts if frames.stop >= len(table) else ticks[-1]
    start, stop = ticks[0] - original.first_pts, end - original.first_pts
    return start * original.time_base, stop * original.time_base


def _sample(video: Video, frames: range) -> Sample:
    return Sample(video.name, frames, span_of(video, frames))


class _Far:
    """Chooses vectors that are far from all seen ones: greedy k-centre."""

    def __init__(
        self,
        store: Store,
        vectors: VectorSet,
        unlabelled: str | Source | None,
        length: Fraction | None,
        random: np.random.Generator,
    ) -> None:
        self._vectors = vectors
        self._distances = _distances_among(vectors)
        self._videos = {number: store[name] for number, name in vectors.names.items()}
        self._seen = _Seen(unlabelled)
        self._length = length
        self._random = random

    def choose(self, count: int) -> Iterator[Sample]:
        """Yield up to `count` runs."""
        known = self._distances
        seen = np.zeros(len(known.runs), bool)
        for number in np.unique(known.videos).tolist():
            mine = known.videos == number
            seen[mine] = self._seen.overlaps(self._videos[number], known.runs[mine])
        known.take_into_account(seen)
        nearest = np.where(seen, -np.inf, known.nearest)
        taken: dict[int, list[range]] = {}
        while count and (nearest > -np.inf).any():
            at = int(self._random.choice(np.flatnonzero(nearest == nearest.max())))
            number = int(known.videos[at])
            frames = self._window(self._videos[number], range(*known.runs[at].tolist()))
            if self._is_free(number, frames, taken.setdefault(number, [])):
                taken[number].append(frames)
                np.minimum(nearest, known.from_row(at), out=nearest)
                count -= 1
                yield _sample(self._videos[number], frames)
            nearest[at] = -np.inf

    def _window(self, video: Video, run: range) -> range:
        """Return the frames of the wanted length around the middle of a run."""
        if self._length is None:
            return run
        middle = sum(span_of(video, run)) / 2
        start = max(Fraction(0), min(middle - self._length / 2, video.duration - self._length))
        return video.frames_in((start, min(start + self._length, video.duration)))

    def _is_free(self, number: int, frames: range, taken: Sequence[range]) -> bool:
        if any(one.start < frames.stop and frames.start < one.stop for one in taken):
            return False
        run = np.array([[frames.start, frames.stop]])
        return len(frames) > 0 and not self._seen.overlaps(self._videos[number], run)[0]


def _distances_among(vectors: VectorSet) -> FarDistances:
    """Return the distances of the last call if that was about the same vectors, else new ones."""
    key = tuple(block.id for block in vectors.blocks)
    known = vectors.cache.distances
    if known is not None and known.key == key:
        return known
    runs = [block.frames for block in vectors.blocks]
    live = [np.flatnonzero(part[:, 0] >= 0) for part in runs]
    if vectors.total > _MOST_VECTORS:
        # Always the same ones, so that a seed gives the same answer in each process.
        chosen = np.zeros(vectors.total, bool)
        chosen[np.random.default_rng(0).permutation(vectors.total)[:_MOST_VECTORS]] = True
        ends = np.cumsum([len(rows) for rows in live])
        live = [rows[part] for rows, part in zip(live, np.split(chosen, ends[:-1]), strict=True)]
    parts = list(zip(vectors.blocks, runs, live, strict=True))
    made = FarDistances(
        key,
        np.repeat([block.video_id for block in vectors.blocks], [len(rows) for rows in live]),
        np.concatenate([part[rows] for _, part, rows in parts]),
        np.concatenate([unit(vectors.cache.rows(block, rows)) for block, _, rows in parts]),
    )
    vectors.cache.distances = made
    return made
