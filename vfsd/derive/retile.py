"""Makes tiles: encodes planned segments and publishes each one separately.

An interrupted run continues when it is started again, because existing segments are skipped.
"""

from __future__ import annotations

import io
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from vfsd.codecs.cells.cell_encoders import TileCodec, require_encoder, tile_codec
from vfsd.codecs.cells.pack import write_pack
from vfsd.codecs.frames.transforms import require_smaller
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import FINEST_PSNR, Cell, LogicalVideo, Segment, required_psnr
from vfsd.core.process_control import worker_count
from vfsd.derive.tile_encoder import (
    BetweenPictures,
    OnPublish,
    PlannedSegment,
    SegmentMaker,
    TileSettings,
    covering,
    require_same_bytes,
    stored_like,
    with_pack_offsets,
)
from vfsd.errors import UsageError, VfsdError
from vfsd.read.decoder_pool import DecoderPool
from vfsd.storage.context import StoreContext
from vfsd.storage.enforce_budget import allowed, require_room_for
from vfsd.tiling import TileLayout
from vfsd.tiling.cost import LOSSLESS, WEB

# Approximate number of frames that a worker decodes in one go.
_CHUNK_FRAMES = 300
# The same in a bucket: a minute at 25 frames a second, some 10 MB.
_OBJECT_FRAMES = 1500
# Safety factor when the size of all lossless segments is extrapolated from the middle one.
_SIZE_SAFETY_FACTOR = 1.25
# Maximum time between reports of progress.
_HEARTBEAT_SECONDS = 0.2

OnProgress = Callable[[int, int], None]
"""Called with (frames done, all frames), several times a second; may raise to stop."""


@dataclass(frozen=True, slots=True)
class SegmentSample:
    """Size, time and quality of one encoded segment."""

    frames: range
    layout: TileLayout
    tiles: tuple[int, ...]  #: stored ones
    profile: str  #: name of the tile codec
    bytes: int  #: of the pack
    seconds: float  #: for one worker, including decoding the original
    psnr: float  #: dB of the worst cell
    cells: tuple[Cell, ...]
    gop: int | None  #: as in `PlannedSegment`

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
    """Encode a segment in memory and measure it; nothing is stored.

    Raises as `retile` does.
    """
    codec = _codec_for(video, [planned], settings)
    work = SegmentMaker(parts, pool, video, table, codec, settings)
    # Encode once to find the rate factors, and once more for the timing: in a series of segments,
    # each starts with the factors of the previous one.
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
        planned.gop,
    )


def missing_segments(
    parts: StoreContext,
    video: LogicalVideo,
    planned: Sequence[PlannedSegment],
    settings: TileSettings,
) -> list[PlannedSegment]:
    """Return the planned segments that are not active yet.

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
    """Raises `OverBudgetError` if tiles of a fixed quality certainly exceed the budget.

    `there` are the bytes of segments that stay.
    """
    # Other tiles are not checked, because their quality can adapt; pinned data is not charged.
    with parts.catalog.reading() as seen:
        limits = [allowed(seen, scope) for scope in (video.id, None)]
        if all(limit is None for limit in limits) or seen.derived_usage.pins(video.id):
            return
    # One segment is encoded to extrapolate the total.
    middle = wanted[len(wanted) // 2]
    buffer = io.BytesIO()
    write_pack(buffer, work.encode(middle)[0])
    frames = sum(len(plan.frames) for plan in wanted)
    expected = buffer.getbuffer().nbytes * frames / len(middle.frames) + sum(there.values())
    with parts.catalog.reading() as seen:
        what = f"the new pictures of {video.name}"
        require_room_for(seen, video.id, expected, expected / _SIZE_SAFETY_FACTOR, what)


def _compare_with_stored(
    parts: StoreContext,
    video: LogicalVideo,
    planned: Sequence[PlannedSegment],
    settings: TileSettings,
) -> tuple[list[PlannedSegment], dict[int, int]]:
    """Return the missing segments, and the bytes of the existing ones by id."""
    codec = _codec_for(video, planned, settings)
    original = video.original
    with parts.catalog.reading() as seen:
        require_same_bytes(video, seen)
        there = seen.segments.active(original.id) + seen.segments.renditions(original.id)
        have = stored_like(seen, there, settings.parameters(codec))
    lacking, kept = list[PlannedSegment](), dict[int, int]()
    for plan in planned:
        alike = covering(have, plan)
        if alike:
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
    between: BetweenPictures | None = None,
) -> list[Segment]:
    """Encode and publish the planned segments that do not exist yet, and return them.

    Segments that another process publishes in the meantime are left out, too.

    `jobs` segments are encoded at a time (default: one per core), always from the original.
    `between` is as for `Retiler`, called in the threads that encode.

    Raises `UsageError` for unsupported pictures or layouts, `ExtraMissingError`, `NoSpaceError`,
    `IntegrityError`, `OverBudgetError` for a segment that exceeds the budget (for lossless ones and
    those for browsers all together, before any is stored), `NotFoundError` if the video or its
    bytes are gone, `OutdatedError` if its bytes were replaced.  Finished segments stay.
    """
    jobs = worker_count(jobs)
    codec = _codec_for(video, planned, settings)
    work = SegmentMaker(parts, pool, video, table, codec, settings, between)
    wanted, there = _compare_with_stored(parts, video, planned, settings)
    work.protect(there)
    # a single segment is checked when it is published
    if codec.name in (LOSSLESS, WEB) and len(wanted) > 1:
        _require_room(parts, video, work, wanted, there)
    total = sum(len(plan.frames) for plan in wanted)
    reports: queue.SimpleQueue[int | Future[list[Segment]]] = queue.SimpleQueue()

    # At least two chunks for each worker, so that all stay busy until the end.
    size = min(_CHUNK_FRAMES, -(-total // (2 * jobs)))
    if not parts.objects.is_local:  # an object and a transaction for each
        size = min(_OBJECT_FRAMES, -(-total // jobs))
    chunks = list(_chunks(wanted, table, size))
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
            # After a failure or Ctrl-C the other workers end at their next picture.
            work.stop.set()
            executor.shutdown(cancel_futures=True)
    work.stop.clear()
    if made:
        with suppress(VfsdError, OSError):  # a missing measurement is not an error
            work.note_cost(made[0].frames)
    return sorted(made, key=lambda segment: segment.first_frame)


class Retiler:
    """Makes one segment at a time, for callers that decide again after each.  Not thread-safe.

    `between` is called before each picture that is processed.  It may wait, or raise to discard the
    segment.  Tiles are always made from the original.
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
        """Measure the cost of decoding the original on a few of `frames`, and store it.

        Errors of the store are ignored.
        """
        with suppress(VfsdError, OSError):
            self._work.note_cost(frames)

    def make(
        self,
        plan: PlannedSegment,
        *,
        on_publish: OnPublish | None = None,
        worth: float | None = None,
    ) -> Segment:
        """Encode and publish a segment, regardless of existing ones.

        `on_publish` is called in the transaction that publishes it.  With `worth` in CPU seconds,
        only segments worth less are evicted.  Raises as `retile` does; on an error the store is
        unchanged.
        """
        _codec_for(self._video, [plan], self._settings)
        return self._work.make(plan, on_publish, worth)


def _report_progress(
    running: Sequence[Future[list[Segment]]],
    reports: queue.SimpleQueue[int | Future[list[Segment]]],
    total: int,
    on_progress: OnProgress | None,
) -> None:
    """Return when all futures are done or one has failed."""
    # In the caller's thread, so that Ctrl-C and errors of the callback are handled there.
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
    """Return the requested tile codec.

    Raises `UsageError` for unsupported layouts, `ExtraMissingError` without an encoder.
    """
    media = video.original.media
    codec = tile_codec(settings.codec, media)
    require_encoder(codec)
    if settings.quality is None and not codec.is_lossless:
        require_reachable(video, settings.psnr)
    if not codec.takes_parts and any(plan.tiles is not None for plan in planned):
        raise UsageError(
            f"{codec.name!r} can only store all tiles of a layout",
            hint="store whole pictures, or use another codec",
        )
    if not codec.takes_gop and any(plan.gop is not None for plan in planned):
        raise UsageError(
            f"{codec.name!r} has one key picture in each segment",
            hint="leave out the GOP length, or use another codec",
        )
    for layout in {plan.layout for plan in planned}:
        codec.rules.check(layout)
        if (layout.width, layout.height) == (media.width, media.height):
            continue
        if not layout.is_untiled:
            raise UsageError(
                f"the layout {layout} is for pictures of {layout.width}x{layout.height}, and "
                f"the video has {media.width}x{media.height}"
            )
        require_smaller(layout.width, layout.height, media)
    return codec


def require_reachable(video: LogicalVideo, psnr: float) -> None:
    """Raises `UsageError` if tiles of a video's original cannot reach `psnr`."""
    if psnr > FINEST_PSNR:
        raise UsageError(
            f"psnr of tiles must be {FINEST_PSNR:g} dB at most, got {psnr:g}",
            hint="the tile codec lossless keeps every sample",
        )
    left = required_psnr(psnr, video.original.error)
    if left is None or left > FINEST_PSNR:
        raise UsageError(
            f"the original of {video.name} was replaced and has {video.original.psnr:.1f} dB "
            f"against the first one: its tiles cannot have {psnr:g} dB",
            hint="use a lower PSNR, or the codec lossless",
        )


def _chunks(
    planned: Sequence[PlannedSegment], table: FrameTable, frames: int
) -> Iterator[list[PlannedSegment]]:
    """Yield runs of consecutive segments with about `frames` frames, starting at key pictures if
    possible.
    """
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
