"""Joining overlapping cameras in a store: bytes on disk, and the time of reads."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import footage, table
from benchmarks.joining import OVERLAPS, sources
from sample_videos.cameras import Cameras, write_pictures
from vfsd.api.store import Store
from vfsd.codecs.cells.plane_merge import MERGES
from vfsd.core.model import Segment
from vfsd.derive.tile_encoder import TileSettings
from vfsd.errors import NotFoundError
from vfsd.maintenance.fsck import run as check
from vfsd.overlap import join, joined, split
from vfsd.overlap.join_encoder import JoinSettings

FILMED = (
    ("derived_futsal_left_1280x720", "derived_futsal_right_1280x720"),
    ("roof_left_270x480", "roof_right_270x480"),
    ("office_a_640x480", "office_b_640x480"),
    ("walk_left_640x368", "walk_right_640x368"),
)
PSNR_BOUND = 30.0
_RUNS = 5


def stored(width: int, frames: int, quality: int) -> Iterator[dict[str, Any]]:
    """For each pair and merge mode, two videos stored separately and joined, at the same rate
    factor."""
    for name, left, right in camera_pairs(width, frames):
        with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "store") as store:
            store.ingest(left, "left.mp4", link=True)
            store.ingest(right, "right.mp4", link=True)
            for merge in MERGES:
                row = {"pair": name, "merge": merge}
                yield {**row, **measured(store, JoinSettings(merge=merge, quality=quality))}


def camera_pairs(width: int, frames: int) -> Iterator[tuple[str, Path, Path]]:
    """(description, left file, right file)"""
    for source in sources():
        for overlap in OVERLAPS:
            cameras = Cameras(
                width, width * 9 // 32 * 2, overlap, noise=source.noise, gain=1.06, bias=-4
            )
            wide = list(source.frames(cameras.field, frames))
            with tempfile.TemporaryDirectory() as folder:
                files = Path(folder) / "left.mp4", Path(folder) / "right.mp4"
                for file, shown in zip(files, (cameras.left, cameras.right), strict=True):
                    pictures = (shown(picture, at) for at, picture in enumerate(wide))
                    write_pictures(file, pictures, source.rate, crf=12)
                yield f"{source.name}, {overlap:.0%}", *files
    for one, other in FILMED:
        files = footage() / "pairs" / f"{one}.mp4", footage() / "pairs" / f"{other}.mp4"
        if all(file.exists() for file in files):
            yield one.rpartition("_")[0], *files


def measured(store: Store, settings: JoinSettings) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        report = join(store, "left.mp4", "right.mp4", settings)
    except NotFoundError as error:
        return {"refused": str(error)}
    seconds = time.perf_counter() - began
    result: dict[str, Any] = {
        "frames": report.frames,
        "of": len(store[report.left]),
        "reasons": dict(report.reasons),
        "psnr": report.psnr,
        "seconds": seconds,
        "faults": [found.message for found in check(store.parts, deep=True)],
    }
    if report.frames:
        (pair,) = joined(store)
        coded = TileSettings(quality=settings.quality)
        apart, size = [], 0.0
        for side, name in enumerate((pair.left, pair.right)):
            store[name].tiles.retile("uniform:1x1", settings=coded)
            made = store.catalog.segments(store[name].info)
            apart.append(made)
            size += _bytes_of(made, [both[side].frames for both in pair.segments])
        result["apart"] = size
        result["joined"] = pair.bytes
        result["files"] = report.original_bytes
        result["read"] = [
            _read(store, [both[side] for both in pair.segments], apart[side]) for side in range(2)
        ]
        split(store, pair.left, pair.right)
    return result


def _bytes_of(made: Sequence[Segment], runs: Sequence[range]) -> float:
    """Bytes of those frames, in proportion if a segment has other frames as well."""
    return sum(
        one.size * sum(frame in run for run in runs for frame in one.frames) / len(one.frames)
        for one in made
    )


def _read(store: Store, joined: Sequence[Segment], apart: Sequence[Segment]) -> float:
    """The time to read a reassembled frame, relative to reading a frame of whole tiles."""
    ratios = []
    for _ in range(_RUNS):
        both = [_seconds(store, segments) for segments in (joined, apart)]
        ratios.append(both[0] / both[1])
    return statistics.median(ratios)


def _seconds(store: Store, segments: Sequence[Segment]) -> float:
    """Seconds per frame."""
    began = time.perf_counter()
    pictures = 0
    for segment in segments:
        for _ in store.tools.packs.pictures(segment, 0, list(segment.frames)):
            pictures += 1
    return (time.perf_counter() - began) / pictures


def show_stored(rows: list[dict[str, Any]]) -> bool:
    cells: list[tuple[object, ...]] = []
    passed = True
    for row in rows:
        if "refused" in row:
            cells.append((row["pair"], row["merge"], "refused", *[""] * 5))
            continue
        passed &= not row["faults"]
        if not row["frames"]:
            cells.append((row["pair"], row["merge"], f"0 of {row['of']}", *[""] * 5))
            continue
        passed &= min(row["psnr"]) >= PSNR_BOUND
        cells.append(
            (
                row["pair"],
                row["merge"],
                f"{row['frames']} of {row['of']}",
                f"{row['apart'] / 1000:.0f}",
                f"{row['joined'] / 1000:.0f}",
                f"{1 - row['joined'] / row['apart']:.1%}",
                " ".join(f"{value:.1f}" for value in row["psnr"]),
                " ".join(f"{value:.1f}" for value in row["read"]),
            )
        )
    heads = ("pair", "merge", "joined", "kB apart", "kB joined", "saves", "worst dB", "read, times")
    print()
    print(table(heads, cells), flush=True)
    return passed
