"""Making tiles: segments of a video encoded in a layout, each published by itself.

A segment appears whole or not at all, so a run that was interrupted is gone on with by running it
again: what is there already is left as it is.
"""

from __future__ import annotations

import io
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import islice

from vfsd.catalog import Transaction
from vfsd.codecs import VideoFrame
from vfsd.codecs.pack import CellStream, PackedCell, write_pack
from vfsd.codecs.segmentcells import EncodedCell, encode_cells
from vfsd.codecs.tiles import TileCodec, require_encoder, tile_codec
from vfsd.decoders import DecoderPool
from vfsd.errors import IntegrityError, NotFoundError, UsageError, VfsdError
from vfsd.frametable import FrameTable
from vfsd.host import cores, host_name
from vfsd.ingest import software
from vfsd.model import Access, Cell, LogicalVideo, PhysicalVideo, Role, Segment
from vfsd.parts import Parts
from vfsd.reclaim import discard_unpublished, reclaim
from vfsd.tileplan import Costs, original_work, plausible
from vfsd.tiling import Rect, TileLayout

_TRIES = 6
"""How often a cell is encoded until it is good enough."""
_MARGIN = 1.5
"""dB above what is wanted from which on the next cell is encoded coarser."""
_CHUNK_FRAMES = 300
"""A worker takes about as many frames at a time, since it decodes them in one go."""
_PROBED_FRAMES = 30
"""Of the original, to see what decoding it takes."""
_SHORT_SECONDS = 0.2
"""What takes longer is measured once."""

_HEARTBEAT_SECONDS = 0.2
"""How long a report of progress may be waited for."""

OnProgress = Callable[[int, int], None]
"""Called with (frames done, frames in all), several times a second; may raise to give up."""


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """Frames that are to have a layout; of the stored picture."""

    frames: range
    layout: TileLayout


@dataclass(frozen=True, slots=True)
class TileSettings:
    """How cells are encoded."""

    codec: str = "fast"  #: name of the tile codec
    psnr: float = 40.0  #: dB of luma that every cell has at least, if `quality` is None
    quality: int | None = None  #: one rate factor for all cells instead

    def parameters(self, codec: TileCodec) -> dict[str, object]:
        """What is noted of it, and has to be equal for tiles to be the same."""
        aim = {"psnr": self.psnr} if self.quality is None else {"quality": self.quality}
        return {"profile": codec.name, **aim}


@dataclass(frozen=True, slots=True)
class Sample:
    """What one segment is like once it is encoded."""

    frames: range
    layout: TileLayout
    profile: str  #: name of the tile codec
    bytes: int  #: of the pack
    seconds: float  #: that one worker took, decoding the original included
    psnr: float  #: dB, of the worst cell
    cells: tuple[Cell, ...]

    @property
    def qualities(self) -> tuple[int, ...]:
        """The rate factor of each cell."""
        return tuple(cell.quality for cell in self.cells)


def sample(
    parts: Parts,
    pool: DecoderPool,
    video: LogicalVideo,
    table: FrameTable,
    planned: PlannedSegment,
    settings: TileSettings,
) -> Sample:
    """Encode a segment in memory, to see what it comes to; nothing is stored.

    It is encoded until the rate factors are known, and what is timed is doing so once more: in a
    row of segments, one starts with what the one before has found.  Raises as `retile` does.
    """
    codec = _codec_for(video, [planned], settings)
    work = _Work(parts, pool, video, table, codec, settings)
    if settings.quality is None:
        work.encode(planned)
    began = time.perf_counter()
    streams, cells = work.encode(planned)
    buffer = io.BytesIO()
    placed = _placed(cells, write_pack(buffer, streams))
    return Sample(
        planned.frames,
        planned.layout,
        codec.name,
        len(buffer.getvalue()),
        time.perf_counter() - began,
        min(cell.psnr for cell in placed),
        placed,
    )


def missing(
    parts: Parts, video: LogicalVideo, planned: Sequence[PlannedSegment], settings: TileSettings
) -> list[PlannedSegment]:
    """What `retile` would make: those that no active segment is yet.

    Raises as `retile` does before it starts.
    """
    codec = _codec_for(video, planned, settings)
    original = video.original
    with parts.catalog.reading() as seen:
        _require_same_bytes(video, seen)
        there = seen.segments.active(original.id)
        parameters = {
            number: dict(seen.videos.physical(number).parameters)
            for number in {segment.physical_id for segment in there}
        }
    mine = settings.parameters(codec)
    have = {
        (segment.frames, segment.layout)
        for segment in there
        if parameters[segment.physical_id] == mine
    }
    return [plan for plan in planned if (plan.frames, plan.layout) not in have]


def retile(
    parts: Parts,
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
    `ExtraMissingError`, `NoSpaceError`, `IntegrityError`; what was finished until then stays.
    """
    codec = _codec_for(video, planned, settings)
    work = _Work(parts, pool, video, table, codec, settings)
    wanted = missing(parts, video, planned, settings)
    total = sum(len(plan.frames) for plan in wanted)
    reports: queue.SimpleQueue[int | Future[list[Segment]]] = queue.SimpleQueue()

    jobs = jobs or cores()
    chunks = list(_chunks(wanted, table, min(_CHUNK_FRAMES, -(-total // (2 * jobs)))))
    workers = min(jobs, len(chunks)) or 1
    made: list[Segment] = []
    with ThreadPoolExecutor(workers, thread_name_prefix="retile") as executor:
        running = [executor.submit(work.encode_chunk, chunk, reports.put) for chunk in chunks]
        try:
            _watch(running, reports, total, on_progress)
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
    reclaim(parts)
    return sorted(made, key=lambda segment: segment.first_frame)


def _watch(
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
    for layout in {plan.layout for plan in planned}:
        codec.rules.check(layout)
        if (layout.width, layout.height) != (media.width, media.height):
            raise UsageError(
                f"the layout {layout} is for pictures of {layout.width}x{layout.height}, "
                f"not of {media.width}x{media.height}"
            )
    return codec


def _require_same_bytes(video: LogicalVideo, seen: Transaction) -> None:
    try:
        seen.videos.physical(video.original.id)
    except NotFoundError:
        raise IntegrityError(
            f"{video.name} has got other bytes meanwhile", hint="try again"
        ) from None


def _placed(cells: Sequence[Cell], packed: Sequence[PackedCell]) -> tuple[Cell, ...]:
    return tuple(
        replace(cell, position=where.position, size=where.size)
        for cell, where in zip(cells, packed, strict=True)
    )


class _StoppedError(Exception):
    """Another worker has failed, or the user has had enough."""


class _Work:
    """One run of `retile`.  Thread-safe."""

    def __init__(
        self,
        parts: Parts,
        pool: DecoderPool,
        video: LogicalVideo,
        table: FrameTable,
        codec: TileCodec,
        settings: TileSettings,
    ) -> None:
        self.stop = threading.Event()
        self._parts = parts
        self._pool = pool
        self._video = video
        self._table = table
        self._codec = codec
        self._settings = settings
        self._start: dict[Rect, int] = {}  # the rate factor that a tile had lately
        self._physical: int | None = None
        self._publishing = threading.Lock()

    def encode(self, plan: PlannedSegment) -> tuple[list[CellStream], list[Cell]]:
        """A segment by itself; not published."""
        return self._encode(plan, self._pictures(plan.frames))

    def note_cost(self, frames: range) -> None:
        """Keep how much more, or less, decoding the original takes than the rule says.

        Measured on a few of `frames`, when nothing else is being done: on a core that shares its
        resources with a busy one everything takes longer.
        """
        original = self._video.original
        chosen = frames[:_PROBED_FRAMES]
        work = original_work(original, self._table, chosen)
        measured = {cost.name: cost.decode for cost in self._parts.catalog.costs(host_name())}
        expected = Costs(measured).of_original(replace(original, cost_factor=None)).seconds(work)
        spent = self._seconds_of(chosen)
        if spent < _SHORT_SECONDS:
            spent = min(spent, self._seconds_of(chosen))
        with self._parts.catalog.writing() as change:
            change.videos.set_cost_factor(original.id, plausible(spent / expected))

    def _seconds_of(self, frames: range) -> float:
        """CPU time of decoding them, by one thread."""
        start = time.thread_time()
        for _ in self._pictures(frames):
            pass
        return time.thread_time() - start

    def encode_chunk(
        self, chunk: Sequence[PlannedSegment], on_frames: Callable[[int], None]
    ) -> list[Segment]:
        made = []
        frames = range(chunk[0].frames.start, chunk[-1].frames.stop)
        with closing(self._pictures(frames)) as pictures:
            for plan in chunk:
                segment = islice(pictures, len(plan.frames))
                streams, cells = self._encode(plan, _counted(segment, on_frames))
                made.append(self._publish(plan, streams, cells))
        return made

    def _pictures(self, frames: range) -> Generator[VideoFrame, None, None]:
        with self._pool.decoder(self._video.original, self._table) as decoder:
            for _, picture in decoder.stream(frames.start, frames.stop):
                if self.stop.is_set():
                    raise _StoppedError
                yield picture

    def _encode(
        self, plan: PlannedSegment, pictures: Iterator[VideoFrame]
    ) -> tuple[list[CellStream], list[Cell]]:
        tiles = plan.layout.tiles
        quality = [self._first_quality(rect) for rect in tiles]
        results: list[EncodedCell | None] = [None] * len(tiles)
        media = self._video.original.media
        poor = list(range(len(tiles)))
        for attempt in range(_TRIES):
            if attempt:
                pictures = self._pictures(plan.frames)
            wanted = {tiles[tile]: quality[tile] for tile in poor}
            done = encode_cells(self._codec, media, wanted, pictures)
            for tile, result in zip(poor, done, strict=True):
                results[tile] = result
            poor = [
                tile
                for tile, (_, psnr) in zip(poor, done, strict=True)
                if self._is_poor(psnr) and quality[tile] > self._codec.finest
            ]
            if not poor or attempt == _TRIES - 1:
                break
            for tile in poor:
                quality[tile] = self._finer(quality[tile], results[tile])
        streams, cells = [], []
        for tile, (rect, encoded) in enumerate(zip(tiles, results, strict=True)):
            assert encoded is not None
            stream, psnr = encoded
            self._note_quality(rect, quality[tile], psnr)
            streams.append(stream)
            cells.append(Cell(tile, rect, 0, 0, quality[tile], psnr))
        return streams, cells

    # -- quality

    def _first_quality(self, rect: Rect) -> int:
        if self._settings.quality is not None:
            return self._settings.quality
        return self._start.get(rect, self._codec.quality)

    def _is_poor(self, psnr: float) -> bool:
        return self._settings.quality is None and psnr < self._settings.psnr

    def _finer(self, quality: int, result: EncodedCell | None) -> int:
        assert result is not None
        steps = (self._settings.psnr - result[1]) / self._codec.decibels
        return max(self._codec.finest, quality - max(1, round(steps)))

    def _note_quality(self, rect: Rect, quality: int, psnr: float) -> None:
        """What this tile needed, the same tile of the next segment will, too."""
        spare = psnr - self._settings.psnr
        coarser = int(spare / self._codec.decibels) if spare > _MARGIN else 0
        self._start[rect] = quality + min(2, coarser)

    # -- publishing

    def _publish(
        self, plan: PlannedSegment, streams: Sequence[CellStream], cells: Sequence[Cell]
    ) -> Segment:
        """Bytes first, then one transaction."""
        buffer = io.BytesIO()
        packed = write_pack(buffer, streams)
        data = buffer.getvalue()
        what = f"tiles of {self._video.name}"
        key, size = self._parts.objects.put_bytes(data, what)
        now = time.time_ns()
        placed = _placed(cells, packed)
        original = self._video.original
        try:
            with self._publishing, self._parts.catalog.writing() as change:
                if not self._parts.objects.exists(key):  # somebody collected the same bytes
                    self._parts.objects.put_bytes(data, what)
                change.objects.record(key, size, now_ns=now)
                _require_same_bytes(self._video, change)
                physical = self._physical
                if physical is None:
                    made = change.videos.add_physical(original.video_id, self._described(now), ())
                    physical = made.id
                segment = change.segments.publish(
                    Segment(
                        id=0,
                        physical_id=physical,
                        original_id=original.id,
                        first_frame=plan.frames.start,
                        end_frame=plan.frames.stop,
                        layout=plan.layout,
                        profile=self._codec.name,
                        object_key=key,
                        size=size,
                        psnr=min(cell.psnr for cell in cells),
                        created_ns=now,
                        retired_ns=None,
                        cells=placed,
                    )
                )
            self._physical = physical
        except IntegrityError:
            discard_unpublished(self._parts, key)
            raise
        return segment

    def _described(self, now_ns: int) -> PhysicalVideo:
        original = self._video.original
        return replace(
            original,
            id=0,
            role=Role.TILED,
            media=replace(
                original.media,
                container="pack",
                codec=self._codec.codec,
                pixel_format=self._codec.pixel_formats[original.media.pixel_format],
                extradata=b"",
                side_streams=(),
            ),
            access=Access.EXTENT,
            object_key=None,
            link_path=None,
            size=0,
            verified=True,
            parent_id=original.id,
            parameters=self._settings.parameters(self._codec),
            software=software(),
            created_ns=now_ns,
            notes=(),
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


def _counted(
    pictures: Iterator[VideoFrame], on_frames: Callable[[int], None]
) -> Iterator[VideoFrame]:
    for picture in pictures:
        yield picture
        on_frames(1)
