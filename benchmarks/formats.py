"""Views in other formats, compared with the ffmpeg command that makes the same from the plain file.

Each row is one view.  It is written by ``Video.save``, read for the first time through a mount
(copied into a file, like ``cp``), and made by ffmpeg with the same codec, preset and quality.  Runs
are interleaved, and CPU time is that of ``Video.save`` and of ffmpeg.  Then the view is read again
through the mount, and compared with plain files of the same bytes in the mount and on the disk, all
from the page cache.  With ``--passthrough`` the kernel reads both files in the mount itself.  All
frames are compared with those of ``Video.read``.
"""

from __future__ import annotations

import filecmp
import itertools
import math
import os
import shutil
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from benchmarks.common import (
    Timing,
    arguments,
    drop,
    finish,
    footage,
    interleaved,
    paired_ratio,
    table,
)
from benchmarks.common import used as measured
from benchmarks.mounting import vfsd_mount
from vfsd.api.reading import plan_view
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core import view_request
from vfsd.disk.store_config import StoreSettings

FIRST, AGAIN = 1.15, 0.8
"""Times of ffmpeg that a first read may take; times a plain file's speed that a second one has."""
LEAST_PSNR = 30.0
_CHUNK = 1 << 20
_CHECKED = 10
"""Every so manieth picture is compared."""
_AGAIN_BYTES, _AGAIN_ROUNDS = 1 << 30, 400
"""Bytes to read again from each file, and the maximum of rounds: medians of 20 reads of a
millisecond differ by a third from run to run."""
_PLACES = 5
"""Where the kernel puts a file's pages makes reading them up to a third faster or slower.  So they
are read at many places: those of the first read, and those of a second one."""

CLIPS = {
    "2160p": ("real/derived_mosaic_4k_hevc.mp4", "open-gop.mkv"),
    "h264": ("real/nflx_OldTownCross_1080p.mp4", "traffic.mp4"),
    "hevc": ("real/nflx_BirdsInCage_1080p_hevc.mp4", "open-gop.mkv"),
}
"""By what they are: a clip of the footage, and a sample video in its stead."""

_H264 = "-c:v libx264 -preset veryfast -crf 20"
_HEVC = "-c:v libx265 -preset ultrafast -crf 20 -x265-params log-level=none"


@dataclass(frozen=True)
class Case:
    """One view, and how ffmpeg makes it.  Sizes are fractions of the source's size."""

    label: str
    clip: str
    keys: str  #: part of the view's name; {w2} is half the width, {w4} a quarter
    suffix: str
    seek: str = ""  #: ffmpeg's options before the input
    make: str = ""  #: ffmpeg's options after the input


CASES = (
    Case("2160p to 1080p, H.264", "2160p", "size={w2}x{h2},codec=h264", "mp4", "",
         "-vf scale={w2}:{h2} " + _H264),
    Case("2160p to 540p, H.264", "2160p", "size={w4}x{h4},codec=h264", "mp4", "",
         "-vf scale={w4}:{h4} " + _H264),
    Case("1080p to 540p, H.264", "h264", "size={w2}x{h2},codec=h264", "mp4", "",
         "-vf scale={w2}:{h2} " + _H264),
    Case("HEVC to H.264", "hevc", "codec=h264", "mp4", "", _H264),
    Case("H.264 to HEVC", "h264", "codec=hevc", "mp4", "", _HEVC),
    Case("5 pictures a second", "h264", "fps=5,codec=h264", "mp4", "", "-vf fps=5 " + _H264),
    Case("a span from a key frame on", "h264", "t=0-{late}", "mp4", "-t {late}", "-c copy"),
    Case("a span off key frames", "h264", "t={early}-{late},codec=h264", "mp4",
         "-ss {early} -to {late}", _H264),
    Case("a region", "h264", "roi={w2}x{h2}+{w4}+{h4},codec=h264", "mp4", "",
         "-vf crop={w2}:{h2}:{w4}:{h4} " + _H264),
    Case("raw, yuv420p", "h264", "pix=yuv420p", "yuv", "", "-f rawvideo -pix_fmt yuv420p"),
    Case("raw, 540p, rgb24", "h264", "size={w2}x{h2}", "rgb", "",
         "-vf scale={w2}:{h2} -f rawvideo -pix_fmt rgb24"),
    Case("540p, AV1", "h264", "size={w2}x{h2},codec=av1", "mp4", "",
         "-vf scale={w2}:{h2} -c:v libsvtav1 -preset 9 -crf 28"),
    Case("540p, JPEG", "h264", "size={w2}x{h2},codec=mjpeg", "mkv", "",
         "-vf scale={w2}:{h2} -c:v mjpeg -q:v 3 -huffman optimal"),
    Case("540p, FFV1", "h264", "size={w2}x{h2},codec=ffv1", "mkv", "",
         "-vf scale={w2}:{h2} -c:v ffv1 -level 3 -coder 0 -context 0 -g 1 -slices 4"),
)  # fmt: skip


def main() -> None:
    parser = arguments(__doc__, runs=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each clip")
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose label holds any of it")
    parser.add_argument("--passthrough", action="store_true", help="mount with that option")
    parser.add_argument("--no-mount", action="store_true", help="leave the mount out")
    options = parser.parse_args()
    cases = [case for case in CASES if any(part in case.label for part in options.only)]
    if not cases:
        parser.error(f"no row's label holds any of {', '.join(options.only)}")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        clips = {
            key: cut(key, options.seconds, work) for key in sorted({case.clip for case in cases})
        }
        with Store.create(work / "store") as store, ExitStack() as stack:
            # Renditions that a mount makes from reads would make the next rows faster.
            StoreSettings(verify=False, tune=False).save(store.parts.directory.settings)
            videos = {key: store.ingest(path, path.name) for key, path in clips.items()}
            mounted = None
            words = ("passthrough",) if options.passthrough else ()
            if not options.no_mount:
                mounted = stack.enter_context(vfsd_mount(work / "store", work / "mnt", *words))
            for case in cases:
                place = None if mounted is None else mounted / clips[case.clip].name
                row = Row(case, videos[case.clip], clips[case.clip], place, work)
                figures[case.label] = row.measure(options)
                print(as_row(case.label, figures[case.label]), flush=True)
    report(figures, options)


def cut(key: str, seconds: float, work: Path) -> Path:
    """The beginning of a clip, by copying packets."""
    wanted, sample = CLIPS[key]
    source = footage() / wanted
    source = source if source.exists() else footage() / sample
    target = work / f"{key}{source.suffix}"
    copy = ("-t", str(seconds), "-map", "0:v:0", "-c", "copy")
    subprocess.run(["ffmpeg", "-v", "error", "-i", source, *copy, target], check=True)
    return target


class Row:
    """One view of one clip."""

    def __init__(
        self, case: Case, video: Video, path: Path, mounted: Path | None, work: Path
    ) -> None:
        w, h, duration = video.width, video.height, float(video.duration)
        words = {
            "w2": w // 4 * 2, "h2": h // 4 * 2, "w4": w // 8 * 2, "h4": h // 8 * 2,
            "early": f"{duration * 0.13:.2f}", "late": f"{duration * 0.87:.2f}",
        }  # fmt: skip
        self._keys = case.keys.format(**words)
        self._suffix = case.suffix
        self._seek = case.seek.format(**words).split()
        self._make = case.make.format(**words).split()
        self._video, self._path, self._mounted, self._work = video, path, mounted, work
        self._numbers = itertools.count(1)
        self._last: Path | None = None  # the view that was read
        self._cpu: dict[str, list[float]] = {"ffmpeg": [], "save": []}

    def measure(self, options: Namespace) -> dict[str, Any]:
        contestants: dict[str, Callable[[], object]] = {
            "ffmpeg": self._counted("ffmpeg", self._ffmpeg),
            "save": self._counted("save", self._save),
        }
        if self._mounted is not None:
            contestants["mount"] = self._first_read
        first = interleaved(contestants, options.runs, self._clear)
        found: dict[str, Any] = {
            name: {"seconds": timing.median, "runs": timing.seconds}
            for name, timing in first.items()
        }
        for name, values in self._cpu.items():
            found[name]["cpu"] = median(values[1:])  # the first was the warm-up
        for name in first.keys() - {"ffmpeg"}:
            found[name]["ratio"] = paired_ratio(first[name], first["ffmpeg"])
        found["save"]["cpu_ratio"] = found["save"]["cpu"] / found["ffmpeg"]["cpu"]
        for name in first:
            out = self._out(name)
            found[name]["bytes"] = out.stat().st_size
            found[name]["pictures"], found[name]["psnr"] = self._checked(out)
        if self._mounted is not None:
            again = self._again(options.runs)
            found["again"] = {
                "speed": paired_ratio(again["plain"], again["mount"]),
                "speed_on_disk": paired_ratio(again["disk"], again["mount"]),
                "mib_per_second": found["mount"]["bytes"] / again["mount"].median / (1 << 20),
            }
        return found

    def _out(self, name: str) -> Path:
        return self._work / f"{name}.{self._suffix}"

    def _clear(self, name: str) -> None:
        """Remove the files and cached pages of the last round.

        If its output existed, ffmpeg would write into pages that it has just freed, while a file
        that appears whole keeps the old pages until the end.  The host of a virtual machine may
        also reclaim free pages, and new pages cost far more.  So the pages of the view are free
        when the next view is read, as those of ffmpeg's last file are when it writes.
        """
        self._out(name).unlink(missing_ok=True)
        if name == "mount" and self._last is not None:
            drop(self._last)

    def _counted(self, name: str, work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            self._cpu[name].append(measured(work)[1].cpu)

        return run

    def _name(self) -> str:
        """A new name for the view each time: a limit that no tile meets changes only the key."""
        return f"{self._keys},psnr={50 + next(self._numbers)}.{self._suffix}"

    def _ffmpeg(self) -> None:
        command = ["ffmpeg", "-v", "error", "-y", *self._seek, "-i", str(self._path), "-an"]
        subprocess.run(
            # Otherwise ffmpeg would fill the gap before the last frame of a clip that was cut off.
            [*command, *self._make, "-fps_mode", "passthrough", str(self._out("ffmpeg"))],
            check=True,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _save(self) -> None:
        self._video.views.save(self._out("save"), view_request.parse_view_path(self._name()))

    def _first_read(self) -> None:
        """Read a new view into a file, as ffmpeg's command writes one."""
        assert self._mounted is not None
        self._last = Path(f"{self._mounted}@") / self._name()
        shutil.copyfile(self._last, self._out("mount"))

    def _again(self, runs: int) -> dict[str, Timing]:
        """Read the same bytes again: the view, and plain files in the mount and on the disk."""

        def read(path: Path) -> Callable[[], None]:
            return lambda: [None for _ in blocks(path)].clear()

        assert self._mounted is not None
        assert self._last is not None
        on_disk = self._out("mount")
        plain = self._mounted.parent / f"plain-{next(self._numbers)}"
        shutil.copyfile(on_disk, plain)
        os.sync()
        time.sleep(1)  # flush written data, and let views be completed
        if not filecmp.cmp(self._last, on_disk, shallow=False):
            raise ValueError("a second read gives other bytes than the first")
        paths = {"mount": self._last, "plain": plain, "disk": on_disk}
        rounds = max(10 * runs, min(_AGAIN_BYTES // on_disk.stat().st_size, _AGAIN_ROUNDS))
        readers = {who: read(path) for who, path in paths.items()}
        times = interleaved(readers, -(-rounds // _PLACES))
        for _ in range(_PLACES - 1):
            for path in paths.values():
                drop(path)
            anew = interleaved(readers, -(-rounds // _PLACES))
            times = {who: Timing(times[who].seconds + anew[who].seconds) for who in times}
        plain.unlink()
        return times

    # -- the pictures

    def _checked(self, out: Path) -> tuple[int, float]:
        """(number of frames, luma PSNR of the worst checked frame)."""
        request = view_request.parse_view_path(f"{self._keys}.{self._suffix}")
        view = request.resolve(self._video.width, self._video.height)
        frames = plan_view(context_of(self._video), view).frames
        pictures = 0
        worst = float("inf")
        size = view.size or (
            (view.region.width, view.region.height)
            if view.region
            else (self._video.width, self._video.height)
        )
        for number, gray in enumerate(self._grays(out, request.form.layout, size)):
            pictures += 1
            if number % _CHECKED or number >= len(frames):
                continue
            (right,) = self._video.frames(
                [frames[number]],
                region=view.region,
                size=view.size,
                format="yuv420p",
                psnr=math.inf,
            ).data
            worst = min(worst, psnr(gray, right[: size[1]]))
        return pictures, worst

    def _grays(
        self, out: Path, layout: str, size: tuple[int, int]
    ) -> Iterator[npt.NDArray[np.uint8]]:
        """Luma of each frame, at the size of the source."""
        if self._suffix not in ("yuv", "rgb"):
            with av.open(str(out)) as opened:
                for frame in opened.decode(video=0):
                    if frame.format.name == "yuvj420p":
                        frame = frame.reformat(
                            format="yuv420p", src_color_range=2, dst_color_range=1
                        )
                    yield luma(frame)
            return
        each = size[0] * size[1] * (3 if layout == "rgb24" else 1.5)
        with open(out, "rb") as file:
            while data := file.read(int(each)):
                if layout == "rgb24":
                    picture = np.frombuffer(data, np.uint8).reshape(size[1], size[0], 3)
                    yield luma(av.VideoFrame.from_ndarray(picture, format="rgb24"))
                else:
                    yield np.frombuffer(data, np.uint8).reshape(-1, size[0])[: size[1]]


def blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_CHUNK):
            yield block


def luma(picture: av.VideoFrame) -> npt.NDArray[np.uint8]:
    samples: npt.NDArray[Any] = picture.to_ndarray(format="yuv420p")
    return samples[: picture.height]


def psnr(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> float:
    error = float(np.mean((one.astype(np.float64) - other) ** 2))
    return 99.0 if error == 0 else float(10 * np.log10(255**2 / error))


def as_row(label: str, found: dict[str, Any]) -> str:
    return "| " + " | ".join(map(str, cells(label, found))) + " |"


def cells(label: str, found: dict[str, Any]) -> Sequence[object]:
    ffmpeg, save, mount = found["ffmpeg"], found["save"], found.get("mount", {})
    again = found.get("again", {})

    def rounded(value: float | None, digits: int = 2) -> object:
        return "" if value is None else round(value, digits)

    return (
        label,
        rounded(ffmpeg["seconds"]),
        rounded(save["ratio"]),
        rounded(save["cpu_ratio"]),
        rounded(mount.get("ratio")),
        rounded(again.get("speed")),
        rounded(again.get("speed_on_disk")),
        f"{ffmpeg['bytes'] / 1e6:.2f} / {save['bytes'] / 1e6:.2f}",
        f"{ffmpeg['psnr']:.1f} / {save['psnr']:.1f}",
        f"{ffmpeg['pictures']} / {save['pictures']}",
    )


def report(figures: dict[str, Any], options: Namespace) -> None:
    headings = ("ffmpeg, s", "save / ffmpeg", "of CPU", "mount, first / ffmpeg")
    more = (
        "again, of a plain file",
        "of one on the disk",
        "MB, ffmpeg / save",
        "worst dB",
        "pictures",
    )
    print(table(("view", *headings, *more), [cells(*item) for item in figures.items()]))
    passed = True
    for found in figures.values():
        shown = {name: found[name] for name in ("save", "mount") if name in found}
        passed &= all(one["psnr"] >= LEAST_PSNR for one in shown.values())
        passed &= len({one["pictures"] for one in shown.values()}) == 1
        passed &= all(one["ratio"] <= FIRST for one in shown.values())
        passed &= found.get("again", {"speed": 1})["speed"] >= AGAIN
    finish(options, "formats", figures, passed=passed)


if __name__ == "__main__":
    main()
