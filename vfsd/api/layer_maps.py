"""The maps of a layer by their position in its file: pixels, exact counts, and their index.

A query takes from the index what its bounds decide, and decodes only the other maps.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vfsd.api import reading
from vfsd.core.cell_index import RUN, SHARE, CellIndex, CellIndexBuilder, Maps
from vfsd.core.detections import Ints
from vfsd.core.layers import BITS, StoredIndex
from vfsd.core.model import LogicalVideo
from vfsd.core.process_control import reset_after_fork
from vfsd.core.view_request import View
from vfsd.errors import (
    DamagedPackError,
    IntegrityError,
    NotFoundError,
    OverBudgetError,
)
from vfsd.read.read_context import ReadContext, VideoContext, VideoSnapshot
from vfsd.read.read_log import ReadTiming
from vfsd.read.read_plan import ReadPlan
from vfsd.storage.enforce_budget import exceeded
from vfsd.storage.reclaim import drop_damaged_tiles
from vfsd.tiling import Rect
from vfsd.write.ingest_file import pending_bytes

OnProgress = Callable[[int, int], None]
"""Called with (maps done, maps in all); it may raise to stop."""

_FORMATS = {8: "gray", 16: "gray16"}
_SAMPLES = 16
"""Maps that choose the bins of an index."""
_TOGETHER = 8
"""Maps that a search decodes before it looks again whether it is finished."""


@dataclass(slots=True)
class LayerWork:
    """The work of a query on a layer: how each map, or each box, was decided."""

    maps: int = 0  #: maps or boxes in question
    by_runs: int = 0  #: decided together with the other maps of their run
    by_maps: int = 0  #: decided by their own counts in the index
    decoded: int = 0  #: decoded


class _UnloggedVideo(VideoContext):
    """A video whose reads are not noted: tiles would not make these reads cheaper."""

    def note(
        self, kind: str, snapshot: VideoSnapshot, plan: Callable[[], ReadPlan], timing: ReadTiming
    ) -> None:
        """Note nothing."""


@dataclass(frozen=True, slots=True)
class Question:
    """How many pixels of a rectangle have codes in a range."""

    rect: Rect  #: in pixels of the maps
    low: int
    high: int  #: exclusive

    def counts(self, maps: Maps) -> Ints:
        """Return the answers for maps that were read in full, or in `rect` alone."""
        if maps.shape[1:] != (self.rect.height, self.rect.width):
            maps = maps[:, self.rect.y1 : self.rect.y2, self.rect.x1 : self.rect.x2]
        matching = maps >= self.low
        if self.high <= np.iinfo(maps.dtype).max:
            matching &= maps < self.high
        found: Ints = np.count_nonzero(matching, axis=(1, 2)).astype(np.int64)
        return found


class LayerFile:
    """The maps of a layer, by position.  Thread-safe, and usable after a fork."""

    def __init__(self, tools: ReadContext, info: LogicalVideo) -> None:
        self.video = _UnloggedVideo(tools, info)
        self.bits = BITS[info.original.media.pixel_format]
        media = info.original.media
        self.size = media.display_width, media.display_height
        self._index: CellIndex | None = None
        self._guard = threading.RLock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._guard = threading.RLock()

    def __len__(self) -> int:
        return self.video.original.frames

    @property
    def rect(self) -> Rect:
        """The whole map."""
        return Rect.of_size(*self.size)

    # -- pixels

    def read(self, positions: Sequence[int] | Ints | range, rect: Rect | None = None) -> Maps:
        """Return maps, or a rectangle of them, as maps x height x width.

        Raises `DamagedFramesError` for maps that show damage.
        """
        chosen = np.asarray(positions, np.int64)
        found = reading.read_numbered(
            self.video,
            lambda _: chosen,
            View(region=rect),
            _FORMATS[self.bits],
            math.inf,
            reading.RAISE,
            keep=False,
        )
        maps: Maps = np.asarray(found.data)[..., 0]
        return maps

    def runs(self) -> Iterator[Maps]:
        """Yield all maps in order, `RUN` at a time."""
        for first in range(0, len(self), RUN):
            yield self.read(range(first, min(first + RUN, len(self))))

    # -- the index

    @property
    def stored_index(self) -> StoredIndex | None:
        """The row of the index; None if none is stored."""
        with self.video.parts.catalog.reading() as seen:
            return seen.layer_indexes.get(self.video.original.id)

    def index(self) -> CellIndex:
        """Return the index, which is made if there is none.  Raises as `read`."""
        original = self.video.original
        if original.link_path is not None:
            # A file that was written since has other maps than the index counts.
            self.video.parts.originals.open_at(original.place).close()
        with self._guard:
            if self._index is None:
                stored = self.stored_index
                self._index = None if stored is None else self._loaded(stored)
            if self._index is None:
                return self.make_index()
            return self._index

    def make_index(
        self, on_progress: OnProgress | None = None, sums: Sequence[int] | None = None
    ) -> CellIndex:
        """Make the index again, and store it where the store is writable and has room for it.

        With `sums`, also compare the CRC-32 of each map with them.  Raises as `read`, and
        `IntegrityError` where a map differs.
        """
        size = self.video.original.size
        samples = np.unique(np.linspace(0, len(self) - 1, _SAMPLES).astype(np.int64))
        middle = max(0, min(len(self) // 2, len(self) - RUN))
        builder = CellIndexBuilder(
            self.read(samples),
            self.read(range(middle, min(middle + RUN, len(self)))),
            size / len(self),
        )
        for maps in self.runs():
            if sums is not None:
                _require_same(maps, sums[builder.maps : builder.maps + len(maps)], builder.maps)
            builder.add(maps)
            if on_progress is not None:
                on_progress(builder.maps, len(self))
        data = builder.finish(round(SHARE * size))
        if not self.video.parts.read_only:
            self._store(data, builder)
        with self._guard:
            self._index = CellIndex(lambda position, count: data[position : position + count])
            return self._index

    def _store(self, data: bytes, builder: CellIndexBuilder) -> None:
        """Publish an index, unless a budget has no room for it."""
        parts, video = self.video.parts, self.video.info
        try:
            pending = pending_bytes(parts, data, f"the index of {video.name}")
            with pending, pending.recorded() as change:
                if change.layers.of_file(video.id) is None:
                    raise NotFoundError("the layer was removed")
                if self.video.stored(change).original.id != video.original.id:
                    raise NotFoundError("the frames of the layer were counted again")
                change.layer_indexes.put(
                    StoredIndex(
                        video.original.id,
                        pending.key,
                        pending.size,
                        builder.cell,
                        builder.bins,
                        time.time_ns(),
                    )
                )
                if any((exceeded(change, scope) or 0) > 0 for scope in (video.id, None)):
                    raise OverBudgetError("no room for the index")
        except (NotFoundError, OverBudgetError):
            return  # this process has the index, and the next one makes its own

    def _loaded(self, stored: StoredIndex) -> CellIndex | None:
        """Return a stored index; None if it is damaged or gone."""
        objects = self.video.parts.objects
        try:
            with closing(objects.open(stored.object_key)) as reader:
                data = reader.read(0, stored.size)
            found = CellIndex(lambda position, count: data[position : position + count])
            if len(found) != len(self) or found.size != self.size:
                raise IntegrityError("the index is that of another layer")
        except (FileNotFoundError, IntegrityError) as error:
            self._drop(stored, error)
            return None
        return found

    def _drop(self, stored: StoredIndex, error: Exception) -> None:
        drop_damaged_tiles(self.video.parts, DamagedPackError(str(error), stored.object_key))

    def _bounded(self, ask: Callable[[CellIndex], tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
        """Return bounds by the index; one that turns out to be damaged is made again."""
        with self._guard:
            index = self.index()
            try:
                return ask(index)
            except IntegrityError as error:
                stored = self.stored_index
                if stored is not None:
                    self._drop(stored, error)
                return ask(self.make_index())

    def run_bounds(self, asked: Question) -> tuple[Ints, Ints]:
        """Return bounds of the answer for all maps of each run of `RUN` maps."""
        return self._bounded(lambda index: index.run_bounds(asked.rect, asked.low, asked.high))

    def map_bounds(self, run: int, asked: Question) -> tuple[Ints, Ints]:
        """Return bounds of the answer for each map of a run."""
        return self._bounded(lambda index: index.map_bounds(run, asked.rect, asked.low, asked.high))

    def one_map_bounds(self, position: int, asked: Question) -> tuple[int, int]:
        """Return bounds of the answer for one map."""
        run, place = divmod(position, RUN)

        def ask(index: CellIndex) -> tuple[Ints, Ints]:
            return index.map_bounds(run, asked.rect, asked.low, asked.high, place)

        least, most = self._bounded(ask)
        return int(least[0]), int(most[0])

    # -- answers

    def counts(self, asked: Question, positions: range, work: LayerWork) -> Ints:
        """Return the answer for each of some maps."""
        counts, unknown = np.zeros(len(positions), np.int64), []
        work.maps += len(positions)
        least, most = self.run_bounds(asked)
        for run, maps in _runs_of(positions):
            at = slice(maps.start - positions.start, maps.stop - positions.start)
            if least[run] == most[run]:
                counts[at] = least[run]
                work.by_runs += len(maps)
                continue
            low, high = (bound[_within(run, maps)] for bound in self.map_bounds(run, asked))
            counts[at] = low
            unknown.append(np.flatnonzero(low < high) + maps.start)
        left = np.concatenate(unknown) if unknown else np.empty(0, np.int64)
        for decoded, found in self._counted(left, asked, work):
            counts[decoded - positions.start] = found
        work.by_maps = work.maps - work.by_runs - work.decoded
        return counts

    def above(self, asked: Question, positions: range, limit: float, work: LayerWork) -> Ints:
        """Return the maps whose answer is more than `limit`, ascending."""
        chosen, unknown = [], []
        work.maps += len(positions)
        least, most = self.run_bounds(asked)
        for run, maps in _runs_of(positions):
            if least[run] > limit or most[run] <= limit:
                work.by_runs += len(maps)
                if least[run] > limit:
                    chosen.append(np.arange(maps.start, maps.stop))
                continue
            low, high = (bound[_within(run, maps)] for bound in self.map_bounds(run, asked))
            chosen.append(np.flatnonzero(low > limit) + maps.start)
            unknown.append(np.flatnonzero((low <= limit) & (high > limit)) + maps.start)
        left = np.concatenate(unknown) if unknown else np.empty(0, np.int64)
        chosen += [some[found > limit] for some, found in self._counted(left, asked, work)]
        work.by_maps = work.maps - work.by_runs - work.decoded
        return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)

    def _counted(
        self, positions: Ints, asked: Question, work: LayerWork
    ) -> Iterator[tuple[Ints, Ints]]:
        """Decode some maps, and yield them with their answers."""
        for first in range(0, len(positions), RUN):
            some = positions[first : first + RUN]
            work.decoded += len(some)
            yield some, asked.counts(self.read(some, asked.rect))


def _runs_of(positions: range) -> Iterator[tuple[int, range]]:
    """Yield the runs of some maps, each with those of its maps that are among them."""
    if not positions:
        return
    for run in range(positions.start // RUN, (positions.stop - 1) // RUN + 1):
        yield (
            run,
            range(max(run * RUN, positions.start), min((run + 1) * RUN, positions.stop)),
        )


def _within(run: int, maps: range) -> slice:
    return slice(maps.start - run * RUN, maps.stop - run * RUN)


# -- the best of several layers


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A part of a layer that may have the best answers; one map, or all maps of a run."""

    file: LayerFile
    asked: Question
    maps: range
    order: int  #: of two equal answers, that with the lower order comes first; then by map
    least: int
    most: int


def best(
    candidates: Sequence[Candidate], count: int, *, ascending: bool, work: LayerWork
) -> list[tuple[int, Candidate, int]]:
    """Return the best answers as (answer, candidate, map), the best first.

    The best are the highest, or with `ascending` the lowest.
    """
    sign = -1 if ascending else 1

    def bounds(one: Candidate) -> tuple[int, int]:
        return (-one.most, -one.least) if ascending else (one.least, one.most)

    waiting = [
        (-bounds(one)[1], one.order, one.maps.start, at) for at, one in enumerate(candidates)
    ]
    heapq.heapify(waiting)
    known = list(candidates)
    floors: list[int] = []  # a heap of the highest lower bounds of opened runs
    opened = sum(len(one.maps) == 1 for one in candidates)
    work.maps += sum(len(one.maps) for one in candidates)
    decoded = work.decoded
    found: list[tuple[int, int, int, int]] = []  # a heap with the worst of the best first
    batch: list[int] = []

    def take(answer: int, at: int, map_: int) -> None:
        entry = (sign * answer, -known[at].order, -map_, at)
        if len(found) < count:
            heapq.heappush(found, entry)
        else:
            heapq.heappushpop(found, entry)

    def is_hopeless(most: int, order: int, map_: int) -> bool:
        return len(found) == count and (most, -order, -map_) < found[0][:3]

    while waiting or batch:
        wanted = min(max(_TOGETHER, count - len(found)), RUN)
        if batch and (len(batch) >= wanted or not waiting):
            for at, answer in _decoded([known[at] for at in batch], batch, work):
                take(answer, at, known[at].maps.start)
            batch = []
            continue
        negative, order, first, at = heapq.heappop(waiting)
        if is_hopeless(-negative, order, first):
            waiting = []
            batch = [
                one
                for one in batch
                if not is_hopeless(bounds(known[one])[1], known[one].order, known[one].maps.start)
            ]
            continue
        one = known[at]
        if one.least == one.most:
            for map_ in one.maps:
                take(one.least, at, map_)
        elif len(one.maps) == 1:
            batch.append(at)
        else:
            opened += len(one.maps)
            run = one.maps.start // RUN
            least, most = one.file.map_bounds(run, one.asked)
            low, high = (-most, -least) if ascending else (least, most)
            places = np.arange(one.maps.start - run * RUN, one.maps.stop - run * RUN)
            for floor in low[places].tolist():
                if len(floors) < count:
                    heapq.heappush(floors, floor)
                elif floor > floors[0]:
                    heapq.heapreplace(floors, floor)
            if len(floors) == count:  # so many maps are at least as good
                places = places[high[places] >= floors[0]]
            for place in places.tolist():
                map_ = run * RUN + place
                known.append(
                    Candidate(
                        one.file,
                        one.asked,
                        range(map_, map_ + 1),
                        one.order,
                        int(least[place]),
                        int(most[place]),
                    )
                )
                heapq.heappush(waiting, (-int(high[place]), one.order, map_, len(known) - 1))
    work.by_runs = work.maps - opened
    work.by_maps = opened - (work.decoded - decoded)
    return [
        (sign * answer, known[at], -map_) for answer, _, map_, at in sorted(found, reverse=True)
    ]


def run_candidates(
    file: LayerFile, asked: Question, positions: range, order: int
) -> list[Candidate]:
    """Return the runs of some maps of a layer as candidates."""
    least, most = file.run_bounds(asked)
    return [
        Candidate(file, asked, maps, order, int(least[run]), int(most[run]))
        for run, maps in _runs_of(positions)
    ]


def _decoded(
    some: Sequence[Candidate], keys: Sequence[int], work: LayerWork
) -> Iterator[tuple[int, int]]:
    """Decode the map of each candidate once, and yield the answers by key."""
    by_file: dict[int, list[tuple[int, Candidate]]] = {}
    for key, one in zip(keys, some, strict=True):
        by_file.setdefault(id(one.file), []).append((key, one))
    work.decoded += len(some)
    for group in by_file.values():
        file = group[0][1].file
        positions = sorted({one.maps.start for _, one in group})
        rects = {one.asked.rect for _, one in group}
        maps = file.read(positions, rects.pop() if len(rects) == 1 else None)
        for key, one in group:
            at = positions.index(one.maps.start)
            yield key, int(one.asked.counts(maps[at : at + 1])[0])


def _require_same(maps: Maps, sums: Sequence[int], first: int) -> None:
    for at, (one, sum_) in enumerate(zip(maps, sums, strict=True)):
        if map_sum(one) != sum_:
            raise IntegrityError(f"map {first + at} was stored with other samples than given")


def map_sum(one: npt.NDArray[np.generic]) -> int:
    """Return the CRC-32 of the samples of a map."""
    return zlib.crc32(np.ascontiguousarray(one).tobytes())
