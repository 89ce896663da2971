"""Random single frames: correctness and time, compared with PyAV, OpenCV and decord.

In every run each reader is reopened and reads the same indices, which differ from run to run.
Each timed frame is compared with a full sequential decode.  A reader that returns other pixels is
counted as wrong, and its time is still reported.

Long videos are clips repeated so often that data cached from a hundred frames cannot help with the
next one, so their time is that of the decoder.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.common import (
    Timing,
    arguments,
    existing_file,
    finish,
    footage,
    paired_ratio,
    repeated,
    table,
)
from vfsd.api.store import Store

Luma = npt.NDArray[np.uint8]
Get = Callable[[int], Any]
Opener = Callable[[Path], AbstractContextManager[Get]]

CLIPS = (
    "real/carpov_highway_960x540.mp4",
    "real/birds_duck_1080x1920_hevc.mp4",
    "real/nflx_BirdsInCage_1080p.mp4",
    "real/intel_cars_topdown_768x432.mp4",
    "odd/dv_h264_opengop.mp4",
)


LONG = ("real/carpov_highway_960x540.mp4", "real/intel_cars_topdown_768x432.mp4")
REPEATED = 20


def main() -> None:
    parser = arguments(__doc__, runs=5)
    parser.add_argument(
        "videos", nargs="*", type=existing_file, help="default: five of the footage"
    )
    parser.add_argument("--frames", type=int, default=100, help="random indices a video")
    options = parser.parse_args()
    videos = options.videos or [footage() / clip for clip in CLIPS if (footage() / clip).exists()]
    videos = videos or sorted(footage().glob("*.m[pk][4v]"))
    figures: dict[str, Any] = {}
    rows = []
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        long = [] if options.videos else [footage() / c for c in LONG if (footage() / c).exists()]
        cases = [(path.name, path, 2.0) for path in videos]
        cases += [
            (f"{path.name} x{REPEATED}", repeated(path, REPEATED, Path(folder)), 1.0)
            for path in long
        ]
        for name, path, bound in cases:
            figures[name] = measured = measure(path, options.frames, options.runs)
            passed &= measured["vfsd"]["wrong"] == 0 and measured["pyav"]["ratio"] >= 1
            for reader, values in measured.items():
                if reader in ("opencv", "decord") and values["wrong"] == 0:
                    passed &= values["ratio"] >= bound
                rows.append((name, reader, values["wrong"], values["ms"], f"{values['ratio']:.2f}"))
    print(table(("video", "reader", "wrong frames", "ms a frame", "time / vfsd's"), rows))
    finish(options, "random_access", figures, passed=passed)


def measure(path: Path, count: int, runs: int) -> dict[str, Any]:
    truth = sequential(path)
    seconds: dict[str, list[float]] = {}
    wrong: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        with Store.create(root) as store:
            store.ingest(path, "video")
        readers: dict[str, Opener] = {
            "vfsd": partial(ours, root),
            "pyav": by_hand,
            "opencv": opencv,
        }
        if importlib.util.find_spec("decord"):
            readers["decord"] = decord
        rng = np.random.default_rng(7)
        for _ in range(runs):
            wanted = rng.integers(0, len(truth), count).tolist()
            for name in rng.permutation(list(readers)):
                with readers[name](path) as get:
                    start = time.perf_counter()
                    failed = sum(not same(get, index, truth[index]) for index in wanted)
                    seconds.setdefault(name, []).append(time.perf_counter() - start)
                wrong[name] = wrong.get(name, 0) + failed
    timings = {name: Timing(tuple(seconds[name])) for name in readers}
    return {
        name: {
            "wrong": wrong[name],
            "ms": timing.median / count * 1000,
            "ratio": paired_ratio(timing, timings["vfsd"]),
        }
        for name, timing in timings.items()
    }


def sequential(path: Path) -> list[Luma]:
    """A small fingerprint of every frame: luma at an eighth of the size."""
    with av.open(str(path)) as container:
        return [
            fingerprint(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)
        ]


def fingerprint(rgb: npt.NDArray[Any]) -> Luma:
    return rgb[::8, ::8].astype(np.uint8)


def same(get: Get, index: int, truth: Luma) -> bool:
    """Whether it is that frame, up to the rounding of another color conversion."""
    try:
        found = fingerprint(np.asarray(get(index)))
    except Exception:
        return False
    if found.shape != truth.shape:
        return False
    return bool(np.abs(found.astype(int) - truth.astype(int)).mean() < 2.5)


@contextmanager
def ours(root: Path, path: Path) -> Iterator[Get]:
    with Store.open(root) as store:
        video = store["video"]
        yield lambda index: video[index].data


@contextmanager
def by_hand(path: Path) -> Iterator[Get]:
    """The usual PyAV code: seek to the key frame, decode until the frame's time is reached."""
    with av.open(str(path)) as other:
        packets = other.demux(video=0)
        # Except with edit lists, the frames have these times in sorted order.
        times = sorted(p.pts for p in packets if p.pts is not None and not p.is_discard)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]

        def get(index: int) -> Any:
            container.seek(times[index], stream=stream)
            for frame in container.decode(stream):
                if frame.pts is not None and frame.pts >= times[index]:
                    return frame.to_ndarray(format="rgb24")
            raise LookupError(index)

        yield get


@contextmanager
def opencv(path: Path) -> Iterator[Get]:
    capture = cv2.VideoCapture(str(path))

    def get(index: int) -> Any:
        capture.set(cv2.CAP_PROP_POS_FRAMES, index)
        found, frame = capture.read()
        if not found:
            raise LookupError(index)
        return cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)

    yield get
    capture.release()


@contextmanager
def decord(path: Path) -> Iterator[Get]:
    reader = importlib.import_module("decord").VideoReader(str(path))
    yield lambda index: reader[index].asnumpy()


if __name__ == "__main__":
    main()
