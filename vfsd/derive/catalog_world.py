"""Describes a video to tiling policies from the catalog, without decoding.

It provides SOTs (sequences of tiles), boxes and layouts around them, and predicted costs of reading
and making tiles that do not exist yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vfsd.catalog import Catalog
from vfsd.codecs.cells.cell_encoders import TILE_CODECS, TileCodec, tile_codec
from vfsd.codecs.frames.to_array import needed_margin
from vfsd.core.detections import DetectionColumns
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.label_query import parse_labels
from vfsd.core.model import Cell, LogicalVideo, MeasuredCost, MediaInfo, PhysicalVideo, Segment
from vfsd.core.process_control import host_name
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.read.read_context import VideoContext
from vfsd.read.tile_planner import (
    DecodeCosts,
    TileRun,
    choose_tiles,
    in_full_size,
    is_worth_it,
    original_work,
)
from vfsd.tiling import LayoutRules, Rect, TileLayout, decoded_frames, decoded_pixels
from vfsd.tiling.cost import (
    DEFAULT_COSTS,
    ENCODE_FAST,
    OTHER_ENCODE,
    DecodeWork,
    EncodeCost,
    gop_bytes,
)
from vfsd.tiling.policy import (
    Aim,
    BoxWorld,
    ByteDensity,
    CachedBytes,
    CostRates,
    LabelBoxes,
    SizeWorld,
    VideoProfile,
    every_tile,
    wanted_tiles,
)
from vfsd.validation import value_or_default

# Size of tiles relative to the original, for a video without tiles. For `fast` the median of 37
# filmed clips of 270x480 to 3840x2160 in 3x3 tiles of 40 dB; half of them are between 1.3 and 2.6.
# `small` and `stitchable` are in proportion for the same pictures. For `lossless` the median of
# seven clips with factors from 5 to 155.
_BYTES_OF_ORIGINAL = {"fast": 1.9, "small": 0.6, "stitchable": 1.3, "lossless": 26}

PARTITION_ALPHA = 0.8
"""A segment stays untiled if tiles would save less than a fifth of the pixels (TASM, IV-B)."""

Partition = Callable[..., TileLayout]
"""`vfsd.tiling.fine_layout` or `vfsd.tiling.coarse_layout`."""

# One second of a tile, for comparing hosts.
_TYPICAL_TILE_WORK = DecodeWork(
    starts=1, pictures=30, pixels=30 * 320 * 240, bytes=30 * 320 * 240 * 0.1
)


@dataclass(frozen=True, slots=True)
class ReadEstimate:
    """The predicted cost of a read."""

    seconds: float  #: CPU time of decoding, each part from its cheapest source
    untiled_seconds: float  #: from the original alone
    work: DecodeWork  #: on tiles
    untiled: DecodeWork  #: on the original alone

    @property
    def gain(self) -> float:
        """The saved share of the time: 0 to 1."""
        return 1 - self.seconds / self.untiled_seconds if self.untiled_seconds else 0.0


def estimate_read(
    frames: Ints,
    needed: Rect,
    physical: PhysicalVideo,
    table: FrameTable,
    planned: Sequence[PlannedSegment],
    costs: DecodeCosts,
    *,
    settings: TileSettings,
    known: Sequence[Segment] = (),
) -> ReadEstimate:
    """Estimate reading `needed` of the stored pictures of `frames`, if `planned` existed.

    `known` are existing segments: new tiles are assumed to have the same bytes per pixel.
    """
    wanted = sorted(set(frames.tolist()))
    untiled = original_work(physical, table, wanted)
    density = bytes_per_pixel(settings.codec, known, untiled.bytes / max(1, untiled.pixels))
    segments = [
        hypothetical_segment(number, plan, settings, density) for number, plan in enumerate(planned)
    ]
    runs = choose_tiles(
        frames,
        in_full_size(physical.media, needed),
        physical,
        table,
        segments,
        costs,
        good=lambda *_: True,
    )
    tiled = {frame for run in runs for frame in run.frames}
    rest = [frame for frame in wanted if frame not in tiled]
    rule = costs.of_original(physical)
    seconds = rule.seconds(original_work(physical, table, rest)) + sum(
        costs.seconds_of_tiles(run.segment, run.work, together=len(run.tiles)) for run in runs
    )
    return ReadEstimate(seconds, rule.seconds(untiled), _work_of_runs(runs), untiled)


def bytes_per_pixel(codec: str, known: Sequence[Segment], original: float) -> float:
    """Return the bytes per pixel of tiles of that codec, from `known` segments.

    Without any, the value is derived from that of the `original`.
    """
    like = [segment for segment in known if segment.profile == codec]
    if not like:
        return _BYTES_OF_ORIGINAL[codec] * original
    pixels = sum(cell.rect.area * len(segment.frames) for segment in like for cell in segment.cells)
    return sum(segment.size / _gop_factor(segment) for segment in like) / pixels


def _gop_factor(segment: Segment) -> float:
    """Return how much larger a segment is than with one GOP."""
    frames = len(segment.frames)
    return gop_bytes(frames, segment.gop_frames) / gop_bytes(frames, frames)


def hypothetical_segment(
    number: int, plan: PlannedSegment, settings: TileSettings, density: float
) -> Segment:
    """Return the segment that `plan` would become, with `density` bytes per pixel.

    `number` differs for the segments of one plan.
    """
    count = len(plan.frames)
    if plan.gop is not None:
        density *= gop_bytes(count, plan.gop) / gop_bytes(count, count)
    quality = settings.quality
    if quality is None:
        quality = TILE_CODECS[settings.codec].quality
    rects = {tile: plan.layout.tile(tile) for tile in plan.stored}
    cells = tuple(
        Cell(tile, rect, 0, round(density * rect.area * count), quality, settings.psnr)
        for tile, rect in rects.items()
    )
    return Segment(
        id=-1 - number,
        physical_id=-1,
        original_id=0,
        first_frame=plan.frames.start,
        end_frame=plan.frames.stop,
        layout=plan.layout,
        profile=settings.codec,
        object_key="",
        size=sum(cell.size for cell in cells),
        psnr=settings.psnr,
        created_ns=0,
        retired_ns=None,
        cells=cells,
        gop=plan.gop,
    )


def _work_of_runs(runs: Sequence[TileRun]) -> DecodeWork:
    total = DecodeWork()
    for run in runs:
        total += run.work
    return total


def layouts_around(
    columns: DetectionColumns,
    media: MediaInfo,
    sequences: Sequence[range],
    rules: LayoutRules,
    partition: Partition,
    *,
    padding: int = 0,
    alpha: float = PARTITION_ALPHA,
) -> list[PlannedSegment]:
    """Plan a layout around the boxes of each of `sequences` where it pays, by time.

    Only tiles with a part of a box are to be stored.  `padding` is in pixels around each box.  A
    sequence is left out if it has no boxes, or if reading them would decode more than `alpha` of
    the pixels of an untiled read.
    """
    rows = columns.clipped(media.display_width, media.display_height).sorted_by_frame()
    boxes = padded_box_corners(rows.boxes, media, padding)
    untiled = TileLayout.untiled(media.width, media.height)
    planned = []
    for frames in sequences:
        low, high = np.searchsorted(rows.frames, [frames.start, frames.stop])
        if low == high:
            continue
        mine, numbers = boxes[low:high], rows.frames[low:high]
        layout = partition(mine, media.width, media.height, rules)
        whole = decoded_pixels(untiled, mine, numbers, frames.start).pixels
        if (
            not layout.is_untiled
            and decoded_pixels(layout, mine, numbers, frames.start).pixels <= alpha * whole
        ):
            lengths = decoded_frames(layout, mine, numbers, frames.start)
            planned.append(PlannedSegment(frames, layout, tuple(np.flatnonzero(lengths).tolist())))
    return planned


def padded_box_corners(
    boxes: npt.NDArray[np.float64], media: MediaInfo, padding: int = 0
) -> npt.NDArray[np.int64]:
    """Convert boxes of the displayed frame, N x 4, to the stored picture, with `padding`."""
    # Converting a box to RGB reads a margin around it: tiles without it would be unusable.
    margin = padding + needed_margin(media, "rgb24")
    size = (media.width, media.height, media.width, media.height)
    grown = box_corners(boxes, media) + np.array((-margin, -margin, margin, margin))
    inside: npt.NDArray[np.int64] = grown.clip(0, size)
    return inside


def box_corners(boxes: npt.NDArray[np.float64], media: MediaInfo) -> npt.NDArray[np.int64]:
    """Convert boxes of the displayed frame, N x 4, to whole pixels of the stored picture.

    Partly covered pixels are included.
    """
    x1, y1 = np.floor(boxes[:, 0]), np.floor(boxes[:, 1])
    x2, y2 = np.ceil(boxes[:, 2]), np.ceil(boxes[:, 3])
    width, height = media.width, media.height
    x1, y1, x2, y2 = {
        0: (x1, y1, x2, y2),
        90: (y1, height - x2, y2, height - x1),
        180: (width - x2, height - y2, width - x1, height - y1),
        270: (width - y2, x1, width - y1, x2),
    }[media.rotation]
    if media.mirrored:
        x1, x2 = width - x2, width - x1
    return np.stack((x1, y1, x2, y2), axis=1).astype(np.int64)


class PlannerReading:
    """A SOT is read as the read planner would: from tiles if they promise enough."""

    def seconds(self, tiled: float, untiled: float) -> float:
        return tiled if is_worth_it(tiled, untiled) else untiled


class FrameTableOriginal:
    """The decode work of an original, from its frame table."""

    def __init__(self, table: FrameTable, area: int) -> None:
        """`area` is the area of a picture in pixels."""
        self._table = table
        self._area = area
        sizes = table.columns(0, table.packets).size
        self._sums = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self._runs: dict[int, tuple[int, int]] = {}  # first and last packet to decode, by frame

    @property
    def whole(self) -> DecodeWork:
        """The work of decoding all of it."""
        pictures = len(self._sums) - 1
        return DecodeWork(1, pictures, pictures * self._area, float(self._sums[-1]))

    def work(self, first: int, last: int, since: int | None) -> DecodeWork:
        start, end = self._run(first)
        end = max(end, self._run(last)[1])
        if since is not None:
            start = max(start, self._run(since - 1)[1])
        pictures = max(1, end - start)
        size = float(self._sums[start + pictures] - self._sums[start])
        return DecodeWork(1, pictures, pictures * self._area, size)

    def _run(self, frame: int) -> tuple[int, int]:
        found = self._runs.get(frame)
        if found is None:
            run = self._table.decode_run(frame)
            found = self._runs[frame] = run.first_packet, run.end_packet
        return found


def load_box_video(
    catalog: Catalog,
    video: LogicalVideo,
    original: FrameTableOriginal,
    sots: Sequence[range],
    aims: Iterable[Aim],
    codec: TileCodec,
    *,
    within: range | None = None,
) -> VideoProfile:
    """Describe a video divided into `sots`, with the boxes of those `aims` that are labels.

    A label is an expression (see `vfsd.core.label_query`), so that ``car & red`` has the boxes with
    both labels.  Boxes include the margin of the conversion.  Boxes outside `within` are not
    loaded.  Raises `UsageError` for an invalid expression.
    """
    media = video.original.media
    seen: list[dict[str, LabelBoxes]] = [{} for _ in sots]
    for label in sorted({aim for aim in aims if isinstance(aim, str)}):
        found = catalog.detections.find(video, parse_labels(label), frames=within).columns()
        _assign_boxes(seen, sots, label, found, media)
    return VideoProfile(media.width, media.height, sots, seen, codec.rules, original)


def cost_rates(
    original: PhysicalVideo,
    source: DecodeWork,
    codec: TileCodec,
    costs: DecodeCosts,
    measured: Sequence[MeasuredCost],
    segments: Sequence[Segment],
) -> CostRates:
    """Return the cost of reading a video on this host and of making tiles with `codec`.

    `source` is the work of decoding all of the original.  `costs` and `measured` describe the host.
    New tiles are assumed to be like those of `segments`.
    """
    return CostRates(
        costs.of_original(original),
        costs.of_new_tiles(codec.name),
        _encode_cost(codec.name, {one.name: one for one in measured}),
        ByteDensity(
            bytes_per_pixel(codec.name, segments, source.bytes / max(1, source.pixels)), 0.0
        ),
    )


def _encode_cost(name: str, measured: Mapping[str, MeasuredCost]) -> EncodeCost:
    one = measured.get(name)
    if name == "fast":
        # Scale by the measured decode speed of this host relative to the reference host.
        mine = 1.0 if one is None else one.decode.seconds(_TYPICAL_TILE_WORK)
        rule = 1.0 if one is None else DEFAULT_COSTS[name].seconds(_TYPICAL_TILE_WORK)
        return ENCODE_FAST.times(mine / rule)
    if one is not None and one.encode_pixel is not None:
        return EncodeCost(ENCODE_FAST.tile, one.encode_pixel, 0.0)
    return OTHER_ENCODE


def _assign_boxes(
    seen: Sequence[dict[str, LabelBoxes]],
    sots: Sequence[range],
    label: str,
    columns: DetectionColumns,
    media: MediaInfo,
) -> None:
    rows = columns.clipped(media.display_width, media.display_height).sorted_by_frame()
    corners = padded_box_corners(rows.boxes, media)
    lows = np.searchsorted(rows.frames, [frames.start for frames in sots]).tolist()
    highs = np.searchsorted(rows.frames, [frames.stop for frames in sots]).tolist()
    for mine, low, high in zip(seen, lows, highs, strict=True):
        if low < high:
            mine[label] = LabelBoxes(rows.frames[low:high], corners[low:high])


def box_world(
    video: VideoContext,
    aims: Iterable[Aim],
    *,
    settings: TileSettings | None = None,
    within: range | None = None,
) -> BoxWorld:
    """Return the costs of reading a video with and without tiles, for policies.

    Tiles are planned around `aims`: labels, expressions of labels, and regions of the stored
    picture.  Boxes outside the frames `within` are not loaded.  If the codec allows it, only tiles
    that contain an aim are made; the rest is read from the original.
    """
    settings = value_or_default(settings, TileSettings)
    tiles = video.usual_tiles(video.info)
    media = video.original.media
    codec = tile_codec(settings.codec, media)
    catalog = video.parts.catalog
    measured = catalog.costs(host_name())
    table = FrameTableOriginal(video.table, media.width * media.height)
    like = [one for one in tiles.segments if one.picture == (media.width, media.height)]
    return BoxWorld(
        load_box_video(catalog, video.info, table, video.sequences(), aims, codec, within=within),
        cost_rates(video.original, table.whole, codec, tiles.costs, measured, like),
        wanted_tiles if codec.takes_parts else every_tile,
        PlannerReading(),
    )


def size_world(
    video: VideoContext,
    settings: TileSettings | None = None,
    cached: CachedBytes | None = None,
    *,
    sots: Sequence[range] | None = None,
    gops: Sequence[int | None] = (None,),
) -> SizeWorld:
    """Return the costs of reading a video with and without renditions, for policies.

    Args:
        video: Its sizes are those of stored pictures.
        settings: The settings of new renditions.
        cached: Gives the frames that need no encoding.
        sots: The segments of renditions (default: about a second each).
        gops: The GOP lengths of renditions to consider; None: one GOP in each segment.
    """
    settings = value_or_default(settings, TileSettings)
    tiles = video.usual_tiles(video.info)
    media = video.original.media
    codec = tile_codec(settings.codec, media)
    measured = video.parts.catalog.costs(host_name())
    table = FrameTableOriginal(video.table, media.width * media.height)
    like = [one for one in tiles.segments if one.picture != (media.width, media.height)]
    sots = video.sequences() if sots is None else sots
    nothing: list[dict[str, LabelBoxes]] = [{} for _ in sots]
    return SizeWorld(
        VideoProfile(media.width, media.height, sots, nothing, codec.rules, table),
        cost_rates(video.original, table.whole, codec, tiles.costs, measured, like),
        PlannerReading(),
        cached,
        gops,
    )
