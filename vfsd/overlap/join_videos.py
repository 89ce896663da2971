"""Joins the videos of two overlapping cameras, and splits them again.

The originals stay unchanged.  For each run of about a second, a pack is stored from which the
pictures of both can be made.  A run is published as a whole or not at all, so an interrupted join
continues when the two are joined again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

import numpy as np

from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.catalog import Transaction
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import LogicalVideo, Segment
from vfsd.core.process_control import worker_count
from vfsd.errors import NotFoundError, OutdatedError, UsageError
from vfsd.overlap.join_encoder import JoinSettings, require_joinable
from vfsd.overlap.join_worker import FramePairs, JoinedRun, JoinWorker, Seconds, pair_frames
from vfsd.overlap.overlap_pair import Overlap, Verdict
from vfsd.overlap.overlap_search import VideoPair, compare_pair
from vfsd.read.read_context import ReadContext
from vfsd.storage.reclaim import reclaim_or_log
from vfsd.tiling import cut_sequences, overlaps
from vfsd.tiling.cost import JOINED_LEFT
from vfsd.validation import boolean, value_or_default

OnProgress = Callable[[int, int], None]
"""Called with (frames done, total), several times a second; may raise to cancel."""

# Maximum time between reports of progress.
_HEARTBEAT_SECONDS = 0.2
# Approximate limit for the pictures of both videos in memory, over all runs.
_MEMORY_BYTES = 768 << 20
# One and a half times a picture: its pieces are in memory as well.
_BYTES_PER_PIXEL = 2.5
_MOST_FRAMES = 300


@dataclass(frozen=True, slots=True)
class JoinReport:
    """The result of joining two videos."""

    left: str  #: name of the video that is the left one
    right: str
    overlap: Overlap
    runs: tuple[JoinedRun, ...]  #: runs that were tried, by time
    before: int  #: frames of either that were joined with each other before
    elsewhere: Mapping[str, int]  #: frames of either that are joined with others, by name
    unpaired: int  #: frames of the left video without a partner in the right one
    original_bytes: int  #: approximate bytes of the joined runs in both files

    @property
    def is_one_file(self) -> bool:
        """Whether both have the same bytes, which are stored once: nothing is joined then."""
        return self.overlap.verdict is Verdict.SAME

    @property
    def joined(self) -> tuple[JoinedRun, ...]:
        return tuple(run for run in self.runs if run.is_joined)

    @property
    def frames(self) -> int:
        """Number of joined frames of either video."""
        return sum(len(run.frames) for run in self.joined)

    @property
    def bytes(self) -> int:
        """Bytes stored for both."""
        return sum(run.bytes for run in self.joined)

    @property
    def psnr(self) -> tuple[float, float] | None:
        """dB of the worst left and right pictures; None if nothing was joined."""
        found = [run.psnr for run in self.joined if run.psnr is not None]
        if not found:
            return None
        return min(left for left, _ in found), min(right for _, right in found)

    @property
    def rejected_psnr(self) -> tuple[float, float] | None:
        """Lowest and highest dB of the runs that were rejected for their quality, or None."""
        found = [min(run.psnr) for run in self.runs if run.why and run.psnr is not None]
        return (min(found), max(found)) if found else None

    @property
    def reasons(self) -> Counter[str]:
        """Frames of runs that were not joined, by reason."""
        counts = Counter(
            {f"already joined with {name}": frames for name, frames in self.elsewhere.items()}
        )
        for run in self.runs:
            if not run.is_joined:
                counts[run.why] += len(run.frames)
        return counts


@dataclass(frozen=True, slots=True)
class JoinedPair:
    """Two videos with common storage of some pictures."""

    left: str  #: name
    right: str
    segments: tuple[tuple[Segment, Segment], ...]  #: left and right, by time

    @property
    def frames(self) -> int:
        """Number of joined frames of either."""
        return sum(len(one.frames) for one, _ in self.segments)

    @property
    def bytes(self) -> int:
        """Bytes of all packs."""
        return sum(one.size + other.size for one, other in self.segments)

    @property
    def psnr(self) -> tuple[float, float]:
        """dB of the worst plane of the worst picture, for the left and the right video."""
        return min(one.psnr for one, _ in self.segments), min(two.psnr for _, two in self.segments)

    @property
    def copied(self) -> int:
        """Number of frames whose right pictures are copies of the left ones."""
        return sum(len(one.frames) for one, other in self.segments if _is_copy(one, other))


def join(
    store: Store,
    one: str,
    other: str,
    settings: JoinSettings | None = None,
    *,
    seconds_each: float = 1.0,
    dry_run: bool = False,
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
) -> JoinReport:
    """Store the pictures of two overlapping cameras once for both, and return a report.

    The originals stay.  Both timelines start at the same time.  Files with the same bytes are
    stored once already and are not joined.  Existing joins stay.

    Args:
        store: The store of both videos.
        one: The name of a video.
        other: The name of the other video.
        settings: How to join; None takes the defaults.
        seconds_each: The approximate length of a run.  Runs in which every picture agrees are
            joined.
        dry_run: Report what joining would do, and store nothing.
        jobs: The number of worker threads; None: all cores.
        on_progress: Called with (frames done, total).

    Raises `NotFoundError` for videos that do not show the same place at the same time, `UsageError`
    for pictures that cannot be joined, `IntegrityError`, `NoSpaceError`, `OverBudgetError`, and
    `OutdatedError` if the bytes of a video change in the meantime.  Finished runs stay.
    """
    parts, tools = store.parts, store.tools
    if not boolean(dry_run, "dry_run"):
        parts.require_writable()
    videos = store[one], store[other]
    settings = value_or_default(settings, JoinSettings)
    if videos[0].info.id == videos[1].info.id:
        raise UsageError(f"a video cannot be joined with itself: {videos[0].name!r}")
    require_joinable(videos[0].original.media, videos[1].original.media)
    if videos[0].info.digest == videos[1].info.digest:
        pair = _require_overlap(tools, *videos)
        return JoinReport(pair.left.name, pair.right.name, pair.overlap, (), 0, {}, 0, 0)
    for video in videos:
        if not dry_run and not video.original.verified:
            video.verify()  # joining relies on frame numbers, which must not change afterwards
    pair = _require_overlap(tools, *videos)
    left, right = pair.left, pair.right
    pairs = pair_frames(_sequences(left, right, seconds_each), _times(left), _times(right))
    with parts.catalog.reading() as seen:
        existing = _ExistingJoins(seen, left.info, right.info)
    wanted: list[FramePairs] = []
    before, elsewhere = 0, Counter[str]()
    for frames in pairs:
        if existing.with_each_other(frames):
            before += len(frames)
        # A camera between two others is joined with one of them: a second join would store its
        # pictures twice.
        elif (name := existing.with_another(frames)) is not None:
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


def split(store: Store, name: str, other: str | None = None) -> list[JoinedPair]:
    """Undo `join`: delete the joined pictures of a video and its partners, or only of `other`.

    Returns the pairs that were split.  Reads then decode the originals.  Raises `NotFoundError` if
    nothing is joined.
    """
    store.parts.require_writable()
    partner = None if other is None else store.catalog.video(other)
    video = store.catalog.video(name)
    with store.parts.catalog.writing() as change:
        names = {video.name} if partner is None else {video.name, partner.name}
        found = [one for one in _pairs(change, video) if names <= {one.left, one.right}]
        if not found:
            what = "anything" if partner is None else repr(partner.name)
            raise NotFoundError(
                f"{video.name!r} is not joined with {what}", hint="see `vfsd overlap ls`"
            )
        gone = [segment for one in found for both in one.segments for segment in both]
        change.segments.delete(segment.id for segment in gone)
    reclaim_or_log(store.parts, keys={segment.object_key for segment in gone})
    return found


def joined(store: Store, name: str | None = None) -> list[JoinedPair]:
    """Return the joined pairs of a video, or of all videos, by name."""
    video = None if name is None else store.catalog.video(name)
    with store.parts.catalog.reading() as seen:
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
        if len(both) == 2:  # the partner may have just been deleted
            pair = both[True], both[False]
            together.setdefault((names.of(pair[0]), names.of(pair[1])), []).append(pair)
    return [
        JoinedPair(*key, tuple(sorted(segments, key=lambda both: both[0].first_frame)))
        for key, segments in sorted(together.items())
    ]


def _require_overlap(tools: ReadContext, one: Video, other: Video) -> VideoPair:
    """Raises `NotFoundError` unless the videos can be joined."""
    pair = compare_pair(tools, one, other)
    if pair is None:
        raise NotFoundError(
            f"{one.name!r} and {other.name!r} do not show the same place",
            hint="`vfsd overlap find` lists videos that do",
        )
    if pair.overlap.verdict is Verdict.REFUSED:
        raise NotFoundError(
            f"{one.name!r} and {other.name!r} cannot be joined: {pair.overlap.why}",
            hint="`vfsd overlap show` draws both in one picture",
        )
    return pair


def _sequences(left: Video, right: Video, seconds_each: float) -> list[range]:
    """Return the runs of frames of the left video, short enough for both to fit into memory."""
    most = int(_MEMORY_BYTES / _bytes_per_frame(left, right))
    times = np.append(_times(left), float(left.duration))
    return cut_sequences(
        left.keyframes,
        np.maximum.accumulate(times),
        seconds_each,
        maximum_frames=min(_MOST_FRAMES, max(8, most)),
    )


def _bytes_per_frame(left: Video, right: Video) -> float:
    """Return the bytes of a picture of each, and of its pieces."""
    pixels = left.width * left.height + right.width * right.height
    return _BYTES_PER_PIXEL * pixels


def _concurrent_runs(left: Video, right: Video, runs: Sequence[FramePairs], jobs: int) -> int:
    """Return how many runs may be in memory at a time."""
    longest = max(map(len, runs), default=1)
    return max(1, min(jobs, int(_MEMORY_BYTES / (_bytes_per_frame(left, right) * longest))))


def _times(video: Video) -> Seconds:
    """Return the start of each frame, in seconds from the first."""
    ticks = context_of(video).table.pts() - video.original.first_pts
    return np.maximum.accumulate(ticks.astype(np.float64) * float(video.original.time_base))


class _ExistingJoins:
    """Existing joins of two videos, with each other or with others."""

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
        """Return whether some of these frames are joined with each other."""
        left, right = self._packs(frames)
        return not left.isdisjoint(right)

    def with_another(self, frames: FramePairs) -> str | None:
        """Return the name of another video that some of these frames are joined with, or None."""
        left, right = self._packs(frames)
        found = sorted(self._others.get(key, "another video") for key in left ^ right)
        return found[0] if found else None

    def _packs(self, frames: FramePairs) -> tuple[set[str], set[str]]:
        return (
            {one.object_key for one in self._left if overlaps(one.frames, frames.left)},
            {one.object_key for one in self._right if overlaps(one.frames, frames.right)},
        )


class _VideoNames:
    """Looks up the names of the videos that segments belong to."""

    def __init__(self, seen: Transaction) -> None:
        self._seen = seen
        self._known: dict[int, str] = {}  # by id of the original

    def of(self, segment: Segment) -> str:
        number = segment.original_id
        if number not in self._known:
            video_id = self._seen.videos.physical(number).video_id
            self._known[number] = self._seen.videos.get(video_id).name
        return self._known[number]


def _bytes_of(table: FrameTable, runs: Iterable[range]) -> int:
    """Return the bytes of the packets of these frames."""
    return sum(int(table.extents(frames)[1].sum()) for frames in runs)


def _is_copy(left: Segment, right: Segment) -> bool:
    """Return whether the pictures of both use the same bytes and no others."""
    one, other = left.cells[0], right.cells[0]
    return (one.position, one.size) == (other.position, other.size)


def _run_all(
    work: JoinWorker,
    tasks: Sequence[Callable[[], JoinedRun]],
    lengths: Sequence[int],
    jobs: int,
    on_progress: OnProgress | None,
) -> list[JoinedRun]:
    """Run all tasks, several at a time."""
    # Progress is reported in the caller's thread, where Ctrl-C and errors are handled.
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
                        work.require_same_bytes()  # otherwise another process has joined them
                    done += lengths[number]
                if on_progress is not None:
                    on_progress(done, total)
        finally:
            work.stop.set()
            executor.shutdown(cancel_futures=True)
    return [runs[number] for number in sorted(runs)]
