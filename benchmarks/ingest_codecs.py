"""CPU time of examining files of each codec, relative to the minimum of necessary work.

The minimum is one pass of the demuxer, like ``ffprobe -show_packets``, and decoding the frames
that verify the packets.  The clips are ten minutes of small pictures and 100
seconds of larger ones, generated into ``--folder`` or a temporary folder; files that the command
line names are measured instead.  Bound: `_BOUND` times the minimum.

``--source`` measures the examiner of another checkout as well, in turns with this one.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.common import arguments, directory, existing_file, finish, table
from vfsd.codecs.probing import packet_scan as trying
from vfsd.codecs.probing import probe as examining
from vfsd.codecs.probing.probe import examine
from vfsd.codecs.pyav import decode

_SECONDS = 600
_RATE = 25
_BOUND = 3.0
_REFERENCES = ("-bf", "2", "-g", "12", "-sc_threshold", "1000000000")
_CLIPS: dict[str, tuple[str, ...]] = {
    "mpeg1.mpg": ("mpeg1video", *_REFERENCES),
    "mpeg2.mpg": ("mpeg2video", *_REFERENCES),
    "mpeg2.ts": ("mpeg2video", *_REFERENCES),
    "mpeg4.avi": ("mpeg4", *_REFERENCES),
    "mpeg4.mp4": ("mpeg4", *_REFERENCES),
    "ffv1.mkv": ("ffv1", "-level", "3", "-g", "10"),
    "theora.ogv": ("libtheora", "-g", "64"),
    "vp8.webm": ("libvpx", "-deadline", "realtime", "-cpu-used", "8", "-auto-alt-ref", "0"),
    "mjpeg.avi": ("mjpeg",),
    "mjpeg.mp4": ("mjpeg",),
    "dnxhd.mxf": ("dnxhd", "-profile:v", "dnxhr_lb", "-pix_fmt", "yuv422p"),
    "dnxhd.mov": ("dnxhd", "-profile:v", "dnxhr_lb", "-pix_fmt", "yuv422p"),
    "prores.mov": ("prores_ks", "-profile:v", "proxy"),
    "h264.mp4": ("libx264", "-preset", "veryfast"),
    "h264.ts": ("libx264", "-preset", "veryfast"),
    "hevc.mp4": ("libx265", "-preset", "ultrafast", "-x265-params", "log-level=error:bframes=3"),
    "hevc.mkv": ("libx265", "-preset", "ultrafast", "-x265-params", "log-level=error:bframes=3"),
    "vp9.webm": ("libvpx-vp9", "-deadline", "realtime", "-cpu-used", "8"),
    "av1.mp4": ("libsvtav1", "-preset", "12"),
}
"""The name of each clip, its encoder and the options of that."""
_LARGE_SECONDS = 100
_DNXHD = ("dnxhd", "-b:v", "60M", "-pix_fmt", "yuv422p")
_LARGE: dict[str, tuple[str, ...]] = {
    "dnxhd-720p.mxf": _DNXHD,
    "dnxhd-720p.mov": _DNXHD,
    "mjpeg-720p.avi": ("mjpeg", "-q:v", "3"),
}
"""The same for larger frames: their bytes cost more than their number."""
_EXAMINE_ELSEWHERE = """
import json, resource, sys
from vfsd.codecs.probing.probe import examine
for path in sys.argv[1:]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    found = examine(path)
    spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    print(json.dumps([spent, len(found.order), found.verified]))
"""


@dataclass
class Measured:
    """User CPU seconds for one file, the minimum of several runs."""

    file: str
    frames: int
    ffprobe: float  #: of ``ffprobe -show_packets``
    trial: float  #: decoding within the examiner
    vfsd: float
    before: float | None  #: the examiner of the other checkout
    decoded: bool  #: elapsed time of an ingest

    @property
    def ratio(self) -> float:
        return self.vfsd / (self.ffprobe + self.trial)


def main() -> None:
    parser = arguments(__doc__, runs=3)
    parser.add_argument("files", nargs="*", type=existing_file, help="measure these instead")
    parser.add_argument("--folder", type=directory, help="keep the clips there")
    parser.add_argument("--seconds", type=int, default=_SECONDS, help="length of small pictures")
    parser.add_argument("--match", nargs="+", default=[""], help="clips whose name holds one of")
    parser.add_argument("--source", type=directory, help="another checkout to measure")
    parser.add_argument("--python", default=sys.executable, help="interpreter of that checkout")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        wanted = [name for name in _CLIPS | _LARGE if any(part in name for part in options.match)]
        files = options.files or [_clip(folder, name, options.seconds) for name in wanted]
        figures = []
        for file in files:
            figures.append(_measured(file, options))
            print(figures[-1], file=sys.stderr)
    headings = ("file", "frames", "ffprobe", "trial", "before", "vfsd", "ratio", "decoded")
    rows = [
        (
            *(m.file, m.frames, m.ffprobe, m.trial, "" if m.before is None else m.before),
            *(m.vfsd, m.ratio, "all" if m.decoded else "trial"),
        )
        for m in figures
    ]
    print(table(headings, rows))
    passed = all(m.ratio <= _BOUND for m in figures)
    finish(options, "ingest_codecs", [asdict(m) for m in figures], passed=passed)


def _clip(folder: Path, name: str, seconds: int) -> Path:
    path = folder / name
    if not path.exists():
        part = path.with_name(f"part-{name}")
        codec, *options = (_CLIPS | _LARGE)[name]
        size = "1280x720" if name in _LARGE else "256x144"
        seconds = _LARGE_SECONDS if name in _LARGE else seconds
        source = f"testsrc2=size={size}:rate={_RATE}:duration={seconds}"
        command = ["ffmpeg", "-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", source]
        command += ["-c:v", codec, *options, str(part)]
        subprocess.run(command, check=True)
        part.rename(path)
    return path


def _measured(path: Path, options: Any) -> Measured:
    probed: list[float] = []
    tried: list[float] = []
    taken: list[float] = []
    before: list[float] = []
    for _ in range(options.runs):
        probed.append(_of_children(lambda: _probe(path)))
        with _decoding() as spent:
            start = _user(resource.RUSAGE_SELF)
            found = examine(path)
            taken.append(_user(resource.RUSAGE_SELF) - start)
            tried.append(sum(spent))
        if options.source and (not before or before[-1] < 20):
            before.append(_elsewhere(path, options.python, options.source))
    return Measured(
        path.name,
        len(found.order),
        min(probed),
        min(tried),
        min(taken),
        min(before) if before else None,
        found.verified,
    )


@contextmanager
def _decoding() -> Iterator[list[float]]:
    """Collects the CPU seconds of each decoder call while the examiner tries packets.

    System time is included, because the kernel accounts user time in ticks that are too coarse.
    """
    spent: list[float] = []

    def timed(*given: Any) -> Any:
        start = time.thread_time()
        try:
            return decode(*given)
        finally:
            spent.append(time.thread_time() - start)

    with patch.object(examining, "decode", timed), patch.object(trying, "decode", timed):
        yield spent


def _probe(path: Path) -> None:
    command = ["ffprobe", "-v", "error", "-select_streams", "v", "-show_packets", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _elsewhere(path: Path, python: str, source: Path) -> float:
    command = [python, "-c", _EXAMINE_ELSEWHERE, str(path.resolve())]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, check=True, cwd=source, env=environment, stdout=subprocess.PIPE)
    return float(json.loads(done.stdout)[0])


def _of_children(work: Callable[[], None]) -> float:
    start = _user(resource.RUSAGE_CHILDREN)
    work()
    return _user(resource.RUSAGE_CHILDREN) - start


def _user(whom: int) -> float:
    return resource.getrusage(whom).ru_utime


if __name__ == "__main__":
    main()
