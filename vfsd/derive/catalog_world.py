"""What the catalog knows of a video, as policies ask for it: SOTs, boxes, bytes and costs.

`Video.world` puts it together.  Nothing is decoded for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from vfsd.catalog import Catalog
from vfsd.codecs.cells.tile_codecs import TileCodec
from vfsd.core.detections import DetectionColumns
from vfsd.core.frame_table import FrameTable
from vfsd.core.label_query import parse_labels
from vfsd.core.model import LogicalVideo, MeasuredCost, MediaInfo, PhysicalVideo, Segment
from vfsd.derive.layout_around import needed_corners
from vfsd.derive.what_if_cost import bytes_per_pixel
from vfsd.read.tile_planner import Costs, is_worth_it
from vfsd.tiling.cost import DEFAULT_COSTS, ENCODE_FAST, OTHER_ENCODE, EncodeCost, Work
from vfsd.tiling.policy import Aim, Density, Footage, Rates, Seen

_TYPICAL = Work(starts=1, pictures=30, pixels=30 * 320 * 240, bytes=30 * 320 * 240 * 0.1)
"""A second of a tile: by that hosts are compared."""


class AsPlanned:
    """A SOT is read as the store's planner would: from tiles where these promise enough."""

    def seconds(self, tiled: float, untiled: float) -> float:
        return tiled if is_worth_it(tiled, untiled) else untiled


class TableOriginal:
    """An original as its frame table has it."""

    def __init__(self, table: FrameTable, area: int) -> None:
        """`area` is that of a picture, in pixels."""
        self._table = table
        self._area = area
        sizes = table.columns(0, table.packets).size
        self._sums = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self._runs: dict[int, tuple[int, int]] = {}  # packets, by the frame that is to be seen

    @property
    def whole(self) -> Work:
        """Decoding all of it."""
        pictures = len(self._sums) - 1
        return Work(1, pictures, pictures * self._area, float(self._sums[-1]))

    def work(self, first: int, last: int, since: int | None) -> Work:
        start, end = self._run(first)
        end = max(end, self._run(last)[1])
        if since is not None:
            start = max(start, self._run(since - 1)[1])
        pictures = max(1, end - start)
        size = float(self._sums[start + pictures] - self._sums[start])
        return Work(1, pictures, pictures * self._area, size)

    def _run(self, frame: int) -> tuple[int, int]:
        found = self._runs.get(frame)
        if found is None:
            run = self._table.decode_run(frame)
            found = self._runs[frame] = run.first_packet, run.end_packet
        return found


def footage_of(
    catalog: Catalog,
    video: LogicalVideo,
    original: TableOriginal,
    sots: Sequence[range],
    aims: Iterable[Aim],
    codec: TileCodec,
    *,
    within: range | None = None,
) -> Footage:
    """A video in `sots`, with the boxes of those of `aims` that are labels.

    A label is written as an expression (see `vfsd.core.label_query`), so that ``car & red`` has
    the boxes that are both.  Boxes are with what converting them looks at besides.  Outside of
    `within` none are looked up.  Raises `UsageError` for what is no expression.
    """
    media = video.original.media
    seen: list[dict[str, Seen]] = [{} for _ in sots]
    for label in sorted({aim for aim in aims if isinstance(aim, str)}):
        found = catalog.detections(video, parse_labels(label), frames=within).columns()
        _sort_in(seen, sots, label, found, media)
    return Footage(media.width, media.height, sots, seen, codec.rules, original)


def rates_of(
    original: PhysicalVideo,
    source: Work,
    codec: TileCodec,
    costs: Costs,
    measured: Sequence[MeasuredCost],
    segments: Sequence[Segment],
) -> Rates:
    """What reading a video costs on this host, and making tiles with `codec`.

    `source` is what decoding all of the original takes; `costs` and `measured` are what is known of
    the host; `segments` those that there are: new tiles are taken to be like them.
    """
    return Rates(
        costs.of_original(original),
        costs.of_new_tiles(codec.name),
        _encode_cost(codec.name, costs, {one.name: one for one in measured}),
        Density(bytes_per_pixel(codec.name, segments, source.bytes / max(1, source.pixels)), 0.0),
    )


def _encode_cost(name: str, costs: Costs, measured: Mapping[str, MeasuredCost]) -> EncodeCost:
    one = measured.get(name)
    if name == "fast":
        # How much slower the host is than that of the rule, told by what was measured of it.
        mine = 1.0 if one is None else one.decode.seconds(_TYPICAL)
        rule = 1.0 if one is None else DEFAULT_COSTS[name].seconds(_TYPICAL)
        return ENCODE_FAST.times(mine / rule)
    if one is not None and one.encode_pixel is not None:
        return EncodeCost(ENCODE_FAST.tile, one.encode_pixel, 0.0)
    return OTHER_ENCODE


def _sort_in(
    seen: Sequence[dict[str, Seen]],
    sots: Sequence[range],
    label: str,
    columns: DetectionColumns,
    media: MediaInfo,
) -> None:
    rows = columns.clipped(media.display_width, media.display_height).in_order()
    corners = needed_corners(rows.boxes, media)
    lows = np.searchsorted(rows.frames, [frames.start for frames in sots]).tolist()
    highs = np.searchsorted(rows.frames, [frames.stop for frames in sots]).tolist()
    for mine, low, high in zip(seen, lows, highs, strict=True):
        if low < high:
            mine[label] = Seen(rows.frames[low:high], corners[low:high])
