"""Cost of tiling: time against one plain encode, bytes and quality against untiled frames.

Time: `VideoTiles.retile` of a whole clip in each layout, compared with the ffmpeg program that
decodes the original and encodes it once with the same preset and rate factor, both on all cores.
Bytes and quality: compared with an uncut re-encode by the same encoder (a layout of one tile).  The
quality is measured on frames read from the tiles against the original's frames, not taken from the
store's records.  ``a region alone`` stores the one tile that holds a region, as `vfsd retile --roi`
does; its quality is that of this tile.

With a target PSNR instead of a rate factor, cells below it are encoded again; the number of these
pixels is printed at the end.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import vfsd.codecs.cells.cell_encoders
from benchmarks.common import (
    Timing,
    Usage,
    arguments,
    existing_file,
    finish,
    footage,
    paired_ratio,
    table,
    used,
)
from benchmarks.spatial import around, some_region
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.cells.cell_encoders import CellEncoder, TileCodec, tile_codec
from vfsd.core.frames import to_display_rect
from vfsd.core.model import MediaInfo
from vfsd.core.view_request import View
from vfsd.derive.derived_data import drop_tiles
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.errors import UsageError
from vfsd.read.read_executor import PlanExecutor
from vfsd.read.read_plan import AvailableTiles, plan_frames
from vfsd.read.tile_planner import DecodeCosts
from vfsd.tiling import Rect, TileLayout, parse_layout
from vfsd.tiling.cost import DEFAULT_COSTS, DecodeCost

CLIPS = (
    "real/futsal_1080p.mp4",
    "real/nflx_OldTownCross_1080p.mp4",
    "real/birds_duck_1080x1920_hevc.mp4",
    "real/derived_mosaic_4k_hevc.mp4",
)
GRIDS = ("uniform:2x2", "uniform:3x3", "uniform:4x4")
UNTILED, ALONE = "untiled", "a region alone"

SPEED_BOUND = 0.9
BYTES_BOUND = 1.15
PSNR_BOUND = 1.0
COMPARED = 24
"""Frames of a clip whose pixels are compared."""

DEAR = DecodeCosts({name: DecodeCost(1, 1, 0, 0) for name in DEFAULT_COSTS if name != "fast"})
"""Costs that make originals so expensive that reads always use tiles."""


def main() -> None:
    parser = arguments(__doc__, runs=3)
    parser.add_argument(
        "videos", nargs="*", type=existing_file, help="default: clips of the footage"
    )
    parser.add_argument("--quality", type=int, default=23, help="rate factor")
    parser.add_argument("--psnr", type=float, default=40.0, help="of the second part")
    options = parser.parse_args()
    found = [footage() / clip for clip in CLIPS if (footage() / clip).exists()]
    videos = options.videos or found or sorted(footage().glob("*.mp4"))[:2]
    figures: dict[str, Any] = {}
    passed = True
    for path in videos:
        figures[path.name] = measure(path, options.quality, options.psnr, options.runs)
        passed &= show(path.name, options.psnr, figures[path.name])
    finish(options, "tiling_cost", figures, passed=passed)


def measure(path: Path, quality: int, psnr: float, runs: int) -> dict[str, Any]:
    settings = TileSettings(quality=quality)
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "store") as store:
        video = store.ingest(path, "video")
        video.verify()
        cuts = layouts(video)
        shown = {name: held(video, plans[0]) for name, plans in cuts.items()}
        usages: dict[str, list[Usage]] = {name: [] for name in (*cuts, "ffmpeg")}
        results: dict[str, dict[str, Any]] = {name: {} for name in cuts}
        rng = np.random.default_rng(0)
        for number in range(runs):
            for name in rng.permutation(list(usages)).tolist():
                if name == "ffmpeg":
                    if shutil.which("ffmpeg"):
                        target = Path(folder) / "plain.h264"
                        usages[name].append(used(partial(plain, path, quality, target))[1])
                    continue
                segments, usage = used(partial(video.tiles.retile, cuts[name], settings=settings))
                usages[name].append(usage)
                results[name]["bytes"] = sum(segment.size for segment in segments)
                if not number:
                    results[name]["psnr"] = compared(store, video, shown[name])
                if not number and name == UNTILED:
                    like = {region: compared(store, video, region) for region in shown.values()}
                drop_tiles(store.parts, video.info, range(len(video)))
        wall = {k: Timing(tuple(u.wall for u in many)) for k, many in usages.items() if many}
        cpu = {k: Timing(tuple(u.cpu for u in many)) for k, many in usages.items() if many}
        for name, result in results.items():
            result["frames_a_second"] = len(video) / wall[name].median
            result["cpu"] = cpu[name].median
            if "ffmpeg" in wall:
                result["speed"] = paired_ratio(wall["ffmpeg"], wall[name])
                result["cpu_speed"] = paired_ratio(cpu["ffmpeg"], cpu[name])
            result["bytes_ratio"] = result["bytes"] / results[UNTILED]["bytes"]
            result["lost"] = like[shown[name]] - result["psnr"]
        return {
            "frames": len(video),
            "layouts": results,
            "aimed": {name: aimed(store, video, cuts[name], psnr) for name in cuts},
        }


def layouts(video: Video) -> dict[str, list[PlannedSegment]]:
    """The layouts that the frame is large enough for."""
    media = video.original.media
    width, height = media.width, media.height
    rules = tile_codec(TileSettings().codec, media).rules
    found = {UNTILED: TileLayout.untiled(width, height)}
    for grid in GRIDS:
        with suppress(UsageError):
            found[grid] = parse_layout(grid, width, height, rules)
    plans = {name: everywhere(video, layout) for name, layout in found.items()}
    with suppress(UsageError):
        region = some_region(width, height, 0.1)
        cut = around(region, width, height)
        rules.check(cut)
        plans["around a region"] = everywhere(video, cut)
        plans[ALONE] = everywhere(video, cut, tuple(cut.covering(region)))
    return plans


def everywhere(
    video: Video, layout: TileLayout, tiles: tuple[int, ...] | None = None
) -> list[PlannedSegment]:
    return [PlannedSegment(frames, layout, tiles) for frames in video.tiles.sequences()]


def held(video: Video, plan: PlannedSegment) -> Rect:
    """The area of the displayed frame that the tiles cover."""
    area = Rect.around(plan.layout.tile(tile) for tile in plan.stored)
    return to_display_rect(area, video.original.media)


def plain(path: Path, quality: int, target: Path) -> None:
    """One encode of all frames by the ffmpeg program."""
    subprocess.run(
        [
            *("ffmpeg", "-v", "error", "-y", "-i", str(path), "-map", "0:v:0"),
            *("-fps_mode", "passthrough", "-c:v", "libx264", "-preset", "veryfast"),
            *("-tune", "fastdecode", "-bf", "0", "-crf", str(quality), str(target)),
        ],
        check=True,
    )


def compared(store: Store, video: Video, region: Rect) -> float:
    """PSNR of luma, as gray, of a region composed from tiles; every frame must be present."""
    chosen = np.unique(np.linspace(0, len(video) - 1, COMPARED).round().astype(np.int64))
    squares = []
    for index in chosen.tolist():
        tiles = AvailableTiles(store.catalog.segments(video.info), DEAR, 0.0)
        plan = plan_frames(
            np.array([index]),
            View(region=region),
            video.original,
            context_of(video).table,
            pixel_format="gray",
            tiles=tiles,
        )
        if not plan.tiled:
            raise ValueError(f"frame {index} is in no tile")
        tiled = PlanExecutor(context_of(video).table, store.tools).execute(
            plan, pixel_format="gray"
        )
        exact = video.frames([index], region=region, format="gray", psnr=math.inf).data
        squares.append(float(np.square(tiled.astype(np.int32) - exact).mean()))
    return 10 * math.log10(255**2 / max(float(np.mean(squares)), 1e-9))


class _Counting(CellEncoder):
    """Counts the encoded pixels."""

    pixels = 0

    def __init__(self, codec: TileCodec, media: MediaInfo, rect: Rect, quality: int) -> None:
        super().__init__(codec, media, rect, quality)
        self._pixels = rect.area

    def put(self, picture: Any) -> None:
        super().put(picture)
        _Counting.pixels += self._pixels


def aimed(store: Store, video: Video, cut: list[PlannedSegment], psnr: float) -> dict[str, float]:
    """The cost of cells with a target PSNR of `psnr`, and their actual PSNR."""
    media = video.original.media
    _Counting.pixels = 0
    with mock.patch.object(vfsd.codecs.cells.cell_encoders, "CellEncoder", _Counting):
        segments, usage = used(partial(video.tiles.retile, cut, settings=TileSettings(psnr=psnr)))
    drop_tiles(store.parts, video.info, range(len(video)))
    return {
        "frames_a_second": len(video) / usage.wall,
        "cpu": usage.cpu,
        "encoded": _Counting.pixels / (media.width * media.height * len(video)),
        "bytes": sum(segment.size for segment in segments),
        "least_psnr": min(segment.psnr for segment in segments),
    }


def show(name: str, psnr: float, found: dict[str, Any]) -> bool:
    """Print the results; return whether every bound is met."""
    rows = [
        (
            layout,
            f"{values['frames_a_second']:.1f}",
            *(f"{values[key]:.2f}" if key in values else "" for key in ("speed", "cpu_speed")),
            f"{values['bytes_ratio'] - 1:+.1%}",
            f"{values['psnr']:.2f}",
            f"{-values['lost']:+.2f}",
        )
        for layout, values in found["layouts"].items()
    ]
    print(f"\n### {name}, {found['frames']} frames\n")
    speed = ("frames/s", "speed / ffmpeg's", "by CPU")
    print(table(("layout", *speed, "bytes added", "PSNR dB", "dB gained"), rows))
    print(f"\nWith at least {psnr:g} dB in every cell:\n")
    rows = [
        (
            layout,
            f"{values['frames_a_second']:.1f}",
            f"{values['cpu']:.1f}",
            f"{values['encoded']:.2f}",
            f"{values['least_psnr']:.2f}",
        )
        for layout, values in found["aimed"].items()
    ]
    print(table(("layout", "frames/s", "CPU s", "times encoded", "least PSNR dB"), rows))
    missed = []
    for layout, values in found["layouts"].items():
        if values.get("speed", 1) < SPEED_BOUND:
            missed.append(f"{layout}: speed >= {SPEED_BOUND}")
        if values["bytes_ratio"] > BYTES_BOUND:
            missed.append(f"{layout}: bytes added <= {BYTES_BOUND - 1:.0%}")
        if values["lost"] > PSNR_BOUND:
            missed.append(f"{layout}: within {PSNR_BOUND:g} dB")
    if any(values["least_psnr"] < psnr for values in found["aimed"].values()):
        missed.append(f"every cell has {psnr:g} dB")
    print("\nmissed: " + "; ".join(missed) if missed else "\nall met", flush=True)
    return not missed


if __name__ == "__main__":
    main()
