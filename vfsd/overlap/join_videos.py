"""Joining the videos of two cameras that see the same, and taking that back.

The originals stay as they are.  Beside them, run by run of about a second, a pack is stored from
which the pictures of both can be made; a run appears whole or not at all, so what was interrupted
is gone on with by joining the two again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

import numpy as np

from vfsd.api.video import Video, context_of
from vfsd.catalog import Transaction
from vfsd.core.frame_table import FrameTable
from vfsd.core.hostinfo import worker_count
from vfsd.core.model import LogicalVideo, Segment
from vfsd.errors import NotFoundError, OutdatedError, UsageError
from vfsd.overlap.join_settings import JoinSettings, require_joinable
from vfsd.overlap.join_worker import FramePairs, JoinedRun, JoinWorker, Seconds, pair_frames
from vfsd.overlap.overlap_pair import Overlap, Verdict
from vfsd.overlap.overlap_search import VideoPair, overlap_of
from vfsd.read.read_context import ReadContext
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import reclaim_or_log
from vfsd.tiling import cut_sequences, overlaps
from vfsd.tiling.cost import JOINED_LEFT

OnProgress = Callable[[int, int], None]
"""Called with (frames done, frames in all), several times a second; may raise to give up."""

_HEARTBEAT_SECONDS = 0.2
"""How long a report of progress may be waited for."""
_MEMORY_BYTES = 768 << 20
"""Of the pictures of both videos that all runs together have in memory, about."""
_BYTES_PER_PIXEL = 2.5
"""Of a picture and a half: its pieces are in memory as well."""
_MOST_FRAMES = 300


@dataclass(frozen=True, slots=True)
class JoinReport:
    """What joining two videos has come to."""

    left: str  #: name of the video that is the left one
    right: str
    overlap: Overlap
    runs: tuple[JoinedRun, ...]  #: that were tried, by time
    before: int  #: frames, of either, that were joined with each other before
    elsewhere: Mapping[str, int]  #: frames, of either, that are joined with others, by their names
    unpaired: int  #: frames of the left video that the right one has none for
    original_bytes: int  #: of both files, in the runs that are joined, about

    @property
    def is_one_file(self) -> bool:
        """Whether both have the same bytes, which the store has once: nothing is joined then."""
        return self.overlap.verdict is Verdict.SAME

    @property
    def joined(self) -> tuple[JoinedRun, ...]:
        return tuple(run for run in self.runs if run.is_joined)

    @property
    def frames(self) -> int:
        """That were joined, of either."""
        return sum(len(run.frames) for run in self.joined)

    @property
    def bytes(self) -> int:
        """That were stored for both."""
        return sum(run.bytes for run in self.joined)

    @property
    def psnr(self) -> tuple[float, float] | None:
        """dB of the left and the right pictures, of the worst; None where nothing was joined."""
        found = [run.psnr for run in self.joined if run.psnr is not None]
        if not found:
            return None
        return min(left for left, _ in found), min(right for _, right in found)

    @property
    def too_poor(self) -> tuple[float, float] | None:
        """From how many dB to how many the runs would have had that do not have enough."""
        found = [min(run.psnr) for run in self.runs if run.why and run.psnr is not None]
        return (min(found), max(found)) if found else None

    @property
    def reasons(self) -> Counter[str]:
        """Why runs stay as they are, and how many frames they have."""
        counts = Counter(
            {f"joined with {name} already": frames for name, frames in self.elsewhere.items()}
        )
        for run in self.runs:
            if not run.is_joined:
                counts[run.why] += len(run.frames)
        return counts


@dataclass(frozen=True, slots=True)
class JoinedPair:
    """Two videos, some of whose pictures are kept together."""

    left: str  #: name
    right: str
    segments: tuple[tuple[Segment, Segment], ...]  #: left and right, by time

    @property
    def frames(self) -> int:
        """Of either."""
        return sum(len(one.frames) for one, _ in self.segments)

    @property
    def bytes(self) -> int:
        """Of all packs."""
        return sum(one.size + other.size for one, other in self.segments)

    @property
    def psnr(self) -> tuple[float, float]:
        """dB of the left and the right pictures, of the worst plane of the worst picture."""
        return min(one.psnr for one, _ in self.segments), min(two.psnr for _, two in self.segments)

    @property
    def copied(self) -> int:
        """Frames whose right pictures are nothing but the left ones."""
        return sum(len(one.frames) for one, other in self.segments if _is_pointer(one, other))


def join_videos(
    parts: StoreContext,
    tools: ReadContext,
    one: Video,
    other: Video,
    settings: JoinSettings,
    *,
    seconds_each: float = 1.0,
    dry_run: bool = False,
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
) -> JoinReport:
    """Join two videos as far as they agree; what came of it.

    Both timelines start at the same time.  Of two files with the same bytes, which are stored once,
    nothing is joined.  What is joined already stays; what agrees less than is asked for stays as it
    is.  With `dry_run` all is done but nothing stored.

    Raises `NotFoundError` for videos that do not show the same, or not at the same time,
    `UsageError` for pictures that cannot be joined, `IntegrityError`, `NoSpaceError`,
    `OverBudgetError`, `OutdatedError` where one has got other bytes meanwhile; what was finished
    until then stays.
    """
    if one.info.id == other.info.id:
        raise UsageError(f"{one.name!r} cannot be joined with itself")
    require_joinable(one.original.media, other.original.media)
    if one.info.digest == other.info.digest:
        pair = _require_overlap(tools, one, other)
        return JoinReport(pair.left.name, pair.right.name, pair.overlap, (), 0, {}, 0, 0)
    for video in (one, other):
        if not dry_run and not video.original.verified:
            video.verify()  # joining goes by frame numbers, which must not change afterwards
    pair = _require_overlap(tools, one, other)
    left, right = pair.left, pair.right
    pairs = pair_frames(_sequences(left, right, seconds_each), _times(left), _times(right))
    with parts.catalog.reading() as seen:
        there = _ExistingJoins(seen, left.info, right.info)
    wanted: list[FramePairs] = []
    before, elsewhere = 0, Counter[str]()
    for frames in pairs:
        if there.with_each_other(frames):
            before += len(frames)
        # A camera between two others is joined with one: a second joint would store its
        # pictures twice.
        elif (name := there.with_another(frames)) is not None:
            elsewhere[name] += len(frames)
        else:
            wanted.append(frames)
    work = JoinWorker(
        parts,
        tools.pool,
        (left.info, context_of(left).table),
        (right.info, context_of(right).table),
        settings,
    )
    known = pair.overlap.matrices[0] if pair.overlap.fixed else None
    runs = _run_all(
        work,
        [partial(work.join, frames, known, publish=not dry_run) for frames in wanted],
        [len(frames) for frames in wanted],
        _concurrent_runs(left, right, wanted, worker_count(jobs)),
        on_progress,
    )
    done = [run.frames for run in runs if run.is_joined]
    return JoinReport(
        left.name,
        right.name,
        pair.overlap,
        tuple(runs),
        before,
        elsewhere,
        len(left) - sum(map(len, pairs)),
        _bytes_of(context_of(left).table, [frames.left for frames in done])
        + _bytes_of(context_of(right).table, [frames.right for frames in done]),
    )


def split_joined(
    parts: StoreContext, video: LogicalVideo, other: LogicalVideo | None = None
) -> list[JoinedPair]:
    """Take joined pictures of a video away, with those of the videos that it is joined with, or
    only of that `other` one; gives what went.

    Reads then decode the originals.  Raises `NotFoundError` where nothing is joined.
    """
    with parts.catalog.writing() as change:
        names = {video.name} if other is None else {video.name, other.name}
        found = [one for one in _pairs(change, video) if names <= {one.left, one.right}]
        if not found:
            with_whom = "anything" if other is None else repr(other.name)
            raise NotFoundError(
                f"{video.name!r} is not joined with {with_whom}",
                hint="`vfsd overlap ls` lists what is joined",
            )
        gone = [segment for one in found for both in one.segments for segment in both]
        change.segments.delete(segment.id for segment in gone)
    reclaim_or_log(parts, keys={segment.object_key for segment in gone})
    return found


def joined_pairs(parts: StoreContext, video: LogicalVideo | None = None) -> list[JoinedPair]:
    """What is joined, of a video or of all, by name."""
    with parts.catalog.reading() as seen:
        return _pairs(seen, video)


def _pairs(seen: Transaction, video: LogicalVideo | None) -> list[JoinedPair]:
    if video is None:
        found = seen.segments.all_joined()
    else:
        mine = seen.segments.joined(video.original.id)
        found = seen.segments.sharing([segment.id for segment in mine])
    by_pack: dict[str, dict[bool, Segment]] = {}
    for segment in found:
        by_pack.setdefault(segment.object_key, {})[segment.profile == JOINED_LEFT] = segment
    names = _VideoNames(seen)
    together: dict[tuple[str, str], list[tuple[Segment, Segment]]] = {}
    for both in by_pack.values():
        if len(both) == 2:  # the other half of one may just be going
            pair = both[True], both[False]
            together.setdefault((names.of(pair[0]), names.of(pair[1])), []).append(pair)
    return [
        JoinedPair(*key, tuple(sorted(segments, key=lambda both: both[0].first_frame)))
        for key, segments in sorted(together.items())
    ]


def _require_overlap(tools: ReadContext, one: Video, other: Video) -> VideoPair:
    """Raises `NotFoundError`."""
    pair = overlap_of(tools, one, other)
    if pair is None:
        raise NotFoundError(
            f"{one.name!r} and {other.name!r} do not show the same place",
            hint="see `vfsd overlap find` for videos that do",
        )
    if pair.overlap.verdict is Verdict.REFUSED:
        raise NotFoundError(
            f"{one.name!r} and {other.name!r} cannot be joined: {pair.overlap.why}",
            hint="`vfsd overlap show` draws them into one picture",
        )
    return pair


def _sequences(left: Video, right: Video, seconds_each: float) -> list[range]:
    """The runs of frames of the left video, no longer than that both fit into memory."""
    most = int(_MEMORY_BYTES / _bytes_per_frame(left, right))
    times = np.append(_times(left), float(left.duration))
    return cut_sequences(
        left.keyframes,
        np.maximum.accumulate(times),
        seconds_each,
        maximum_frames=min(_MOST_FRAMES, max(8, most)),
    )


def _bytes_per_frame(left: Video, right: Video) -> float:
    """Of one picture of both, and its pieces."""
    pixels = left.width * left.height + right.width * right.height
    return _BYTES_PER_PIXEL * pixels


def _concurrent_runs(left: Video, right: Video, runs: Sequence[FramePairs], jobs: int) -> int:
    """How many runs may be in memory."""
    longest = max(map(len, runs), default=1)
    return max(1, min(jobs, int(_MEMORY_BYTES / (_bytes_per_frame(left, right) * longest))))


def _times(video: Video) -> Seconds:
    """When each frame appears, in seconds from the first."""
    ticks = context_of(video).table.pts() - video.original.first_pts
    return np.maximum.accumulate(ticks.astype(np.float64) * float(video.original.time_base))


class _ExistingJoins:
    """What is joined of two videos already, with each other or with others."""

    def __init__(self, seen: Transaction, left: LogicalVideo, right: LogicalVideo) -> None:
        self._left, self._right = (
            seen.segments.joined(video.original.id) for video in (left, right)
        )
        mine = {segment.id for segment in (*self._left, *self._right)}
        names = _VideoNames(seen)
        self._others = {
            segment.object_key: names.of(segment)
            for segment in seen.segments.sharing(mine)
            if segment.id not in mine
        }

    def with_each_other(self, frames: FramePairs) -> bool:
        """Whether some of them are."""
        left, right = self._packs(frames)
        return not left.isdisjoint(right)

    def with_another(self, frames: FramePairs) -> str | None:
        """The name of a video that some of either are joined with; None: none is."""
        left, right = self._packs(frames)
        found = sorted(self._others.get(key, "another video") for key in left ^ right)
        return found[0] if found else None

    def _packs(self, frames: FramePairs) -> tuple[set[str], set[str]]:
        return (
            {one.object_key for one in self._left if overlaps(one.frames, frames.left)},
            {one.object_key for one in self._right if overlaps(one.frames, frames.right)},
        )


class _VideoNames:
    """What the videos are called that segments belong to."""

    def __init__(self, seen: Transaction) -> None:
        self._seen = seen
        self._known: dict[int, str] = {}  # by the number of the original

    def of(self, segment: Segment) -> str:
        number = segment.original_id
        if number not in self._known:
            video_id = self._seen.videos.physical(number).video_id
            self._known[number] = self._seen.videos.get(video_id).name
        return self._known[number]


def _bytes_of(table: FrameTable, runs: Iterable[range]) -> int:
    """Of the packets that show these frames."""
    return sum(int(table.extents(frames)[1].sum()) for frames in runs)


def _is_pointer(left: Segment, right: Segment) -> bool:
    """Whether pictures of both are made of the same bytes and of no others."""
    one, other = left.cells[0], right.cells[0]
    return (one.position, one.size) == (other.position, other.size)


def _run_all(
    work: JoinWorker,
    tasks: Sequence[Callable[[], JoinedRun]],
    lengths: Sequence[int],
    jobs: int,
    on_progress: OnProgress | None,
) -> list[JoinedRun]:
    """Do all, several at a time.

    Progress is told in the caller's thread, where Ctrl-C is heeded and errors have a place to go.
    """
    runs: dict[int, JoinedRun] = {}
    done, total = 0, sum(lengths)
    with ThreadPoolExecutor(max(1, min(jobs, len(tasks))), thread_name_prefix="join") as executor:
        going: dict[Future[JoinedRun], int] = {
            executor.submit(task): number for number, task in enumerate(tasks)
        }
        try:
            while going:
                finished, _ = wait(going, _HEARTBEAT_SECONDS, FIRST_COMPLETED)
                for future in finished:
                    number = going.pop(future)
                    try:
                        runs[number] = future.result()
                    except OutdatedError:
                        work.require_same_bytes()  # else somebody else has joined them
                    done += lengths[number]
                if on_progress is not None:
                    on_progress(done, total)
        finally:
            work.stop.set()
            executor.shutdown(cancel_futures=True)
    return [runs[number] for number in sorted(runs)]
