"""`NeighbourList`: the vectors nearest to one, among those of many videos; `Store.nearest`.

Few vectors are all compared.  Of many, the signs estimate all distances, and the nearest by
estimate are compared exactly.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from vfsd.api.vectors import chosen_source
from vfsd.core.detections import Ints, Source
from vfsd.core.process_control import reset_after_fork
from vfsd.core.vectors import Singles, StoredVectors, unit
from vfsd.errors import NotFoundError, UsageError
from vfsd.read.vector_blocks import VectorCache, grouped
from vfsd.validation import boolean, whole_number

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.catalog import Catalog

EXACT_ROWS = 20_000
"""With fewer vectors, all are compared."""
_LEAST_COMPARED = 500
_COMPARED_EACH = 20
"""Vectors to compare exactly, for each that is asked for."""
_MOST_SETS = 8
_MOST_KEPT = 8_000_000
"""Vectors of all sets that are kept, at 16 bytes for the frames of each."""

Query = npt.NDArray[Any] | Sequence[float] | tuple[str, tuple[int, int] | range | int]
"""A vector, or the name of a video with a frame or a run of frames that has one."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A run of frames whose vector is near to the one that was asked for."""

    video: str  #: its name
    frames: range
    score: float  #: cosine of the angle between both: 1 for the same direction

    @property
    def name(self) -> str:
        """The frames as a key of views: ``video.views.open(one.name + ".mp4")`` plays them."""
        return frames_key(self.frames)


def frames_key(frames: range) -> str:
    """Return a run of frames as a key of views."""
    return f"frames={frames.start}-{frames.stop}"


@dataclass(frozen=True, slots=True)
class NeighbourList(Sequence[Neighbour]):
    """The nearest vectors, the best first; of equal ones by name and frame."""

    items: tuple[Neighbour, ...]
    source: Source
    vectors: int  #: among which they were sought
    compared: int  #: number of those that were compared exactly
    recall: float | None
    """Share of the true nearest ones in `items`: 1 if all were compared; None: not measured."""

    @overload
    def __getitem__(self, at: int) -> Neighbour: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Neighbour, ...]: ...
    def __getitem__(self, at: int | slice) -> Neighbour | tuple[Neighbour, ...]:
        return self.items[at]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Neighbour]:
        return iter(self.items)

    def explain(self) -> str:
        """Return what the result is based on, in one sentence."""
        if self.compared == self.vectors:
            return f"exact: all {self.vectors} vectors were compared"
        how = (
            f"the signs of {self.vectors} vectors chose {self.compared}, which were compared "
            "exactly; "
        )
        if self.recall is None:
            return how + "the recall was not measured"
        return how + f"recall {self.recall:.3f}, measured by comparing all of them as well"


class _Best(NamedTuple):
    """Rows with their scores, in any order."""

    scores: Singles
    places: Ints  #: numbers of rows, counted over all blocks


@dataclass(frozen=True, slots=True, eq=False)
class VectorSet:
    """The blocks to search: those of one source in some videos."""

    source: Source
    source_id: int
    blocks: Sequence[StoredVectors]
    groups: Sequence[Sequence[StoredVectors]]  #: the same blocks
    runs: Sequence[Ints]  #: frames of the rows of each block
    names: Mapping[int, str]  #: of videos, by id
    cache: VectorCache

    @classmethod
    def of(cls, store: Store, source: str | Source | None, names: str | Iterable[str]) -> VectorSet:
        """The vectors of a source in the videos `names`, as for `Store.named`.

        Raises `NotFoundError` without any, `UsageError` where several sources fit.
        """
        if isinstance(names, str) and (source is None or isinstance(source, str | Source)):
            key = source, names
            return store.recent_vectors.get(key, lambda: cls._read(store, source, names))
        return cls._read(store, source, names)

    @classmethod
    def _read(
        cls, store: Store, source: str | Source | None, names: str | Iterable[str]
    ) -> VectorSet:
        chosen = None if names == "**" else [video.info for video in store.named(names)]
        with store.catalog.reading() as seen:
            number = chosen_source(seen, seen.vectors.source_ids(), source, "the store")
            who = seen.detections.sources_by_id([number])[number]
            ids = None if chosen is None else [info.id for info in chosen]
            found = seen.vectors.of_source(number, ids)
            if chosen is None:
                # Without a name: a file that is being written over, or was unlinked while open.
                known = seen.lists.names_of_videos({block.video_id for block in found})
            else:
                known = {info.id: info.name for info in chosen}
        blocks = [block for block in found if known.get(block.video_id)]
        runs = [block.frames for block in blocks]
        return cls(who, number, blocks, grouped(blocks), runs, known, store.vector_cache)

    @property
    def total(self) -> int:
        """Number of vectors."""
        return sum(block.rows - block.lost for block in self.blocks)

    @property
    def dimension(self) -> int | None:
        """Numbers in a vector; None without vectors."""
        return self.blocks[0].dimension if self.blocks else None

    def exact(self, vector: Singles, count: int) -> _Best:
        """Compare all vectors with one of length 1."""
        parts = [self.cache.units(block) @ vector for block in self.blocks]
        scores = self._joined(parts, -np.inf)
        return self._best(scores, np.arange(len(scores)), count)

    def by_signs(self, vector: Singles, count: int, compared: int) -> _Best:
        """Compare `compared` vectors exactly: the nearest by the estimate of their signs."""
        flat = self._joined(
            [self.cache.signs(group).estimates(vector) for group in self.groups], np.inf
        )
        # This is faster than `argpartition`.
        chosen = np.flatnonzero(flat <= np.partition(flat, compared - 1)[compared - 1])
        if len(chosen) > compared:  # several are equal
            chosen = np.sort(chosen[np.argsort(flat[chosen], kind="stable")[:compared]])
        ends = np.cumsum([sum(block.rows for block in group) for group in self.groups])
        parts = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
        starts = [0, *ends[:-1].tolist()]
        scores = [
            self.cache.nearby(group, part - start, vector)
            for group, part, start in zip(self.groups, parts, starts, strict=True)
        ]
        return self._best(np.concatenate(scores), chosen, count)

    def _joined(self, parts: Sequence[Singles], lost: float) -> Singles:
        """Return numbers of all rows as one array, with `lost` where a row has no frames."""
        flat = np.concatenate(parts)
        at = 0
        for block, runs in zip(self.blocks, self.runs, strict=True):
            if block.lost:
                flat[at : at + block.rows][runs[:, 0] < 0] = lost
            at += block.rows
        return flat

    def _best(self, scores: Singles, places: Ints, count: int) -> _Best:
        at = len(scores) - min(count, self.total)
        best = scores >= np.partition(scores, at)[at]  # more than `count` where several are equal
        return _Best(scores[best], places[best])

    def neighbours(self, best: _Best, count: int, besides: tuple[int, int, int] | None) -> Any:
        """Return the best as `Neighbour`s, without the vector `besides`: video, first and end."""
        found = []
        ends = np.cumsum([block.rows for block in self.blocks])
        numbers = np.searchsorted(ends, best.places, side="right").tolist()
        for score, place, number in zip(*(one.tolist() for one in best), numbers, strict=True):
            first, end = self.runs[number][place - int(ends[number])].tolist()
            video = self.blocks[number].video_id
            if (video, first, end) != besides:
                found.append(Neighbour(self.names[video], range(first, end), score))
        found.sort(key=lambda one: (-one.score, one.video, one.frames.start, one.frames.stop))
        return tuple(found[:count])


class RecentVectorSets:
    """The sets that were searched last, until the catalog changes.  Thread-safe."""

    def __init__(self, catalog: Catalog) -> None:
        self._watch = catalog.watch()
        self._changes = 0
        self._sets: OrderedDict[Hashable, VectorSet] = OrderedDict()
        self._guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._sets = OrderedDict()
        self._guard = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], VectorSet]) -> VectorSet:
        """Return the set with that key, from `load` if it is not known.  Raises as `load`."""
        with self._guard:
            # A server is asked: an answer must not miss vectors that were added before.
            if self._watch.changed(now=True):
                self._changes += 1
                self._sets.clear()
            found, changes = self._sets.get(key), self._changes
            if found is not None:
                self._sets.move_to_end(key)
                return found
        found = load()
        with self._guard:
            if changes == self._changes:
                self._sets[key] = found
                while sum(one.total for one in self._sets.values()) > _MOST_KEPT or (
                    len(self._sets) > _MOST_SETS
                ):
                    self._sets.popitem(last=False)
        return found

    def close(self) -> None:
        self._watch.close()


def nearest(
    store: Store,
    query: Query,
    count: int = 10,
    *,
    source: str | Source | None = None,
    names: str | Iterable[str] = "**",
    exact: bool = False,
    measure: bool = False,
) -> NeighbourList:
    """Find the nearest vectors; see `Store.nearest`."""
    count = whole_number(count, "k")
    if count < 1:
        raise UsageError(f"k must be at least 1, got {count}")
    exact, measure = boolean(exact, "exact"), boolean(measure, "measure")
    found = VectorSet.of(store, source, names)
    vector, besides = _vector_of(store, query, found)
    total = found.total
    if not total:
        return NeighbourList((), found.source, 0, 0, 1.0)
    wanted = count + (besides is not None)
    compared = max(_LEAST_COMPARED, _COMPARED_EACH * wanted)
    if exact or total < EXACT_ROWS or compared >= total:
        items = found.neighbours(found.exact(vector, wanted), count, besides)
        return NeighbourList(items, found.source, total, total, 1.0)
    items = found.neighbours(found.by_signs(vector, wanted, compared), count, besides)
    recall = None
    if measure:
        truth = found.neighbours(found.exact(vector, wanted), count, besides)
        # By score: of vectors that are equally near, any will do.
        recall = sum(one.score >= truth[-1].score - 1e-6 for one in items) / len(truth)
    return NeighbourList(items, found.source, total, compared, recall)


def _vector_of(
    store: Store, query: Query, among: VectorSet
) -> tuple[Singles, tuple[int, int, int] | None]:
    """Return a query as a vector of length 1, and the place of the vector that it names."""
    if isinstance(query, tuple) and len(query) == 2 and isinstance(query[0], str):
        return _named_vector(store, query[0], query[1], among)
    try:
        given = np.asarray(query, np.float64)
    except (TypeError, ValueError):
        given = np.empty((0, 0))
    if given.ndim != 1 or not len(given):
        raise UsageError(
            f"the query must be a vector, or a name and frames, got {shown(query)}",
            hint='for example ("cam1/a.mp4", (0, 30))',
        )
    if among.dimension not in (None, len(given)):
        raise UsageError(
            f"vectors of {among.source} have {among.dimension} numbers, got {len(given)}"
        )
    if not np.isfinite(given).all():
        raise UsageError("the query must be finite, got NaN or infinity")
    return unit(given[np.newaxis])[0], None


def _named_vector(
    store: Store, name: str, frames: Any, among: VectorSet
) -> tuple[Singles, tuple[int, int, int]]:
    """Return the vector of a video for frames: of the same run, else the one with most of them."""
    video = store[name]
    if isinstance(frames, range):
        frames = frames.start, frames.stop
    elif not isinstance(frames, tuple):
        frames = frames, whole_number(frames, "frame") + 1
    if len(frames) != 2:
        raise UsageError(f"frames must be a number or (first, end), got {shown(frames)}")
    first, end = (whole_number(one, "frames") for one in frames)
    with store.catalog.reading() as seen:
        blocks = seen.vectors.of_video(video.info.id, [among.source_id])
    found = None
    for block in blocks:
        runs = block.frames
        shared = np.minimum(runs[:, 1], end) - np.maximum(runs[:, 0], first)
        at = int(np.lexsort((runs[:, 1] - runs[:, 0], -shared))[0])
        fit = int(shared[at]), int(runs[at, 0] - runs[at, 1])
        if fit[0] > 0 and (found is None or fit > found[0]):
            found = fit, block, at, runs[at].tolist()
    if found is None:
        raise NotFoundError(
            f"{name!r} has no vector of {among.source} for the frames ({first}, {end})",
            hint="`video.vectors.get(source).frames` has the frames with one",
        )
    _, block, at, (first, end) = found
    row = among.cache.rows(block, np.array([at]))
    return unit(row)[0], (video.info.id, first, end)
