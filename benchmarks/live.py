"""A mount under reads, without any command: its tuner makes tiles.

Two mounts show the same video.  One makes tiles where logged reads justify them; the other has
``tune = false``.  Both get the same reads, one right after the other: regions as raw RGB, and crops
of detected objects, at a few places and times that recur.  Reads come in bursts, and the mount is
idle between them.  The report has, for the first, the second and the last third of all reads:
seconds of decoding by their plans (from the store's log of reads), and the CPU time of the mounts'
processes as the system counts it.  All pixels are compared with a full decode of the original by
PyAV; those of the mount without tiles must be equal.

While tiles are made, whole frames of another video are occasionally read through both mounts, each
frame once and at the same distance from its key frame.  This compares the latency of the working
mount with that of the idle one.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from benchmarks.common import arguments, finish, footage, repeated, table
from benchmarks.mounting import vfsd_mount
from sample_videos.encoding import Encoding
from sample_videos.scene import Scene
from sample_videos.truth import GroundTruth
from sample_videos.writing import write
from vfsd.api.store import Store
from vfsd.core.detections import Detection
from vfsd.core.model import LoggedRead
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import StoreDirectory
from vfsd.tiling import Rect

CLIP, BOXES = "futsal_1080p.mp4", "futsal_1080p.motion.csv"
STRANGER, TURNS = "phone_pan_campus_720p.mp4", 20
"""A clip with a key frame every second, and the number of its repetitions."""
INTO_GOP, PROBED = 12, 4
"""The distance of probed frames from their key frame, and the number of probes."""
NAME, OTHER = "live.mp4", "other.mp4"
TUNER = "user.vfsd.tuner"
MAKING = "making"

DECODING_BOUND = 0.5
LATENCY_BOUND = 1.2
PSNR_BOUND, LEAST_PSNR = 36.0, 30.0
"""dB of RGB, of all reads that tiles were used for together, and of each: what is promised is 40 dB
of luma for a tile and a second, and people read those parts of it in which most happens."""

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Part:
    """A file below ``NAME@/``, and its expected contents."""

    path: str
    frames: range
    region: Rect


@dataclass(frozen=True)
class Request:
    """One request of a reader."""

    kind: str  #: region or label
    parts: tuple[Part, ...]


@dataclass
class Contestant:
    """One of the mounts, and its measurements."""

    name: str
    store: Path
    at: Path
    pid: int = 0
    cpu: list[float] = field(default_factory=list)  #: by request
    seconds: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)  #: mean squared error, by request
    probes: list[float] = field(default_factory=list)  #: seconds, while tiles were made
    #: the same kind of read right afterwards, while the mount was idle
    controls: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Subject:
    """A clip, and boxes by frame."""

    path: Path
    label: str
    boxes: Mapping[int, Sequence[Rect]]  #: in the order of insertion into the index
    width: int
    height: int
    frames: int
    other: Path  #: another clip


def main() -> None:
    parser = arguments(__doc__, runs=1)
    parser.add_argument("--small", action="store_true", help="a generated scene, to try it out")
    parser.add_argument("--seconds", type=float, default=60.0, help="of video")
    parser.add_argument("--bursts", type=int, default=24, help="of reads")
    parser.add_argument("--reads", type=int, default=8, help="in each burst")
    parser.add_argument("--pause", type=float, default=10.0, help="seconds after each")
    parser.add_argument("--probes", type=int, default=3, help="reads at most in a pause")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-load", type=int, default=60, help="setting tune_max_load")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        make = generated_subject if options.small else filmed_subject
        subject = make(work, options.seconds)
        requests = workload(subject, options.bursts * options.reads, options.seed)
        truth = Truth(subject, requests)
        tuned = Contestant("tuned", work / "tuned", work / "mnt-tuned")
        plain = Contestant("not tuned", work / "plain", work / "mnt-plain")
        for one, tune in ((tuned, True), (plain, False)):
            make_store(one.store, subject, StoreSettings(tune=tune, tune_max_load=options.max_load))
        with vfsd_mount(tuned.store, tuned.at), vfsd_mount(plain.store, plain.at):
            for one in (tuned, plain):
                one.pid = int(str((StoreDirectory.open(one.store).mounted_by() or {})["pid"]))
            replay(requests, truth, (tuned, plain), options)
        figures = figures_of(requests, tuned, plain)
    passed = report(figures)
    finish(options, "live", figures, passed=passed)


# ----------------------------------------------------------------------------------- the subject


def filmed_subject(work: Path, seconds: float) -> Subject:
    """A real clip in a loop, with its ground-truth boxes; a generated scene if it is missing."""
    clip, gt = footage() / "real" / CLIP, footage() / "gt" / BOXES
    if not clip.exists() or not gt.exists():
        return generated_subject(work, seconds)
    with open(gt, newline="", encoding="utf-8") as file:
        rows = [
            (int(row["frame"]), whole(*(float(row[side]) for side in ("x1", "y1", "x2", "y2"))))
            for row in csv.DictReader(file)
        ]
    width, height, once, rate = facts(clip)
    times = max(1, math.ceil(seconds * rate / once))
    boxes: dict[int, list[Rect]] = {}
    for frame, box in rows:
        for turn in range(times):
            boxes.setdefault(frame + turn * once, []).append(box)
    other = repeated(footage() / "real" / STRANGER, TURNS, work)
    return Subject(repeated(clip, times, work), "moving", boxes, width, height, times * once, other)


def generated_subject(work: Path, seconds: float) -> Subject:
    """A scene with a single key frame, and one with many."""
    clip, other = work / "scene.mp4", work / "other-scene.mp4"
    frames = int(30 * seconds)
    write(Scene(width=640, height=352, frames=frames), Encoding(gop=frames), clip)
    write(Scene(width=640, height=352, frames=frames), Encoding(gop=INTO_GOP + PROBED), other)
    boxes = {
        frame: [whole(box.x1, box.y1, box.x2, box.y2) for box in seen if box.label == "car"]
        for frame, seen in enumerate(GroundTruth.load(clip).boxes)
    }
    width, height, frames, _ = facts(clip)
    return Subject(clip, "car", boxes, width, height, frames, other)


def facts(clip: Path) -> tuple[int, int, int, float]:
    """Width, height, number of frames, and frame rate."""
    with av.open(str(clip)) as container:
        stream = container.streams.video[0]
        frames = sum(1 for packet in container.demux(stream) if packet.size)
        return stream.width, stream.height, frames, float(stream.average_rate or 25)


def whole(x1: float, y1: float, x2: float, y2: float) -> Rect:
    return Rect(math.floor(x1), math.floor(y1), math.ceil(x2), math.ceil(y2))


def make_store(root: Path, subject: Subject, settings: StoreSettings) -> None:
    """A store with both clips, fully decoded once, and boxes."""
    with Store.create(root) as store:
        settings.save(store.parts.directory.settings)
        for name, path in ((NAME, subject.path), (OTHER, subject.other)):
            store.ingest(path, name).verify()
        store[NAME].labels.add(
            [
                Detection(frame, subject.label, (box.x1, box.y1, box.x2, box.y2))
                for frame, boxes in sorted(subject.boxes.items())
                for box in boxes
            ],
            "boxes",
        )


# ---------------------------------------------------------------------------------- what is read


def workload(subject: Subject, count: int, seed: int) -> list[Request]:
    """Requests for regions and for objects, half of each; some places and times are far more
    frequent.

    No two requests are equal, so no cache of finished views answers them.
    """
    chance = random.Random(seed)
    width, height = even(subject.width / 6), even(subject.height / 5)
    places = [
        (chance.randrange(subject.width - width - 16), chance.randrange(subject.height - height))
        for _ in range(2)
    ]
    length = min(15, subject.frames // 4)
    moments = [chance.randrange(subject.frames - 2 * length) for _ in range(8)]
    often = [1 / (rank + 1) for rank in range(len(moments))]
    requests = []
    for number in range(count):
        (moment,) = chance.choices(moments, often)
        first = moment + chance.randrange(length)
        if number % 2:
            x, y = chance.choices(places, (2, 1))[0]
            x += chance.randrange(16)
            region = Rect(x, y, x + width, y + height)
            frames = range(first, first + length)
            path = f"frames={first}-{first + length},roi={region}.rgb"
            requests.append(Request("region", (Part(path, frames, region),)))
        else:
            requests.append(label_request(subject, range(first, first + length, 3)))
    return requests


def label_request(subject: Subject, frames: range) -> Request:
    """The crops of all objects on some frames."""
    parts = [
        Part(f"objects/{subject.label}/{frame:06}-{number}.npy", range(frame, frame + 1), box)
        for frame in frames
        for number, box in enumerate(subject.boxes.get(frame, ()))
    ]
    return Request("label", tuple(parts))


def even(length: float) -> int:
    return max(2, int(length) // 2 * 2)


class Truth:
    """Expected results of all requests, from one full decode of the clip."""

    def __init__(self, subject: Subject, requests: Sequence[Request]) -> None:
        self._cuts: dict[tuple[int, Rect], Pixels] = {}
        wanted: dict[int, set[Rect]] = {}
        for part in (part for request in requests for part in request.parts):
            for frame in part.frames:
                wanted.setdefault(frame, set()).add(part.region)
        with av.open(str(subject.path)) as container:
            for index, picture in enumerate(container.decode(video=0)):
                if index not in wanted:
                    continue
                rgb: Pixels = picture.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
                for at in wanted[index]:
                    self._cuts[index, at] = rgb[at.y1 : at.y2, at.x1 : at.x2].copy()

    def error(self, request: Request, found: Sequence[Pixels]) -> float:
        """Mean squared error over all samples of a request; 0 if all are equal."""
        total = count = 0.0
        for part, pixels in zip(request.parts, found, strict=True):
            right = np.stack([self._cuts[frame, part.region] for frame in part.frames])
            total += float(np.square(np.subtract(right, pixels, dtype=np.float32)).sum())
            count += right.size
        return total / max(1.0, count)


def decibels(error: float) -> float:
    return 10 * math.log10(255**2 / error) if error else math.inf


# ------------------------------------------------------------------------------------- reading


def replay(
    requests: Sequence[Request],
    truth: Truth,
    mounts: tuple[Contestant, Contestant],
    options: argparse.Namespace,
) -> None:
    chance = random.Random(options.seed)
    others = probed_places(mounts[0].store)
    chance.shuffle(others)
    for number, request in enumerate(requests):
        answers = []
        for one in mounts if number % 2 else mounts[::-1]:
            answers.append((one, read(one, request)))
        for one, found in answers:
            one.errors.append(truth.error(request, found))
        if (number + 1) % options.reads == 0:
            rest(mounts, others, options)
            if sys.stderr.isatty():
                print(f"\r{number + 1} of {len(requests)} reads", end="", file=sys.stderr)


def read(one: Contestant, request: Request) -> list[Pixels]:
    """The data that a mount serves; records the latency and the CPU time of its process."""
    cpu, began = own_cpu(one.pid), time.perf_counter()
    data = [(one.at / f"{NAME}@" / part.path).read_bytes() for part in request.parts]
    one.seconds.append(time.perf_counter() - began)
    one.cpu.append(own_cpu(one.pid) - cpu)
    return [pixels(part, text) for part, text in zip(request.parts, data, strict=True)]


def pixels(part: Part, data: bytes) -> Pixels:
    if part.path.endswith(".npy"):
        picture: Pixels = np.load(io.BytesIO(data))
        return picture[None]
    shape = (len(part.frames), part.region.height, part.region.width, 3)
    return np.frombuffer(data, np.uint8).reshape(shape)


def rest(
    mounts: tuple[Contestant, Contestant], others: list[int], options: argparse.Namespace
) -> None:
    """A pause between bursts; while tiles are made, another client reads."""
    tuned, plain = mounts
    end = time.monotonic() + options.pause
    left = options.probes
    while (now := time.monotonic()) < end:
        if left and len(others) > 1 and is_making(tuned):
            left -= 1
            # After the first of these reads, the working mount pauses its tuner for a second.
            first, second = others.pop(), others.pop()
            for one in (tuned, plain):
                one.probes.append(seconds_of_probe(one, first))
            for one in (tuned, plain):
                one.controls.append(seconds_of_probe(one, second))
        time.sleep(min(0.2, max(0.0, end - now)))


def probed_places(root: Path) -> list[int]:
    """The first frames of the probes, all at the same distance from their key frames."""
    with Store.open(root, read_only=True) as store:
        return [
            gop.first_frame + INTO_GOP
            for gop in store.catalog.gops(store[OTHER].original)
            if gop.frames >= INTO_GOP + PROBED
        ]


def is_making(one: Contestant) -> bool:
    return os.getxattr(one.at, TUNER).decode().startswith(MAKING)


def seconds_of_probe(one: Contestant, first: int) -> float:
    began = time.perf_counter()
    (one.at / f"{OTHER}@" / f"frames={first}-{first + PROBED}.yuv").read_bytes()
    return time.perf_counter() - began


def own_cpu(pid: int) -> float:
    """CPU seconds of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ------------------------------------------------------------------------------------- figures


def figures_of(requests: Sequence[Request], tuned: Contestant, plain: Contestant) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for one in (tuned, plain):
        decoding = decoding_of(one, requests)
        figures[one.name] = {
            "decoding": thirds(decoding),
            "cpu": thirds(one.cpu),
            "seconds": thirds(one.seconds),
            "exact": sum(not error for error in one.errors),
            "psnr": finite(decibels(mean_of_wrong(one.errors))),
            "worst_psnr": finite(decibels(max(one.errors))),
            "probes": one.probes,
            "controls": one.controls,
        }
    with Store.open(tuned.store, read_only=True) as store:
        segments = store.catalog.segments(store[NAME].info)
        figures["segments"] = len(segments)
        figures["bytes"] = sum(segment.size for segment in segments)
    figures["reads"] = len(requests)
    figures["probes"] = len(tuned.probes)
    return figures


def decoding_of(one: Contestant, requests: Sequence[Request]) -> list[float]:
    """Seconds of decoding that the plan of each request predicts, from the store's log of reads."""
    with Store.open(one.store, read_only=True) as store:
        reads: list[LoggedRead] = list(store.catalog.reads(store[NAME].info))[::-1]
    if len(reads) != sum(len(request.parts) for request in requests):
        raise SystemExit(f"{one.name}: {len(reads)} reads are remembered, which is not all")
    left = iter(reads)
    return [sum(next(left).predicted for _ in request.parts) for request in requests]


def thirds(values: Sequence[float]) -> list[float]:
    """The means of the first, second and last third."""
    return [float(np.mean(part)) for part in np.array_split(np.array(values), 3)]


def p95(values: Sequence[float]) -> float:
    return float(np.percentile(values, 95))


def mean_of_wrong(errors: Sequence[float]) -> float:
    wrong = [error for error in errors if error]
    return float(np.mean(wrong)) if wrong else 0.0


def finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def report(figures: dict[str, Any]) -> bool:
    tuned, plain = figures["tuned"], figures["not tuned"]
    rows = [
        (what, name, *(value * 1000 for value in figures[name][key]))
        for what, key in (
            ("decoding by plan", "decoding"),
            ("CPU of the mount", "cpu"),
            ("waiting", "seconds"),
        )
        for name in ("not tuned", "tuned")
    ]
    print(table(("ms a read", "mount", "first third", "second", "last"), rows))
    print(
        f"\n{figures['reads']} reads, {figures['segments']} segments of "
        f"{figures['bytes'] / 1e6:.1f} MB; equal to the original: {plain['exact']} without tiles, "
        f"{tuned['exact']} with them, the others {tuned['psnr'] or math.inf:.1f} dB together and "
        f"{tuned['worst_psnr'] or math.inf:.1f} at worst"
    )
    passed: bool = plain["exact"] == figures["reads"]
    for psnr, bound in ((tuned["psnr"], PSNR_BOUND), (tuned["worst_psnr"], LEAST_PSNR)):
        passed &= psnr is None or psnr >= bound
    passed &= tuned["decoding"][2] <= DECODING_BOUND * plain["decoding"][2]
    if figures["probes"]:
        ratio, control = (p95(tuned[key]) / p95(plain[key]) for key in ("probes", "controls"))
        print(
            f"p95 of {figures['probes']} reads while tiles are made: {ratio:.2f} of that of the "
            f"mount that makes none; right after, while it pauses: {control:.2f}"
        )
        passed &= ratio <= LATENCY_BOUND
    else:
        print("no reads happened while tiles were made")
        passed = False
    return passed


if __name__ == "__main__":
    main()
