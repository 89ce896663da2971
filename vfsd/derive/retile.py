"""Makes tiles: encodes planned segments and publishes each one separately.

An interrupted run continues when it is started again, since segments that exist are left alone.
"""

from __future__ import annotations

import io
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from vfsd.codecs.cells.pack import write_pack
from vfsd.codecs.cells.tile_codecs import TileCodec, require_encoder, tile_codec
from vfsd.codecs.frames.frame_transforms import require_smaller
from vfsd.core.frame_table import FrameTable
from vfsd.core.hostinfo import worker_count
from vfsd.core.model import Cell, LogicalVideo, Segment
from vfsd.core.psnr import FINEST_PSNR, required_psnr
from vfsd.derive.tile_encoder import (
    BetweenPictures,
    OnPublish,
    SegmentMaker,
    require_same_bytes,
    with_pack_offsets,
)
from vfsd.derive.tile_settings import PlannedSegment, TileSettings
from vfsd.errors import UsageError, VfsdError
from vfsd.read.decoder_pool import DecoderPool
from vfsd.storage.context import StoreContext
from vfsd.storage.enforce_budget import allowed, require_room_for
from vfsd.tiling import TileLayout
from vfsd.tiling.cost import LOSSLESS

_CHUNK_FRAMES = 300
"""A worker takes about as many frames at a time, since it decodes them in one go."""
_SIZE_SAFETY_FACTOR = 1.25
"""Times as much as the least that one lossless segment, in the middle, tells of all of them."""
_HEARTBEAT_SECONDS = 0.2
"""How long a report of progress may be waited for."""

OnProgress = Callable[[int, int], None]
"""Called with (frames done, frames in all), several times a second; may raise to give up."""


@dataclass(frozen=True, slots=True)
class SegmentSample:
    """What one segment is like once it is encoded."""

    frames: range
    layout: TileLayout
    tiles: tuple[int, ...]  #: those that are stored
    profile: str  #: name of the tile codec
    bytes: int  #: of the pack
    seconds: float  #: that one worker took, decoding the original included
    psnr: float  #: dB, of the worst cell
    cells: tuple[Cell, ...]

    @property
    def qualities(self) -> tuple[int, ...]:
        """The rate factor of each cell."""
        return tuple(cell.quality for cell in self.cells)


def sample_segment(
    parts: StoreContext,
    pool: DecoderPool,
    video: LogicalVideo,
    table: FrameTable,
    planned: PlannedSegment,
    settings: TileSettings,
) -> SegmentSample:
    """Encode a segment in memory, to see what it comes to; nothing is stored.

    It is encoded until the rate factors are known, and what is timed is doing so once more: in a
    row of segments, one starts with what the one before has found.  Raises as `retile` does.
    """
    codec = _codec_for(video, [planned], settings)
    work = SegmentMaker(parts, pool, video, table, codec, settings)
    if settings.quality is None:
        work.encode(planned)
    began = time.perf_counter()
    streams, cells = work.encode(planned)
    buffer = io.BytesIO()
    placed = with_pack_offsets(cells, write_pack(buffer, streams))
    return SegmentSample(
        planned.frames,
        planned.layout,
        planned.stored,
        codec.name,
        len(buffer.getvalue()),
        time.perf_counter() - began,
        min(cell.psnr for cell in placed),
        placed,
    )


def missing_segments(
    parts: StoreContext,
    video: LogicalVideo,
    planned: Sequence[PlannedSegment],
    settings: TileSettings,
) -> list[PlannedSegment]:
    """What `retile` would make: those that no active segment is yet.

    Raises as `retile` does before it starts.
    """
    return _compare_with_stored(parts, video, planned, settings)[0]


def _require_room(
    parts: StoreContext,
    video: LogicalVideo,
    work: SegmentMaker,
    wanted: Sequence[PlannedSegment],
    there: Mapping[int, int],
) -> None:
    """Raises `OverBudgetError` where lossless pictures are sure not to fit.

    One segment tells about what all of them take; `there` are bytes of segments that stay.  Others
    are made as fine as need be, and of what was pinned nothing is charged: those may fit.
    """
    with parts.catalog.reading() as seen:
        limits = [allowed(seen, scope) for scope in (video.id, None)]
        if all(limit is None for limit in limits) or seen.holdings.pins(video.id):
            return
    middle = wanted[len(wanted) // 2]
    buffer = io.BytesIO()
    write_pack(buffer, work.encode(middle)[0])
    frames = sum(len(plan.frames) for plan in wanted)
    expected = buffer.getbuffer().nbytes * frames / len(middle.frames) + sum(there.values())
    with parts.catalog.reading() as seen:
        what = f"all that is to be made of {video.name}"
        require_room_for(seen, video.id, expected, expected / _SIZE_SAFETY_FACTOR, what)


def _compare_with_stored(
    parts: StoreContext,
    video: LogicalVideo,
    planned: Sequence[PlannedSegment],
    settings: TileSettings,
) -> tuple[list[PlannedSegment], dict[int, int]]:
    """What is missing, and the bytes, by number, of the segments that are what was planned."""
    codec = _codec_for(video, planned, settings)
    original = video.original
    with parts.catalog.reading() as seen:
        require_same_bytes(video, seen)
        there = seen.segments.active(original.id) + seen.segments.renditions(original.id)
        parameters = {
            number: dict(seen.videos.physical(number).parameters)
            for number in {segment.physical_id for segment in there}
        }
    mine = settings.parameters(codec)
    have: dict[tuple[range, TileLayout], list[Segment]] = {}
    for segment in there:
        if parameters[segment.physical_id] == mine:
            have.setdefault((segment.frames, segment.layout), []).append(segment)
    lacking, kept = list[PlannedSegment](), dict[int, int]()
    for plan in planned:
        alike = have.get((plan.frames, plan.layout), [])
        if {tile for segment in alike for tile in segment.tiles}.issuperset(plan.stored):
            kept.update((segment.id, segment.size) for segment in alike)
        else:
            lacking.append(plan)
    return lacking, kept


def retile(
    parts: StoreContext,
    pool: DecoderPool,
    video: LogicalVideo,
    table: FrameTable,
    planned: Sequence[PlannedSegment],
    settings: TileSettings,
    *,
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
) -> list[Segment]:
    """Encode what is planned and not there yet, and let reads use it; gives what was made.

    `jobs` segments are worked on at a time (default: one for each core).  Tiles are always made
    from the original.  Raises `UsageError` for pictures or layouts that the codec does not take,
    `ExtraMissingError`, `NoSpaceError`, `OverBudgetError` for a segment that is larger than what
    derived data may have (of lossless ones all together, before any is stored), `IntegrityError`,
    `NotFoundError` when the video is gone, or the bytes that were to be read, `OutdatedError` when
    it has got others meanwhile; what was finished until then stays.
    """
    jobs = worker_count(jobs)
    codec = _codec_for(video, planned, settings)
    work = SegmentMaker(parts, pool, video, table, codec, settings)
    wanted, there = _compare_with_stored(parts, video, planned, settings)
    work.spare(there)
    if codec.name == LOSSLESS and len(wanted) > 1:  # of one it is known as soon
        _require_room(parts, video, work, wanted, there)
    total = sum(len(plan.frames) for plan in wanted)
    reports: queue.SimpleQueue[int | Future[list[Segment]]] = queue.SimpleQueue()

    chunks = list(_chunks(wanted, table, min(_CHUNK_FRAMES, -(-total // (2 * jobs)))))
    workers = min(jobs, len(chunks)) or 1
    made: list[Segment] = []
    with ThreadPoolExecutor(workers, thread_name_prefix="retile") as executor:
        running = [executor.submit(work.encode_chunk, chunk, reports.put) for chunk in chunks]
        try:
            _report_progress(running, reports, total, on_progress)
            for future in running:
                if future.done():
                    made += future.result()
        finally:
            work.stop.set()
            executor.shutdown(cancel_futures=True)
    work.stop.clear()
    if made:
        with suppress(VfsdError, OSError):  # the tiles are there, and that is what was asked for
            work.note_cost(made[0].frames)
    return sorted(made, key=lambda segment: segment.first_frame)


class Retiler:
    """Makes one segment at a time, for those who think again after each.  Not thread-safe.

    `between` is called before each picture that is worked on: it may wait, or raise, which gives
    up the segment and leaves nothing of it.  Tiles are always made from the original.
    """

    def __init__(
        self,
        parts: StoreContext,
        pool: DecoderPool,
        video: LogicalVideo,
        table: FrameTable,
        settings: TileSettings,
        *,
        between: BetweenPictures | None = None,
    ) -> None:
        self._video = video
        self._settings = settings
        codec = tile_codec(settings.codec, video.original.media)
        self._work = SegmentMaker(parts, pool, video, table, codec, settings, between)

    def note_cost(self, frames: range) -> None:
        """Measure, on a few of `frames`, what decoding the original takes, and keep that.

        Does nothing where that cannot be kept.
        """
        with suppress(VfsdError, OSError):
            self._work.note_cost(frames)

    def make(
        self,
        plan: PlannedSegment,
        *,
        beside: OnPublish | None = None,
        worth: float | None = None,
    ) -> Segment:
        """Encode a segment and let reads use it, whatever there was before.

        `beside` is called in the transaction that publishes it.  With `worth`, CPU seconds, only
        what is worth less is evicted to make room.  Raises as `retile` does; the store is then as
        it was.
        """
        _codec_for(self._video, [plan], self._settings)
        return self._work.make(plan, beside, worth)


def _report_progress(
    running: Sequence[Future[list[Segment]]],
    reports: queue.SimpleQueue[int | Future[list[Segment]]],
    total: int,
    on_progress: OnProgress | None,
) -> None:
    """Return when all is done or something has failed.

    Progress is told in the caller's thread, where Ctrl-C is heeded and errors have a place to go.
    """
    for future in running:
        future.add_done_callback(reports.put)
    done, left = 0, len(running)
    while left:
        try:
            report = reports.get(timeout=_HEARTBEAT_SECONDS)
        except queue.Empty:
            report = 0
        if isinstance(report, int):
            done += report
        else:
            left -= 1
            if report.exception() is not None:
                return
        if on_progress is not None:
            on_progress(done, total)


def _codec_for(
    video: LogicalVideo, planned: Sequence[PlannedSegment], settings: TileSettings
) -> TileCodec:
    """The tile codec that is asked for.

    Raises `UsageError` for layouts that it does not take, `ExtraMissingError` where there is
    nothing to encode with.
    """
    media = video.original.media
    codec = tile_codec(settings.codec, media)
    require_encoder(codec)
    if settings.quality is None and not codec.is_lossless:
        require_reachable(video, settings.psnr)
    if not codec.takes_parts and any(plan.tiles is not None for plan in planned):
        raise UsageError(
            f"{codec.name!r} makes all tiles of a layout, or none",
            hint="store whole pictures, or take another codec",
        )
    for layout in {plan.layout for plan in planned}:
        codec.rules.check(layout)
        if (layout.width, layout.height) == (media.width, media.height):
            continue
        if not layout.is_untiled:
            raise UsageError(
                f"the layout {layout} is for pictures of {layout.width}x{layout.height}, "
                f"not of {media.width}x{media.height}"
            )
        require_smaller(layout.width, layout.height, media)
    return codec


def require_reachable(video: LogicalVideo, psnr: float) -> None:
    """Raises `UsageError` where nothing that is made of a video's original is so good."""
    if psnr > FINEST_PSNR:
        raise UsageError(
            f"tiles are held to {FINEST_PSNR:g} dB at most, not {psnr:g}",
            hint="the tile codec lossless keeps every pixel",
        )
    left = required_psnr(psnr, video.original.error)
    if left is None or left > FINEST_PSNR:
        raise UsageError(
            f"the original of {video.name} has been replaced, and has {video.original.psnr:.1f} dB "
            f"against the first one: tiles of it cannot have {psnr:g}",
            hint="ask for a lower PSNR, or for the codec lossless",
        )


def _chunks(
    planned: Sequence[PlannedSegment], table: FrameTable, frames: int
) -> Iterator[list[PlannedSegment]]:
    """Runs of segments without gaps, of about so many frames; at key pictures where they come."""
    chunk: list[PlannedSegment] = []
    for plan in sorted(planned, key=lambda plan: plan.frames.start):
        length = chunk[-1].frames.stop - chunk[0].frames.start if chunk else 0
        is_key = table.frame(plan.frames.start).is_key
        has_gap = bool(chunk) and plan.frames.start != chunk[-1].frames.stop
        if has_gap or length >= (frames if is_key else 2 * frames):
            if chunk:
                yield chunk
            chunk = []
        chunk.append(plan)
    if chunk:
        yield chunk
