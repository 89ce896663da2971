"""Retrieval of labelled objects: crops of one label from tiles, against the untiled video.

The experiment of TASM's figures 7, 9 and 11, on filmed and generated videos.  For each video and
label all crops are read from the original, from an untiled encoding of our own (1x1), and from
layouts: fine and coarse around that label, fine around all labels and around another one, and
uniform grids.  Every read goes through `Video.scan`, index lookup, planning and conversion to RGB
included; the improvement is 1 - tiled / original, of CPU time.  All columns but two always take the
tiles.  ``planned`` is the worst result of these layouts if the planner decides, and ``whole
frames`` is the same in wall time for whole frames.  Crops are compared with those of the original
in the same run.

Finally, TASM's rule that tiles pay off if at most 0.8 of the pixels (alpha) must be decoded is
compared with the measurements of each layout.
"""

from __future__ import annotations

import csv
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish, footage, table
from sample_videos import FOLDER, GroundTruth
from sample_videos.encoding import Encoding
from sample_videos.scene import Scene
from sample_videos.writing import write
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.codecs.cells.cell_encoders import TILE_CODECS
from vfsd.core.detections import DetectionColumns
from vfsd.core.model import MeasuredCost
from vfsd.core.process_control import host_name
from vfsd.derive.catalog_world import PARTITION_ALPHA, box_corners
from vfsd.derive.derived_data import drop_tiles
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.tiling import (
    TileLayout,
    coarse_layout,
    decoded_frames,
    decoded_pixels,
    fine_layout,
    uniform_layout,
)
from vfsd.tiling.cost import DEFAULT_COSTS, DecodeCost

MEDIAN_BOUND, BEST_BOUND, WORST_BOUND = 0.60, 0.97, -0.05
PSNR_BOUND = 40.0

FILMED = (
    ("birds_duck_1080x1920_hevc.mp4", "birds_duck_1080x1920_hevc.boxes.csv"),
    ("flies_a_1024x1024.mp4", "flies_a_1024x1024.boxes.csv"),
    ("futsal_1080p.mp4", "futsal_1080p.motion.csv"),
    ("sam2_dog_720p.mp4", "sam2_dog_720p.motion.csv"),
)
GENERATED = {
    "sparse 1080p": Scene(1920, 1080, density=0.02, classes=("car", "person"), seed=1),
    "dense 1080p": Scene(1920, 1080, density=0.3, classes=("car", "person", "dog"), seed=2),
    "sparse 4K": Scene(3840, 2160, density=0.01, classes=("car", "person"), seed=3),
    "tiny 1080p": Scene(1920, 1080, density=0.002, classes=("dog",), seed=4),
}
SAMPLE = "traffic.mp4"
SIDES = ("x1", "y1", "x2", "y2")


@dataclass(frozen=True)
class Case:
    """One video and one label."""

    video: Video
    label: str
    share: float  #: share of the frame that the label's boxes cover, over frames that have any


def main() -> None:
    parser = arguments(__doc__, runs=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each video")
    parser.add_argument("--grids", type=int, nargs="*", default=[4], help="uniform grids: N x N")
    parser.add_argument("--sot", type=float, nargs="*", default=[1.0], help="seconds of a SOT")
    parser.add_argument("--small", action="store_true", help="one small video, to try it out")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "store") as store:
        for name, make in videos(Path(folder), options.seconds, small=options.small).items():
            video = make(store, name)
            for label in labels_of(video, options.seconds):
                for sot in options.sot:
                    row = measure(store, case_of(video, label), options, sot)
                    rows.append(row)
                    print(f"  {row['video']}, {label}: {row['best']:.1%}", flush=True)
            store.remove(video.name)
    report(rows, options)


# --------------------------------------------------------------------------------------- videos


def videos(
    folder: Path, seconds: float, *, small: bool
) -> dict[str, Callable[[Store, str], Video]]:
    if small:
        return {SAMPLE: add_sample}
    made: dict[str, Callable[[Store, str], Video]] = {}
    root = footage()
    for clip, boxes in FILMED:
        if (root / "gt" / boxes).exists():
            made[clip] = lambda store, _, clip=clip, boxes=boxes: add_filmed(  # type: ignore[misc]
                store, root / "real" / clip, root / "gt" / boxes
            )
    for name, scene in GENERATED.items():
        made[name] = lambda store, name, scene=scene: add_generated(  # type: ignore[misc]
            store, folder, name, scene, seconds
        )
    return made


def add_sample(store: Store, _: str) -> Video:
    video = store.ingest(FOLDER / SAMPLE)
    truth = GroundTruth.load(FOLDER / SAMPLE)
    add_boxes(
        video,
        [
            (frame, box.label, (box.x1, box.y1, box.x2, box.y2))
            for frame, boxes in enumerate(truth.boxes)
            for box in boxes
        ],
    )
    return video


def add_filmed(store: Store, clip: Path, boxes: Path) -> Video:
    video = store.ingest(clip)
    with open(boxes, newline="", encoding="utf-8") as file:
        rows = [
            (
                int(row["frame"]),
                row["label"],
                tuple(float(row[k]) for k in SIDES),
            )
            for row in csv.DictReader(file)
        ]
    add_boxes(video, [row for row in rows if row[0] < len(video)])
    return video


def add_generated(store: Store, folder: Path, name: str, scene: Scene, seconds: float) -> Video:
    scene = replace(scene, frames=max(1, round(seconds * scene.rate)))
    path = folder / f"{name.replace(' ', '-')}.mp4"
    truth = write(scene, Encoding("h264", gop=round(scene.rate)), path)
    video = store.ingest(path, path.name)
    path.unlink()
    add_boxes(
        video,
        [
            (frame, box.label, (box.x1, box.y1, box.x2, box.y2))
            for frame, boxes in enumerate(truth.boxes)
            for box in boxes
        ],
    )
    return video


def add_boxes(video: Video, rows: list[Any]) -> None:
    columns = DetectionColumns.of(
        [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    )
    video.labels.add(columns, "boxes", examined=range(len(video)))


def labels_of(video: Video, seconds: float) -> list[str]:
    """At most two labels that occur in the part that is read."""
    found = [
        (len(video.labels.query(one.label, span=(0, seconds))), one.label)
        for one in video.labels.summary()
    ]
    return [label for count, label in sorted(found, reverse=True)[:2] if count]


def case_of(video: Video, label: str) -> Case:
    columns = video.labels.query(label).columns().clipped(video.width, video.height)
    sides = columns.boxes[:, 2:] - columns.boxes[:, :2]
    frames = len(np.unique(columns.frames))
    return Case(video, label, float(sides.prod(axis=1).sum()) / frames / video.width / video.height)


# ------------------------------------------------------------------------------------- measuring


def measure(store: Store, case: Case, options: Any, sot: float) -> dict[str, Any]:
    video, label, span = case.video, case.label, (0, options.seconds)
    media = video.original.media
    rules = TILE_CODECS["fast"].rules
    others = [one.label for one in video.labels.summary() if one.label != label]
    sequences = video.tiles.sequences(span, sot)

    def everywhere(layout: TileLayout) -> list[PlannedSegment]:
        return [PlannedSegment(frames, layout) for frames in sequences]

    def around(labels: Any, partition: Any) -> list[PlannedSegment]:
        return video.tiles.around(
            labels, partition=partition, span=span, alpha=1.0, seconds_each=sot
        )

    layouts: dict[str, Callable[[], list[PlannedSegment]]] = {
        "1x1": lambda: everywhere(TileLayout.untiled(media.width, media.height)),
        "fine": lambda: around(label, fine_layout),
        "coarse": lambda: around(label, coarse_layout),
        "all": lambda: around(None, fine_layout),
    }
    if others:
        layouts["different"] = lambda: around(others[0], fine_layout)
    for grid in options.grids:
        layouts[f"{grid}x{grid}"] = lambda grid=grid: everywhere(  # type: ignore[misc]
            uniform_layout(media.width, media.height, grid, grid, rules)
        )
    exact = [crop.data for crop in video.scan(label, span=span, psnr=math.inf).crops()]
    improvements: dict[str, float] = {}
    shares: dict[str, float] = {}
    worst_psnr, sizes = math.inf, {}
    planned_gains: dict[str, float] = {}
    whole_gains: dict[str, float] = {}
    for name, make in layouts.items():
        planned = make()
        if planned:
            video.budget.set("none")
            video.tiles.retile(planned, settings=TileSettings())
        shares[name] = decoded_share(video, label, sequences, planned)
        active = store.catalog.segments(video.info)
        sizes[name] = sum(segment.size for segment in active)
        worst_psnr = min([worst_psnr, *(segment.psnr for segment in active)])
        make_dear(store, video)
        improvements[name] = improvement(store, video, label, span, exact, options.runs)
        make_fair(store, video)
        planned_gains[name] = improvement(store, video, label, span, exact, options.runs)
        whole_gains[name] = whole_frames(store, video, span, options.runs)
        drop_tiles(store.parts, video.info, range(len(video)))
    return {
        "video": video.name,
        "label": label,
        "seconds of a SOT": sot,
        "share": case.share,
        "crops": len(exact),
        "improvement": improvements,
        "decoded share": shares,
        "planned": planned_gains,
        "whole frames": whole_gains,
        "best": max(improvements["fine"], improvements["coarse"]),
        "psnr": worst_psnr,
        "bytes of fine / 1x1": sizes["fine"] / sizes["1x1"] if sizes["fine"] else None,
    }


def decoded_share(
    video: Video, label: str, sequences: list[range], planned: list[PlannedSegment]
) -> float:
    """Pixels decoded for the label, relative to reading without tiles.

    A sequence counts as untiled if any wanted tile is not stored.
    """
    media = video.original.media
    rows = video.labels.query(label).columns().clipped(video.width, video.height).sorted_by_frame()
    boxes = box_corners(rows.boxes, media)
    untiled = TileLayout.untiled(media.width, media.height)
    plans = {one.frames: one for one in planned}
    tiled = whole = 0
    for frames in sequences:
        low, high = np.searchsorted(rows.frames, [frames.start, frames.stop])
        wanted = boxes[low:high], rows.frames[low:high], frames.start
        tiled += decoded_pixels(layout_for(plans.get(frames), wanted) or untiled, *wanted).pixels
        whole += decoded_pixels(untiled, *wanted).pixels
    return tiled / whole


def layout_for(plan: PlannedSegment | None, wanted: tuple[Any, Any, int]) -> TileLayout | None:
    """The layout of a plan that stores all wanted tiles."""
    if plan is None:
        return None
    needed = np.flatnonzero(decoded_frames(plan.layout, *wanted))
    return plan.layout if set(needed.tolist()) <= set(plan.stored) else None


def make_dear(store: Store, video: Video) -> None:
    """Make reads always use tiles, by a high cost of the original."""
    set_cost(store, video, DecodeCost(1, 1, 0, 0))


def make_fair(store: Store, video: Video) -> None:
    """Let reads decide by measured decoding costs."""
    set_cost(store, video, DEFAULT_COSTS[video.original.media.codec])


def set_cost(store: Store, video: Video, cost: DecodeCost) -> None:
    codec = video.original.media.codec
    with store.catalog.writing() as change:
        change.costs.put(MeasuredCost(host_name(), codec, cost, None, 1, 1, "benchmark", 1))


def improvement(
    store: Store, video: Video, label: str, span: tuple[float, float], exact: list[Any], runs: int
) -> float:
    """1 - tiled / original, the median over interleaved runs, in CPU time."""
    ratios = []
    for number in range(runs + 1):
        start = time.process_time()
        crops = list(video.scan(label, span=span).crops())
        tiled = time.process_time() - start
        if not number:
            check(crops, exact)
            continue
        forget(store)
        start = time.process_time()
        for _ in video.scan(label, span=span, psnr=math.inf).crops():
            pass
        ratios.append(tiled / (time.process_time() - start))
        forget(store)
    return 1 - statistics.median(ratios)


def whole_frames(store: Store, video: Video, span: tuple[float, float], runs: int) -> float:
    """1 - planned / original for reading whole frames, in wall time."""
    ratios = []
    for number in range(2 * runs):
        times = {}
        order = (None, math.inf) if number % 2 else (math.inf, None)
        for psnr in order:
            start = time.perf_counter()
            for _ in video.iterate(span=span, psnr=psnr):
                pass
            times[psnr] = time.perf_counter() - start
            forget(store)
        ratios.append(times[None] / times[math.inf])
    return 1 - statistics.median(ratios)


def forget(store: Store) -> None:
    """Drop decoded frames, so that they do not serve timed reads."""
    store.tools.pool.empty()
    store.tools.packs.empty()


def check(crops: list[Any], exact: list[Any]) -> None:
    assert len(crops) == len(exact)
    error = count = 0.0
    for crop, whole in zip(crops, exact, strict=True):
        assert crop.data.shape == whole.shape
        error += float(np.square(crop.data.astype(np.float32) - whole).sum())
        count += whole.size
    assert error == 0 or 10 * math.log10(255**2 * count / error) > 30, "wrong pixels"


# --------------------------------------------------------------------------------------- report


def report(rows: list[dict[str, Any]], options: Any) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row["improvement"]))
    print(
        table(
            ("video", "label", "share", *columns, "planned", "whole frames", "PSNR"),
            [
                (
                    row["video"],
                    row["label"],
                    f"{row['share']:.1%}",
                    *(percent(row["improvement"].get(name)) for name in columns),
                    percent(min(row["planned"].values())),
                    percent(min(row["whole frames"].values())),
                    f"{row['psnr']:.1f}",
                )
                for row in rows
            ],
        )
    )
    show_rule(rows)
    best = [row["best"] for row in rows]
    median = statistics.median(best)
    print(f"\nbest non-uniform layout: median {median:.1%}, best {max(best):.1%}")
    passed = (
        median >= MEDIAN_BOUND
        and max(best) >= BEST_BOUND
        and min(min(row["planned"].values()) for row in rows) >= WORST_BOUND
        and min(min(row["whole frames"].values()) for row in rows) >= WORST_BOUND
        and min(row["psnr"] for row in rows) >= PSNR_BOUND
    )
    finish(options, "retrieval", {"pairs": rows, "median": median}, passed=passed)


def show_rule(rows: list[dict[str, Any]]) -> None:
    """How often tiles lost time although less than alpha of the pixels were decoded."""
    points = [
        (row["decoded share"][name], gain)
        for row in rows
        for name, gain in row["improvement"].items()
    ]
    shares, gains = np.array(points).T
    slope, start = np.polyfit(shares, gains, 1)
    r2 = np.corrcoef(shares, gains)[0, 1] ** 2
    print(f"\nimprovement = {start:.2f} {slope:+.2f} x pixels decoded / untiled, R2 {r2:.2f}")
    for name, chosen in (
        ("at most", shares <= PARTITION_ALPHA),
        ("more than", shares > PARTITION_ALPHA),
    ):
        lost = int((gains[chosen] < 0).sum())
        print(
            f"{lost} of {chosen.sum()} layouts with {name} {PARTITION_ALPHA} "
            "of the pixels lost time"
        )


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


if __name__ == "__main__":
    main()
