"""Full scans: all frames of a video, scaled and normalised, with and without irrelevant areas.

This is TASM's second use case (its figure 14): a model processes every frame, and decoding and
scaling take most of the time.  Without tiles, each frame is decoded and scaled by vfsd, by PyAV and
by ffmpeg, and the fastest counts.  With tiles, only the tiles with motion are read, as `vfsd
detect` found it in every fifth frame (``motion``, with coarse and with fine layouts), or a manually
chosen region (``manual``): that of 30 % of the frame in which most of the motion is.  The output is
compared with the same areas of the original.
"""

from __future__ import annotations

import math
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from benchmarks.common import (
    Timing,
    arguments,
    existing_file,
    finish,
    footage,
    interleaved,
    paired_ratio,
    table,
)
from sample_videos.encoding import Encoding
from sample_videos.scene import Scene
from sample_videos.writing import write
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.codecs.cells.cell_encoders import tile_codec
from vfsd.core.frames import Crop
from vfsd.core.pixel_array import Pixels
from vfsd.derive.derived_data import drop_tiles
from vfsd.labels.detectors.motion import MotionDetector
from vfsd.tiling import Rect, TileLayout, coarse_layout, fine_layout
from vfsd.tiling.layout import layout_around

CLIPS = (
    "carpov_highway_960x540.mp4",
    "detrac_crossing_960x540.mp4",
    "nflx_BirdsInCage_1080p.mp4",
    "futsal_1080p.mp4",
)
GENERATED = {
    "sparse": Scene(1920, 1080, frames=300, density=0.02, classes=("car", "person"), seed=1),
    "dense": Scene(1920, 1080, frames=300, density=0.1, classes=("car", "person"), seed=2),
}
SIDE = 224
BATCH = 32
MANUAL_SHARE = 0.3
EVERY = 5

MOTION_BOUND = 2.2
MANUAL_BOUND = 2.5
PSNR_BOUND = 35.0

MEANS = np.tile(np.array([0.485, 0.456, 0.406], np.float32) * 255, SIDE)
SCALES = 1 / np.tile(np.array([0.229, 0.224, 0.225], np.float32) * 255, SIDE)
"""Factors for the channels of a row, for models trained on ImageNet."""


def main() -> None:
    parser = arguments(__doc__, runs=3)
    parser.add_argument(
        "videos", nargs="*", type=existing_file, help="default: clips of the footage"
    )
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in options.videos or defaults(Path(folder)):
            figures[path.name] = found = measure(path, Path(folder), options.runs)
            show(path.name, found)
    finish(options, "fullscan", figures, passed=verdict(figures))


def defaults(folder: Path) -> list[Path]:
    found = [footage() / "real" / clip for clip in CLIPS]
    for name, scene in GENERATED.items():
        found.append(folder / f"generated_{name}_1080p.mp4")
        write(scene, Encoding(preset="medium", crf=23), found[-1])
    return [path for path in found if path.exists()]


def measure(path: Path, folder: Path, runs: int) -> dict[str, Any]:
    with Store.create(folder / f"{path.stem}.store") as store:
        video = store.ingest(path)
        video.budget.set("none")
        video.verify()
        video.labels.detect(MotionDetector(every=EVERY))
        untiled: dict[str, Callable[[], object]] = {
            "vfsd": lambda: consume(vfsd_whole(video)),
            "pyav": lambda: consume(pyav_whole(path)),
        }
        if shutil.which("ffmpeg"):
            untiled["ffmpeg"] = lambda: consume(ffmpeg_whole(path))
        manual = best_region(video)
        tiled: dict[str, dict[str, Any]] = {
            "motion, coarse": {
                "layouts": video.tiles.around("motion", partition=coarse_layout, alpha=1.0)
            },
            "motion, fine": {
                "layouts": video.tiles.around("motion", partition=fine_layout, alpha=1.0)
            },
            "manual": {"layouts": manual_layouts(video, manual)},
        }
        for name, found in tiled.items():
            video.tiles.retile(found.pop("layouts"))
            scan = video.scan(roi=manual if name == "manual" else "motion")
            shown = scan.areas if name == "manual" else scan.tiles
            crops = partial(shown, size=(SIDE, SIDE))
            contestants = untiled | {"tiles": lambda crops=crops: consume(pixels_of(crops()))}
            timings = interleaved(contestants, runs)
            found |= figures_of(timings, len(video), untiled)
            found |= checked(video, crops())
            drop_tiles(store.parts, video.info, range(len(video)))
        return tiled


def figures_of(timings: dict[str, Timing], frames: int, untiled: Iterable[str]) -> dict[str, Any]:
    best = min(untiled, key=lambda name: timings[name].median)
    return {
        "frames_a_second": {name: frames / timing.median for name, timing in timings.items()},
        "best": best,
        "gain": paired_ratio(timings[best], timings["tiles"]),
    }


def best_region(video: Video) -> Rect:
    """The part of the frame that contains most of the motion."""
    side = math.sqrt(MANUAL_SHARE)
    width, height = (int(side * length) // 2 * 2 for length in (video.width, video.height))
    boxes = video.labels.query("motion").columns().boxes
    middles = (boxes[:, :2] + boxes[:, 2:]) / 2
    rects = [
        Rect(x, y, x + width, y + height)
        for x in range(0, video.width - width + 1, 16)
        for y in range(0, video.height - height + 1, 16)
    ]

    def held(rect: Rect) -> int:
        inside = (middles >= (rect.x1, rect.y1)) & (middles < (rect.x2, rect.y2))
        return int(inside.all(axis=1).sum())

    return max(rects, key=held)


def manual_layouts(video: Video, region: Rect) -> TileLayout:
    media = video.original.media
    return layout_around(region, media.width, media.height, tile_codec("fast", media).rules)


# -- sources of frames, and their consumer


def consume(pictures: Iterable[Pixels]) -> None:
    """Normalises frames into batches, as input of a model."""
    batch: list[Pixels] = []
    for picture in pictures:
        batch.append(picture)
        if len(batch) == BATCH:
            normalised(batch)
            batch = []
    if batch:
        normalised(batch)


def normalised(batch: list[Pixels]) -> np.ndarray[Any, np.dtype[np.float32]]:
    found = np.empty((len(batch), SIDE, SIDE * 3), np.float32)
    for picture, rows in zip(batch, found, strict=True):
        np.subtract(picture.reshape(SIDE, -1), MEANS, out=rows)
        rows *= SCALES
    return found


def pixels_of(crops: Iterable[Crop]) -> Iterable[Pixels]:
    return (crop.data for crop in crops)


def vfsd_whole(video: Video) -> Iterable[Pixels]:
    return (frame.data for frame in video.iterate(size=(SIDE, SIDE), psnr=math.inf))


def pyav_whole(path: Path) -> Iterable[Pixels]:
    scaler = VideoReformatter()
    with av.open(str(path)) as container:
        container.streams.video[0].thread_type = "AUTO"
        for picture in container.decode(video=0):
            yield scaler.reformat(picture, SIDE, SIDE, "rgb24").to_ndarray()


def ffmpeg_whole(path: Path) -> Iterable[Pixels]:
    command = [
        *("ffmpeg", "-v", "error", "-i", str(path), "-map", "0:v:0", "-fps_mode", "passthrough"),
        *("-vf", f"scale={SIDE}:{SIDE}", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"),
    ]
    size = SIDE * SIDE * 3
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=size) as running:
        assert running.stdout is not None
        while len(data := running.stdout.read(size)) == size:
            yield np.frombuffer(data, np.uint8).reshape(SIDE, SIDE, 3)


# -- report


def checked(video: Video, crops: Iterable[Crop]) -> dict[str, Any]:
    """The share of decoded pixels, and the difference from the original's output."""
    area = video.width * video.height
    frames: set[int] = set()
    pixels = pictures = 0
    worst = math.inf
    for crop in crops:
        if pictures % 50 == 0:
            exact = video.frames([crop.frame], region=crop.rect, size=(SIDE, SIDE), psnr=math.inf)
            difference = exact.data[0].astype(np.int32) - crop.data
            squared = max(float(np.square(difference).mean()), 1e-9)
            worst = min(worst, 10 * math.log10(255**2 / squared))
        frames.add(crop.frame)
        pixels += crop.rect.area
        pictures += 1
    return {
        "frames_with_something": len(frames) / len(video),
        "pictures_a_frame": pictures / len(video),
        "area": pixels / (area * len(video)),
        "worst_psnr": worst,
    }


def show(name: str, found: dict[str, Any]) -> None:
    print(f"\n### {name}\n")
    rows = [
        (
            which,
            f"{values['area']:.0%}",
            f"{values['pictures_a_frame']:.1f}",
            *(f"{values['frames_a_second'].get(who, math.nan):.0f}" for who in PEERS),
            f"{values['frames_a_second']['tiles']:.0f}",
            f"{values['gain']:.2f}",
            f"{values['worst_psnr']:.1f}",
        )
        for which, values in found.items()
    ]
    headings = ("regions", "area", "pictures a frame", *(f"{who}, frames/s" for who in PEERS))
    print(table((*headings, "tiles, frames/s", "gain", "worst PSNR dB"), rows), flush=True)


PEERS = ("vfsd", "pyav", "ffmpeg")


def verdict(figures: dict[str, Any]) -> bool:
    """The median over the videos, with one tile for all regions, because every tile is a picture
    of the result."""
    missed = []
    for which, bound in (("motion, coarse", MOTION_BOUND), ("manual", MANUAL_BOUND)):
        gain = statistics.median(found[which]["gain"] for found in figures.values())
        print(f"\nmedian gain, {which}: {gain:.2f}")
        if gain < bound:
            missed.append(f"{which}: {gain:.2f} < {bound}")
    for name, found in figures.items():
        for which, values in found.items():
            if values["worst_psnr"] < PSNR_BOUND:
                missed.append(f"{name}, {which}: PSNR")
    print("\nmissed: " + "; ".join(missed) if missed else "\nall met", flush=True)
    return not missed


if __name__ == "__main__":
    main()
