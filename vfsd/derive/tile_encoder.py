"""Encodes one segment of tiles and publishes it.

`PlannedSegment` and `TileSettings` say what to encode and how; `CrfMemory` finds the CRF that
reaches the requested PSNR.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from vfsd.catalog import Transaction
from vfsd.catalog.segments import SegmentWorth
from vfsd.codecs import VideoFrame
from vfsd.codecs.cells.cell_encoders import EncodedCell, TileCodec, encode_cells
from vfsd.codecs.cells.pack import CellStream, PackedCell, write_pack
from vfsd.codecs.frames.planes import copy_colors
from vfsd.codecs.frames.quality import RgbConverter, SourcePicture
from vfsd.codecs.frames.transforms import PictureReformatter, PictureScaler
from vfsd.core.frame_table import FrameTable
from vfsd.core.frames import scaled_aspect
from vfsd.core.model import (
    LOSSLESS_PSNR,
    Access,
    Cell,
    LogicalVideo,
    MediaInfo,
    PhysicalVideo,
    PsnrFigures,
    Role,
    Segment,
    required_psnr,
)
from vfsd.core.process_control import host_name
from vfsd.errors import NotFoundError, OutdatedError, OverBudgetError, UsageError
from vfsd.read.decoder_pool import DecoderPool
from vfsd.read.read_plan import likeness_to_first
from vfsd.read.tile_planner import DecodeCosts, clamp_cost_factor, original_work
from vfsd.storage.context import StoreContext
from vfsd.storage.enforce_budget import make_room
from vfsd.storage.reclaim import reclaim_or_log
from vfsd.tiling import TileLayout
from vfsd.tiling.cost import DecodeWork, encode_cost
from vfsd.validation import decibels, whole_number
from vfsd.write.ingest_file import pending_bytes, software_versions

MAX_CRF_TRIES = 6
"""Maximum number of encodes of a cell."""
# With more than this many dB above the minimum, the next cell is encoded coarser, to keep half of
# it.
_PSNR_MARGIN = 1.5
# Maximum dB of one step to a coarser quality, because the content may change.
_MAX_CRF_STEP = 6.0

# Frames of the original that are decoded to measure its cost.
_PROBE_FRAMES = 30
# Shorter measurements are repeated once.
_MIN_TIMED_SECONDS = 0.2

OnPublish = Callable[[Transaction, Segment], None]
"""Called in the transaction that publishes a segment, so that both succeed or neither."""

BetweenPictures = Callable[[], None]
"""Called before each picture that is decoded or encoded; may wait, or raise to discard the
segment."""


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """Frames that are to get a layout of the stored picture, and which of its tiles are stored.

    Other tiles are read from the original.  Raises `UsageError` for tiles outside the layout, and
    for no tiles.
    """

    frames: range
    layout: TileLayout
    tiles: tuple[int, ...] | None = None  #: to be stored, ascending; None for all
    gop: int | None = None
    """Frames from one key picture of a tile to the next; None: only the first frame is one."""

    def __post_init__(self) -> None:
        if self.gop is not None:
            gop = whole_number(self.gop, "gop")
            if gop < 1:
                raise UsageError(f"gop must be at least 1, got {gop}")
            # Not None, even for a single key picture: `role` would take a rendition for tiles.
            object.__setattr__(self, "gop", min(gop, len(self.frames)))
        if self.tiles is None:
            return
        tiles = tuple(sorted(set(self.tiles)))
        if not tiles:
            raise UsageError(f"at least one tile of {self.layout} must be stored")
        if not 0 <= tiles[0] <= tiles[-1] < self.layout.count:
            raise UsageError(
                f"tile {tiles[-1]} does not exist: {self.layout} has {self.layout.count} tiles"
            )
        # Normalise all tiles to None, so that equal plans compare equal.
        object.__setattr__(self, "tiles", None if len(tiles) == self.layout.count else tiles)

    @property
    def stored(self) -> tuple[int, ...]:
        """The tiles to be stored, ascending."""
        return tuple(range(self.layout.count)) if self.tiles is None else self.tiles

    def role(self, media: MediaInfo) -> Role:
        """Return what it is for a video with pictures of `media`.

        Whole pictures are a rendition if they differ from the video in size or GOP length.
        """
        is_scaled = (self.layout.width, self.layout.height) != (media.width, media.height)
        is_rendition = is_scaled or (self.layout.is_untiled and self.gop is not None)
        return Role.RENDITION if is_rendition else Role.TILED

    def whole(self) -> PlannedSegment:
        """Return the same layout with all of its tiles."""
        return replace(self, tiles=None)


@dataclass(frozen=True, slots=True)
class TileSettings:
    """How cells are encoded.  Raises `UsageError` for an invalid PSNR or quality."""

    codec: str = "fast"  #: name of the tile codec
    psnr: float = 40.0  #: minimum luma dB of every cell, unless `quality` is set
    quality: int | None = None  #: a fixed rate factor for all cells; for `lossless`, the level

    def __post_init__(self) -> None:
        object.__setattr__(self, "psnr", decibels(self.psnr))
        if self.quality is not None:
            object.__setattr__(self, "quality", whole_number(self.quality, "quality"))

    def parameters(self, codec: TileCodec) -> dict[str, object]:
        """Return the stored parameters; tiles with equal parameters are interchangeable."""
        if codec.is_lossless:
            return {"profile": codec.name}  # the level may change later without changing pixels
        aim = {"psnr": self.psnr} if self.quality is None else {"quality": self.quality}
        return {"profile": codec.name, **aim}


class SegmentCells(NamedTuple):
    """A segment that is encoded, and not published yet."""

    plan: PlannedSegment
    streams: Sequence[CellStream]
    cells: Sequence[Cell]  #: without positions


class _Pack(NamedTuple):
    """A pack in an object."""

    at: int
    size: int
    cells: tuple[Cell, ...]  #: with positions


class AlreadyStoredError(Exception):
    """The segment to publish is stored already: another process has made the same one."""


def stored_like(
    seen: Transaction, there: Iterable[Segment], parameters: Mapping[str, object]
) -> dict[tuple[range, TileLayout, int | None], list[Segment]]:
    """Group those segments of `there` whose encodings have `parameters`, by what a plan states."""
    alike: dict[int, bool] = {}
    found: dict[tuple[range, TileLayout, int | None], list[Segment]] = {}
    for segment in there:
        number = segment.physical_id
        if number not in alike:
            alike[number] = dict(seen.videos.physical(number).parameters) == parameters
        if alike[number]:
            found.setdefault((segment.frames, segment.layout, segment.gop), []).append(segment)
    return found


def covering(
    stored: Mapping[tuple[range, TileLayout, int | None], list[Segment]], plan: PlannedSegment
) -> list[Segment]:
    """Return the segments of `stored_like` that have all tiles of a plan; empty if some lack."""
    alike = stored.get((plan.frames, plan.layout, plan.gop), [])
    tiles = {tile for segment in alike for tile in segment.tiles}
    return alike if tiles.issuperset(plan.stored) else []


class CrfMemory:
    """Finds the rate factors of cells with the same settings.  Thread-safe."""

    def __init__(self, codec: TileCodec, settings: TileSettings) -> None:
        self._codec = codec
        self._settings = settings
        self.aim = settings.psnr  #: dB that a cell needs; subclasses may raise it
        self._start: dict[Hashable, int] = {}  # last rate factor of each cell

    def first(self, cell: Hashable) -> int:
        """Return the initial rate factor of a cell, identified by its position."""
        if self._settings.quality is not None:
            return self._settings.quality
        return self._start.get(cell, self._codec.quality)

    def next(self, quality: int, psnr: float) -> int | None:
        """Return the next rate factor after `quality` gave `psnr`, or None if there is no need or
        no finer one.
        """
        if self._settings.quality is not None or psnr >= min(self.aim, LOSSLESS_PSNR):
            return None
        if quality <= self._codec.finest:
            return None
        steps = (self.aim - psnr) / self._codec.decibels
        return max(self._codec.finest, quality - max(1, round(steps)))

    def note(self, cell: Hashable, used: int, psnr: float) -> None:
        """Remember the rate factor for the same cell of the next segment."""
        spare = psnr - self.aim
        excess = min(spare - _PSNR_MARGIN / 2, _MAX_CRF_STEP) if spare > _PSNR_MARGIN else 0.0
        coarser = int(excess / self._codec.decibels)
        self._start[cell] = min(used + coarser, self._codec.coarsest)


def require_same_bytes(video: LogicalVideo, seen: Transaction) -> None:
    """Raises `OutdatedError` if the original was replaced, `NotFoundError` if the video is gone."""
    seen.videos.require(video)
    try:
        seen.videos.physical(video.original.id)
    except NotFoundError:
        raise OutdatedError(
            f"the original of {video.name} was replaced in the meantime", hint="try again"
        ) from None


def with_pack_offsets(cells: Sequence[Cell], packed: Sequence[PackedCell]) -> tuple[Cell, ...]:
    """Return cells with their positions in a pack, which has them in the same order."""
    return tuple(
        replace(cell, position=where.position, size=where.size)
        for cell, where in zip(cells, packed, strict=True)
    )


def pack_encoding(
    original: PhysicalVideo,
    role: Role,
    media: MediaInfo,
    codec: TileCodec,
    parameters: Mapping[str, Any],
    now_ns: int,
) -> PhysicalVideo:
    """Return a new encoding of an original with pictures of the form `media` in packs of `codec`.

    The catalog assigns its id.
    """
    return replace(
        original,
        id=0,
        role=role,
        media=replace(
            media,
            container="pack",
            codec=codec.codec,
            pixel_format=codec.pixel_formats[original.media.pixel_format],
            extradata=b"",
            side_streams=(),
        ),
        access=Access.EXTENT,
        object_key=None,
        link_path=None,
        size=0,
        verified=True,
        parent_id=original.id,
        parameters=parameters,
        software=software_versions(),
        created_ns=now_ns,
        notes=(),
        error=0.0,
    )


class EncodingStoppedError(Exception):
    """`SegmentMaker.stop` was set."""


class SegmentMaker:
    """Makes segments of one video with the same settings.  Thread-safe."""

    def __init__(
        self,
        parts: StoreContext,
        pool: DecoderPool,
        video: LogicalVideo,
        table: FrameTable,
        codec: TileCodec,
        settings: TileSettings,
        between: BetweenPictures | None = None,
    ) -> None:
        self.stop = threading.Event()  #: stops at the next picture
        self._between = between
        self._parts = parts
        self._pool = pool
        self._video = video
        self._error = video.original.error
        self._minimum_psnr = required_psnr(settings.psnr, self._error) or LOSSLESS_PSNR
        self._table = table
        self._codec = codec
        self._settings = settings
        self._crf_memory = CrfMemory(codec, replace(settings, psnr=self._minimum_psnr))
        self._physical: dict[tuple[int, int, Role], int] = {}  # encoding ids, by picture size
        self._protected: set[int] = set()  # ids of segments that must not evict each other
        self._publishing = threading.Lock()

    def protect(self, segment_ids: Iterable[int]) -> None:
        """Protect these segments from eviction by new ones, and the new ones from each other."""
        self._protected.update(segment_ids)

    def encode(self, plan: PlannedSegment) -> tuple[list[CellStream], list[Cell]]:
        """Encode a segment without publishing it."""
        return self._encode(plan, self._pictures(plan.frames))

    def make(
        self,
        plan: PlannedSegment,
        on_publish: OnPublish | None = None,
        worth: float | None = None,
        *,
        compare: bool = False,
    ) -> Segment:
        """Encode and publish a segment.

        `worth` is the CPU seconds that it is expected to save; only segments worth less are
        evicted.  The default, for explicit requests, is the cost of encoding it.  With `compare`,
        raises `AlreadyStoredError` if an active segment has the same tiles by then.
        """
        with closing(self._pictures(plan.frames)) as pictures:
            encoded = SegmentCells(plan, *self._encode(plan, pictures))
        return self._publish([encoded], on_publish, worth, compare=compare)[0]

    def note_cost(self, frames: range) -> None:
        """Measure the decode cost of the original on a few of `frames`, relative to the cost model.

        Call it while no other thread works.
        """
        # A core that shares resources with a busy one is slower.
        original = self._video.original
        chosen = frames[:_PROBE_FRAMES]
        work = original_work(original, self._table, chosen)
        measured = {cost.name: cost.decode for cost in self._parts.catalog.costs(host_name())}
        expected = (
            DecodeCosts(measured).of_original(replace(original, cost_factor=None)).seconds(work)
        )
        spent = self._seconds_of(chosen)
        # Short measurements are noisy: take the faster of two.
        if spent < _MIN_TIMED_SECONDS:
            spent = min(spent, self._seconds_of(chosen))
        with self._parts.catalog.writing() as change:
            change.videos.set_cost_factor(original.id, clamp_cost_factor(spent / expected))

    def _seconds_of(self, frames: range) -> float:
        """Return the CPU time of decoding `frames` in one thread."""
        start = time.thread_time()
        for _ in self._pictures(frames):
            pass
        return time.thread_time() - start

    def encode_chunk(
        self, chunk: Sequence[PlannedSegment], on_frames: Callable[[int], None]
    ) -> list[Segment]:
        """Encode and publish consecutive segments; call `on_frames` with each picture.

        In a bucket, they share an object, and a transaction.
        """
        made: list[Segment] = []
        ready: list[SegmentCells] = []
        frames = range(chunk[0].frames.start, chunk[-1].frames.stop)
        try:
            with closing(self._pictures(frames)) as pictures:
                for plan in chunk:
                    segment = islice(pictures, len(plan.frames))
                    encoded = self._encode(plan, _counted(segment, on_frames))
                    ready.append(SegmentCells(plan, *encoded))
                    if self._parts.objects.is_local:
                        one, ready = ready, []
                        made += self._published(one)
        finally:
            # After an error, too: finished segments stay.
            made += self._published(ready)
        return made

    def _published(self, ready: Sequence[SegmentCells]) -> list[Segment]:
        """Publish segments that are not stored yet, together if the budget has room for all."""
        if not ready:
            return []
        try:
            return self._publish(ready, compare=True)
        except AlreadyStoredError:
            return []
        except OverBudgetError:
            if len(ready) == 1:
                raise
        return [segment for one in ready for segment in self._published([one])]

    def _pictures(self, frames: range) -> Generator[VideoFrame, None, None]:
        with self._pool.decoder(self._video.original, self._table) as decoder:
            stream = decoder.stream(frames.start, frames.stop, before_packet=self._pause)
            for _, picture in stream:
                yield picture

    def _pause(self) -> None:
        if self.stop.is_set():
            raise EncodingStoppedError
        if self._between is not None:
            self._between()

    def _source_pictures(
        self, pictures: Iterator[VideoFrame], media: MediaInfo
    ) -> Iterator[SourcePicture]:
        """Yield pictures in the size of `media` and in the format of the codec, with the RGB result
        of reads of the original.
        """
        original = self._video.original.media
        wanted = self._codec.converted_format(original.pixel_format)
        is_scaled = (media.width, media.height) != (original.width, original.height)
        if not is_scaled and wanted is None:
            return map(SourcePicture, pictures)
        scaler = PictureScaler(media.width, media.height, interlaced=original.interlaced)
        colors = RgbConverter(original, media.width, media.height)
        reformatter = PictureReformatter(wanted or original.pixel_format)

        def stored(picture: VideoFrame) -> VideoFrame:
            scaled = scaler.scale(picture) if is_scaled else picture
            if wanted is None:
                return scaled
            made = reformatter.convert(scaled)
            copy_colors(scaled, made)
            return made

        return (SourcePicture(stored(picture), colors.convert(picture)) for picture in pictures)

    def _encode(
        self, plan: PlannedSegment, pictures: Iterator[VideoFrame]
    ) -> tuple[list[CellStream], list[Cell]]:
        media = self._media_of(plan.layout)
        sources = self._source_pictures(pictures, media)
        tiles = [plan.layout.tile(number) for number in plan.stored]
        quality = [self._crf_memory.first((rect, plan.gop)) for rect in tiles]
        results: list[EncodedCell | None] = [None] * len(tiles)
        poor = list(range(len(tiles)))
        for attempt in range(MAX_CRF_TRIES):
            # Only tiles below the minimum are encoded again, from a second pass over the original.
            if attempt:
                sources = self._source_pictures(self._pictures(plan.frames), media)
            wanted = {tiles[tile]: quality[tile] for tile in poor}
            done = encode_cells(self._codec, media, wanted, sources, self._pause, plan.gop)
            finer: dict[int, int] = {}
            for tile, result in zip(poor, done, strict=True):
                results[tile] = result
                better = self._crf_memory.next(quality[tile], result[1].luma)
                if better is not None:
                    finer[tile] = better
            if not finer or attempt == MAX_CRF_TRIES - 1:
                break
            poor = list(finer)
            for tile, better in finer.items():
                quality[tile] = better
        streams, cells = [], []
        for number, rect, used, encoded in zip(plan.stored, tiles, quality, results, strict=True):
            assert encoded is not None
            stream, likeness = encoded
            self._crf_memory.note((rect, plan.gop), used, likeness.luma)
            streams.append(stream)
            against_first = self._against_first(likeness, plan.layout)
            cells.append(Cell(number, rect, 0, 0, used, *against_first.as_tuple))
        return streams, cells

    def _against_first(self, likeness: PsnrFigures, layout: TileLayout) -> PsnrFigures:
        """Return a tile's similarity to the first original from that to the present one."""
        return likeness_to_first(likeness, self._video.original, (layout.width, layout.height))

    def _publish(
        self,
        ready: Sequence[SegmentCells],
        on_publish: OnPublish | None = None,
        worth: float | None = None,
        *,
        compare: bool = False,
    ) -> list[Segment]:
        """Store the bytes in one object, then publish in one transaction that also makes room.

        With `compare`, segments that are stored by then are left out; raises `AlreadyStoredError`
        if all are.
        """
        buffer = io.BytesIO()
        packs: list[_Pack] = []
        for one in ready:
            at = buffer.tell()
            placed = with_pack_offsets(one.cells, write_pack(buffer, one.streams))
            packs.append(_Pack(at, buffer.tell() - at, placed))
        arrival = pending_bytes(self._parts, buffer.getvalue(), f"tiles of {self._video.name}")
        with arrival, ExitStack() as stack:
            arrival.upload()
            # One at a time: a second thread must find the encoding that the first one adds.
            stack.enter_context(self._publishing)
            with arrival.recorded() as change:
                made = self._add_together(change, ready, packs, arrival.key)
                if not made:
                    require_same_bytes(self._video, change)
                    for one, pack in zip(ready, packs, strict=True):
                        if compare and self._is_stored(change, one.plan):
                            continue
                        segment = self._segment(
                            one, self._encoding(change, one.plan), pack, arrival.key
                        )
                        keep = {*self._protected, *(other.id for other in made)}
                        made.append(
                            self._add(change, one.plan, segment, on_publish, worth, keep=keep)
                        )
                if not made:
                    raise AlreadyStoredError
                released = change.segments.released
            # Visible to other threads only after the commit.
            for segment in made:
                role = self._role_of(segment)
                key = segment.layout.width, segment.layout.height, role
                self._physical[key] = segment.physical_id
                self._protected.add(segment.id)
        if released:
            reclaim_or_log(self._parts, keys=released)
        return made

    def _role_of(self, segment: Segment) -> Role:
        plan = PlannedSegment(segment.frames, segment.layout, gop=segment.gop)
        return plan.role(self._video.original.media)

    def _add_together(
        self,
        change: Transaction,
        ready: Sequence[SegmentCells],
        packs: Sequence[_Pack],
        key: str,
    ) -> list[Segment]:
        """Add consecutive segments with few statements, however many they are.

        Returns nothing if others must be compared, retired or evicted: see `_add`.
        """
        original = self._video.original
        plans = [one.plan for one in ready]
        forms = {
            (plan.role(original.media), plan.layout.width, plan.layout.height) for plan in plans
        }
        if len(plans) == 1 or len(forms) > 1:
            return []
        there = change.videos.physicals(original.video_id)
        frames = range(plans[0].frames.start, plans[-1].frames.stop)
        alike = [one.id for one in there if (one.role, one.media.width, one.media.height) in forms]
        if all(one.id != original.id for one in there) or change.segments.has_overlapping(
            original.id, frames, alike
        ):
            return []
        figures = change.derived_usage.figures(original.video_id)
        if figures.room is not None and figures.room < sum(pack.size for pack in packs):
            return []
        physical = self._encoding(change, plans[0], there)
        return change.segments.add(
            [
                self._segment(one, physical, pack, key)
                for one, pack in zip(ready, packs, strict=True)
            ],
            [
                SegmentWorth(
                    figures.read,
                    self._encode_seconds(plan, pack.size),
                    self._gain(plan, pack.cells),
                )
                for plan, pack in zip(plans, packs, strict=True)
            ],
        )

    def _segment(self, one: SegmentCells, physical_id: int, pack: _Pack, key: str) -> Segment:
        """Return a segment with its pack in an object."""
        plan = one.plan
        return Segment(
            id=0,
            physical_id=physical_id,
            original_id=self._video.original.id,
            first_frame=plan.frames.start,
            end_frame=plan.frames.stop,
            layout=plan.layout,
            profile=self._codec.name,
            object_key=key,
            size=pack.size,
            psnr=min(cell.psnr for cell in one.cells),
            created_ns=time.time_ns(),
            retired_ns=None,
            cells=pack.cells,
            gop=plan.gop,
            pack_at=pack.at,
        )

    def _add(
        self,
        change: Transaction,
        plan: PlannedSegment,
        segment: Segment,
        on_publish: OnPublish | None,
        worth: float | None,
        *,
        keep: Collection[int],
    ) -> Segment:
        """Add a segment to the catalog, and evict what exceeds the budget."""
        segment = change.segments.publish(segment)
        if on_publish is not None:
            on_publish(change, segment)
        expected = self._encode_seconds(plan, segment.size) if worth is None else worth
        change.derived_usage.record_published(
            segment.id, expected=expected, gain=self._gain(plan, segment.cells)
        )
        make_room(
            change,
            self._video.original.video_id,
            now_ns=segment.created_ns,
            made=segment.id,
            keep=keep if worth is None else (),
            worth=worth,
        )
        return segment

    # Only the transaction that publishes can tell: another process may have published the same
    # segment while this one was encoded.
    def _is_stored(self, seen: Transaction, plan: PlannedSegment) -> bool:
        there = seen.segments.active_with(self._video.original.id, plan.frames)
        found = covering(stored_like(seen, there, self._settings.parameters(self._codec)), plan)
        self._protected.update(segment.id for segment in found)
        return bool(found)

    def _gain(self, plan: PlannedSegment, cells: Sequence[Cell]) -> float:
        """Return the modelled CPU seconds saved by reading all frames of one average tile."""
        costs = DecodeCosts()
        work = original_work(self._video.original, self._table, plan.frames)
        tile = DecodeWork(
            starts=1,
            pictures=len(plan.frames),
            pixels=len(plan.frames) * sum(cell.rect.area for cell in cells) // len(cells),
            bytes=sum(cell.size for cell in cells) / len(cells),
        )
        whole = costs.of_original(self._video.original).seconds(work)
        return max(0.0, whole - costs.of_new_tiles(self._codec.name).seconds(tile))

    def _encode_seconds(self, plan: PlannedSegment, size: int) -> float:
        """Return the modelled CPU seconds for encoding a segment of `size` bytes."""
        areas = [plan.layout.tile(tile).area for tile in plan.stored]
        rule = encode_cost(self._codec.name)
        return rule.seconds(len(areas), sum(areas) * len(plan.frames), size)

    def _encoding(
        self, change: Transaction, plan: PlannedSegment, there: Sequence[PhysicalVideo] = ()
    ) -> int:
        """Return the id of the encoding for segments of that size; add it if it does not exist.

        `there` are the encodings of the video, if they are known.
        """
        original, layout = self._video.original, plan.layout
        role = plan.role(original.media)
        known = self._physical.get((layout.width, layout.height, role))
        if known is not None and not there:
            with suppress(NotFoundError):  # deleted with its last segment
                return change.videos.physical(known).id
        described = self._new_encoding(self._media_of(layout), role, time.time_ns())
        for one in there or change.videos.physicals(original.video_id):
            if _encoding_key(one) == _encoding_key(described):
                return one.id
        return change.videos.add_physical(original.video_id, described, ()).id

    def _media_of(self, layout: TileLayout) -> MediaInfo:
        media, size = self._video.original.media, (layout.width, layout.height)
        ratio = media.sample_aspect_ratio
        if ratio is not None:
            ratio = scaled_aspect(ratio, (media.width, media.height), size)
        return replace(media, width=size[0], height=size[1], sample_aspect_ratio=ratio)

    def _new_encoding(self, media: MediaInfo, role: Role, now_ns: int) -> PhysicalVideo:
        original = self._video.original
        parameters = self._settings.parameters(self._codec)
        return pack_encoding(original, role, media, self._codec, parameters, now_ns)


def _encoding_key(one: PhysicalVideo) -> tuple[object, ...]:
    """Return what segments of the same encoding have in common."""
    media = one.media
    size = media.width, media.height
    return one.role, one.parent_id, size, media.codec, dict(one.parameters), one.software


def _counted(
    pictures: Iterator[VideoFrame], on_frames: Callable[[int], None]
) -> Iterator[VideoFrame]:
    for picture in pictures:
        yield picture
        on_frames(1)
