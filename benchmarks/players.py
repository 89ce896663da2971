"""Players that open a video at a given time and show one frame: latency, and the frame itself.

As a program (``python -m benchmarks.players READER FILE SECONDS OUT``) it runs one of the libraries
and prints the seconds, so that a file system that hangs blocks only this process.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import av
import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.common import ROOT

Luma = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Shown:
    """The frame that a player produced."""

    seconds: float  #: seconds from opening the file to the frame
    luma: Luma  #: height x width


def players() -> list[str]:
    """The installed players."""
    found = [name for name in ("ffmpeg", "mpv") if shutil.which(name)]
    return [*found, *LIBRARIES]


def show(player: str, path: Path, at: float, limit: float, give_up: Callable[[], None]) -> Shown:
    """Open `path`, go to the first picture at or after `at` seconds, and take it.

    Programs are timed with their start, libraries from opening the file.  Raises `TimeoutError`
    after `limit` seconds; `give_up` is called first, to release processes that wait for the file
    system.  Raises `LookupError` if there is no frame.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if player in LIBRARIES:
            out = folder / "luma.npy"
            command = [sys.executable, "-m", "benchmarks.players", player, path, at, out]
            told = _run(command, limit, give_up)
            if not out.exists():
                raise LookupError(f"{player}: {path}")
            return Shown(float(told.split()[-1]), np.load(out))
        began = time.perf_counter()
        if player == "ffmpeg":
            seek = ["-ss", at] if at else []
            _run(
                ["ffmpeg", "-v", "quiet", *seek, "-i", path, *ONE, folder / "1.png"], limit, give_up
            )
            seconds = time.perf_counter() - began
        else:
            _run([*MPV, "--vo=null", f"--start={at}", path], limit, give_up)
            seconds = time.perf_counter() - began
            images = ["--vo=image", "--vo-image-format=png", f"--vo-image-outdir={folder}"]
            _run([*MPV, *images, f"--start={at}", path], limit, give_up)
        pictures = sorted(folder.glob("*.png"))
        if not pictures:
            raise LookupError(f"{player}: {path}")
        return Shown(seconds, as_luma(pictures[0]))


ONE = ["-frames:v", "1"]
MPV = ["mpv", "--no-config", "--really-quiet", "--ao=null", "--frames=1"]


def as_luma(picture: Path) -> Luma:
    found = cv2.imread(str(picture), cv2.IMREAD_GRAYSCALE)
    assert found is not None
    return found.astype(np.uint8)


def _run(command: list[object], limit: float, give_up: Callable[[], None]) -> str:
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        return process.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        give_up()
        process.kill()
        process.communicate()
        raise TimeoutError(f"{command[0]}: no picture within {limit:g} s") from None


# ----------------------------------------------------------------------------------- libraries


def pyav(path: str, at: float) -> npt.NDArray[np.uint8] | None:
    """RGB."""
    with av.open(path) as container:
        stream = container.streams.video[0]
        if at:
            first = float((stream.start_time or 0) * (stream.time_base or 0))
            container.seek(round((first + at) * av.time_base))
        for frame in container.decode(stream):
            if frame.time is not None and (not at or frame.time >= first + at):
                return frame.to_ndarray(format="rgb24").astype(np.uint8)
    return None


def opencv(path: str, at: float) -> npt.NDArray[np.uint8] | None:
    capture = cv2.VideoCapture(path)
    try:
        if at:
            capture.set(cv2.CAP_PROP_POS_MSEC, at * 1000)
        there, picture = capture.read()
        return picture[:, :, ::-1].astype(np.uint8) if there else None
    finally:
        capture.release()


LIBRARIES: dict[str, Callable[[str, float], npt.NDArray[np.uint8] | None]] = {
    "PyAV": pyav,
    "OpenCV": opencv,
}


def main() -> None:
    name, path, at, out = sys.argv[1:]
    began = time.perf_counter()
    picture = LIBRARIES[name](path, float(at))
    print(time.perf_counter() - began)
    if picture is not None:
        np.save(out, cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY))


if __name__ == "__main__":
    main()
