"""Every file through the mount: the same bytes after a remount, and the same frames as ffmpeg.

The program copies each file in, mounts again, and checks it.  The bytes must be equal; ffprobe,
ffmpeg, OpenCV and mpv (without a window) must play it from the mount.  Every plane of every frame
that vfsd decodes must have the samples that the ffmpeg program decodes from the source (by MD5).
FFmpeg runs with one thread, because error concealment depends on the number of threads.

``--odd`` adds strange and hostile files.  Each must be served exactly or kept as a plain file with
a reason, within ten seconds.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2

from benchmarks.common import arguments, existing_file, finish, footage, table
from benchmarks.mounting import vfsd_mount
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.frames.planes import plane_bytes
from vfsd.disk.store_config import StoreSettings

ODD_SECONDS = 10.0
SLOW_PLAYERS_SECONDS = 120.0


@dataclass
class Verdict:
    file: str
    state: str = ""
    same_bytes: bool = False
    players: str = ""
    frames: int = 0
    expected: int = 0
    wrong: int = 0
    seconds: float = 0.0
    note: str = ""

    @property
    def good(self) -> bool:
        served = self.state == "video" and not self.wrong and self.frames == self.expected
        return self.same_bytes and (served or (self.state == "plain" and bool(self.note)))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("files", nargs="*", type=existing_file, help="default: the footage")
    parser.add_argument("--odd", action="store_true", help="the strange and hostile files too")
    options = parser.parse_args()
    files = options.files or list(default_files(odd=options.odd))
    with tempfile.TemporaryDirectory() as name:
        verdicts = check_all(Path(name), files)
    rows = [
        (v.file, v.state, v.same_bytes, v.players, f"{v.frames}/{v.expected}", v.wrong, v.note[:70])
        for v in verdicts
    ]
    heads = ("file", "state", "same bytes", "played by", "frames", "wrong", "why not, or what else")
    print(table(heads, rows))
    passed = all(v.good for v in verdicts)
    finish(options, "fidelity", [asdict(v) for v in verdicts], passed=passed)


def default_files(*, odd: bool) -> Iterator[Path]:
    folders = [footage() / name for name in ("real", "pairs", *(["odd"] if odd else []))]
    if not folders[0].is_dir():
        folders = [footage()]
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.suffix not in (".py", ".md", ".json") and path.is_file():
                yield path


def check_all(work: Path, files: list[Path]) -> list[Verdict]:
    with Store.create(work / "store") as store:
        StoreSettings(tune=False).save(store.parts.directory.settings)  # tiles are not the original
    names = [f"{path.parent.name}-{path.name}" for path in files]
    verdicts = [Verdict(name) for name in names]
    with vfsd_mount(work / "store", work / "mnt") as mounted:
        for path, name, verdict in zip(files, names, verdicts, strict=True):
            start = time.monotonic()
            shutil.copy(path, mounted / name)
            verdict.state = os.getxattr(mounted / name, "user.vfsd.state").decode()
            verdict.seconds = time.monotonic() - start
    with vfsd_mount(work / "store", work / "mnt") as mounted, Store.open(work / "store") as store:
        for path, name, verdict in zip(files, names, verdicts, strict=True):
            with watchdog(verdict):
                check_one(path, mounted / name, store, verdict)
    return verdicts


@contextmanager
def watchdog(verdict: Verdict) -> Iterator[None]:
    start = time.monotonic()
    yield
    verdict.seconds += time.monotonic() - start


def check_one(source: Path, shown: Path, store: Store, verdict: Verdict) -> None:
    verdict.same_bytes = filecmp.cmp(source, shown, shallow=False)
    if verdict.state != "video":
        try:
            verdict.note = os.getxattr(shown, "user.vfsd.reason").decode()
        except OSError:
            verdict.note = ""
        return
    video = store[shown.name]
    truth = frames_of_ffmpeg(source)
    found = list(frames_of_vfsd(video, store))
    verdict.frames, verdict.expected = len(found), len(truth)
    verdict.wrong = sum(a != b for a, b in zip(found, truth, strict=False))
    verdict.players = " ".join(players(shown))
    verdict.note = "; ".join(video.original.notes)


def frames_of_ffmpeg(path: Path) -> list[str]:
    """MD5 of each frame, all planes, as the ffmpeg program decodes them."""
    # ffmpeg before 9 rounds the left edge of a crop to its alignment unless it is "unaligned".
    options = ["-threads", "1", "-noautorotate", "-flags", "unaligned"]
    source = [*options, "-i", f"file:{path}", "-map", "0:v:0"]
    form = ["-fps_mode", "passthrough", "-f", "framehash", "-hash", "md5", "-"]
    result = subprocess.run(
        ["ffmpeg", "-v", "quiet", *source, *form],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in result.stdout.splitlines() if line and not line.startswith("#")]
    return [line.rpartition(",")[2].strip() for line in lines]


def frames_of_vfsd(video: Video, store: Store) -> Iterator[str]:
    with store.tools.pool.decoder(video.original, context_of(video).table) as decoder:
        for _, frame in decoder.stream(0):
            digest = hashlib.md5(usedforsecurity=False)
            for plane in plane_bytes(frame):
                digest.update(plane.tobytes())
            yield digest.hexdigest()


def players(path: Path) -> list[str]:
    """The programs that play the file from the mount to its end."""
    good = []
    blind = ["--no-config", "--really-quiet", "--vo=null", "--ao=null", "--untimed", "--no-audio"]
    commands = {
        "ffprobe": ["ffprobe", "-v", "error", "-show_entries", "stream=codec_name", str(path)],
        "ffmpeg": ["ffmpeg", "-v", "error", "-i", str(path), "-map", "0:v:0", "-f", "null", "-"],
        "mpv": ["mpv", *blind, str(path)],
    }
    for name, command in commands.items():
        if shutil.which(name) is None:
            continue
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=SLOW_PLAYERS_SECONDS
        )
        if done.returncode == 0:
            good.append(name)
    capture = cv2.VideoCapture(str(path))
    if capture.read()[0]:
        good.append("opencv")
    capture.release()
    return good


if __name__ == "__main__":
    main()
