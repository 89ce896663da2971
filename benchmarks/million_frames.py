"""A million frames in the catalog: the cost of planning a read, and the table's size on disk."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import numpy as np

from benchmarks.common import arguments, finish, table
from vfsd.catalog import Catalog
from vfsd.core.frame_table_pages import PacketColumns, paginate
from vfsd.core.model import Access, FileState, MediaInfo, PhysicalVideo, Role
from vfsd.core.view_request import View
from vfsd.read.read_plan import plan_frames


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/catalog.sqlite3"
        with Catalog.create(url) as catalog:
            before = size(folder)
            put(catalog, options.frames)
            catalog.sync()
        bytes_a_frame = (size(folder) - before) / options.frames
        with Catalog.open(url) as catalog:
            figures = look_up(catalog, options.frames)
    figures["bytes_a_frame"] = bytes_a_frame
    print(table(("figure", "value"), list(figures.items())))
    passed = figures["plan_ms_cold"] < 1 and bytes_a_frame <= 24
    finish(options, "million_frames", figures, passed=passed)


def put(catalog: Catalog, frames: int, name: str = "long.mp4") -> None:
    """Store a table with pairs of B-frames, variable frame times and realistic sizes."""
    rng = np.random.default_rng(3)
    pts = np.arange(frames, dtype=np.int64) * 512
    pts[1 : frames - 1 : 3], pts[2:frames:3] = (
        pts[2:frames:3].copy(),
        pts[1 : frames - 1 : 3].copy(),
    )
    at = np.arange(frames)
    sizes = np.where(at % 30 == 0, 60_000, 0) + rng.integers(300, 9_000, frames)
    gaps = rng.integers(0, 400, frames) * (at % 2)  # audio lies between
    columns = PacketColumns(
        pts, at * 512 - 512, np.cumsum(sizes + gaps), sizes, (at % 30 == 0).astype(np.uint8)
    )
    order = np.argsort(pts, kind="stable")
    media = MediaInfo(
        "mp4", "h264", "High", 1920, 1080, "yuv420p", Fraction(1, 15360), Fraction(30)
    )
    original = PhysicalVideo(
        id=0,
        video_id=0,
        role=Role.ORIGINAL,
        media=media,
        access=Access.EXTENT,
        frames=frames,
        packets=frames,
        first_pts=0,
        end_pts=frames * 512,
        object_key="0" * 64,
        link_path=None,
        size=int(sizes.sum()),
        verified=False,
        parent_id=None,
        parameters={},
        software="benchmark",
        created_ns=0,
    )
    with catalog.writing() as change:
        node = change.tree.create(
            1, name, 0o100644, uid=0, gid=0, now_ns=0, state=FileState.SPOOLED
        )
        change.objects.record("0" * 64, original.size, now_ns=0)
        change.tree.update(node.ino, state=FileState.VIDEO, object_key="0" * 64)
        change.videos.put(
            node.ino,
            dataclasses.replace(original),
            paginate(columns, order),
            digest="0" * 64,
            now_ns=0,
        )


def look_up(catalog: Catalog, frames: int) -> dict[str, float]:
    """Milliseconds to open the table, and to plan a frame whose page is not loaded yet."""
    video = catalog.video("long.mp4")
    start = time.perf_counter()
    frame_table = catalog.frame_table(video.original)
    opened = time.perf_counter() - start
    rng = np.random.default_rng(1)

    def plan(index: int) -> float:
        begin = time.perf_counter()
        made = plan_frames(np.array([index]), View(), video.original, frame_table)
        took = time.perf_counter() - begin
        assert list(made.runs[0].wanted.values()) == [index]
        return took

    cold = [plan(int(i)) for i in rng.integers(0, frames, 400)]
    near = int(rng.integers(0, frames - 500))
    warm = [plan(near + int(i)) for i in rng.integers(0, 400, 400)]
    return {
        "open_table_ms": opened * 1000,
        "plan_ms_cold": float(np.percentile(cold, 95)) * 1000,
        "plan_ms_cold_median": float(np.median(cold)) * 1000,
        "plan_ms_warm": float(np.median(warm)) * 1000,
    }


def size(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).iterdir())


if __name__ == "__main__":
    main()
