"""Single frames at random: exactness first, then time, against PyAV by hand, OpenCV and decord.

The truth is a full sequential decode.  A contestant that returns other pixels for an index is
counted as wrong there; its time is reported all the same, and the ratio is marked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.common import arguments, finish, footage, interleaved, paired_ratio, table
from vfsd.store import Store

Luma = npt.NDArray[np.uint8]
Get = Callable[[int], Any]

CLIPS = (
    "real/carpov_highway_960x540.mp4",
    "real/birds_duck_1080x1920_hevc.mp4",
    "real/nflx_BirdsInCage_1080p.mp4",
    "real/intel_cars_topdown_768x432.mp4",
    "odd/dv_h264_opengop.mp4",
)


def main() -> None:
    parser = arguments(__doc__, runs=3)
    parser.add_argument("videos", nargs="*", type=Path, help="default: five of the footage")
    parser.add_argument("--frames", type=int, default=100, help="random indices a video")
    options = parser.parse_args()
    videos = options.videos or [footage() / clip for clip in CLIPS if (footage() / clip).exists()]
    videos = videos or sorted(footage().glob("*.m[pk][4v]"))
    figures: dict[str, Any] = {}
    rows = []
    passed = True
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "store") as store:
        for path in videos:
            measured = measure(store, path, options.frames, options.runs)
            figures[path.name] = measured
            ours = measured["vfsd"]
            passed &= ours["wrong"] == 0 and measured["pyav"]["ratio"] >= 1
            for name, values in measured.items():
                exact = values["wrong"] == 0
                if name in ("opencv", "decord") and exact:
                    passed &= values["ratio"] >= 2
                rows.append(
                    (path.name, name, values["wrong"], values["ms"], f"{values['ratio']:.2f}")
                )
    print(table(("video", "reader", "wrong frames", "ms a frame", "time / vfsd's"), rows))
    finish(options, "random_access", figures, passed=passed)


def measure(store: Store, path: Path, count: int, runs: int) -> dict[str, Any]:
    video = store.ingest(path, path.name)
    truth = sequential(path)
    rng = np.random.default_rng(7)
    wanted = rng.integers(0, len(truth), count).tolist()
    contestants: dict[str, Get] = {
        "vfsd": lambda i: video[i].data,
        "pyav": PyAV(path),
        "opencv": OpenCV(path),
    }
    decord = load_decord(path)
    if decord is not None:
        contestants["decord"] = decord
    wrong = {
        name: sum(not same(get, i, truth[i]) for i in wanted) for name, get in contestants.items()
    }
    rounds = interleaved(
        {name: partial(read_all, get, wanted) for name, get in contestants.items()}, runs
    )
    return {
        name: {
            "wrong": wrong[name],
            "ms": timing.median / count * 1000,
            "ratio": paired_ratio(timing, rounds["vfsd"]),
        }
        for name, timing in rounds.items()
    }


def read_all(get: Get, wanted: list[int]) -> None:
    for index in wanted:
        get(index)


def sequential(path: Path) -> list[Luma]:
    """A small fingerprint of every frame: luma at an eighth of the size."""
    with av.open(str(path)) as container:
        return [
            fingerprint(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)
        ]


def fingerprint(rgb: npt.NDArray[Any]) -> Luma:
    return rgb[::8, ::8].astype(np.uint8)


def same(get: Get, index: int, truth: Luma) -> bool:
    """Whether it is that frame: the same but for the rounding of another colour conversion."""
    try:
        found = fingerprint(np.asarray(get(index)))
    except Exception:
        return False
    if found.shape != truth.shape:
        return False
    return bool(np.abs(found.astype(int) - truth.astype(int)).mean() < 2.5)


class PyAV:
    """What one writes by hand: seek to the key frame, decode until the frame's time has come."""

    def __init__(self, path: Path) -> None:
        self._container = av.open(str(path))
        self._stream = self._container.streams.video[0]
        with av.open(str(path)) as other:
            packets = other.demux(video=0)
            # Edit lists apart, sorted times are what the frames will have.
            self._times = sorted(p.pts for p in packets if p.pts is not None and not p.is_discard)

    def __call__(self, index: int) -> npt.NDArray[Any]:
        wanted = self._times[index]
        self._container.seek(wanted, stream=self._stream)
        for frame in self._container.decode(self._stream):
            if frame.pts is not None and frame.pts >= wanted:
                return frame.to_ndarray(format="rgb24")
        raise LookupError(index)


class OpenCV:
    def __init__(self, path: Path) -> None:
        self._capture = cv2.VideoCapture(str(path))

    def __call__(self, index: int) -> Any:
        self._capture.set(cv2.CAP_PROP_POS_FRAMES, index)
        found, frame = self._capture.read()
        if not found:
            raise LookupError(index)
        return cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)


def load_decord(path: Path) -> Get | None:
    try:
        from decord import VideoReader
    except ImportError:
        return None
    reader = VideoReader(str(path))
    return lambda index: reader[index].asnumpy()


if __name__ == "__main__":
    main()
