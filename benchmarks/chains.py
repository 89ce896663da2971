"""Chains of encodings: does the error bound against the first version always hold?

Each clip is encoded ten times in a row, each time from the previous result, at random qualities,
in one codec or in all of them alternately.  After each step the bound (the sum of the errors of all
steps) is compared with the error measured against the first version; it must never be lower.
For comparison: the bound that VSS's code would report, and the error of encoding the first version
directly at each step's quality
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import av
import numpy as np

from benchmarks.common import arguments, existing_file, finish, footage, table
from vfsd.codecs.encoding.archive_encoder import (
    ARCHIVE_CODECS,
    ArchiveCodec,
    decode_run,
    encode_run,
    frame_error,
)
from vfsd.codecs.probing.probe import examine
from vfsd.core.model import MediaInfo, psnr_from_error

STEPS = 10
CLIPS = (
    "nflx_OldTownCross_1080p.mp4",
    "detrac_crossing_960x540.mp4",
    "otv_cyclist_800x600.mp4",
    "phone_pan_campus_720p.mp4",
    "suburb_road_a_640x352.mp4",
)
SAMPLES = ("traffic.mp4", "portrait.mp4")
CHAINS = {
    "h264": ("h264",),
    "hevc": ("hevc",),
    "av1": ("av1",),
    "by turns": ("h264", "hevc", "av1"),
}


@dataclass(frozen=True)
class Step:
    """The state after a number of encodings; PSNR in dB, of the worst plane of the worst frame."""

    clip: str
    chain: str
    number: int
    codec: str
    quality: int
    measured: float  #: against the first version
    bound: float  #: the lower bound that follows from the errors of the steps
    vss: float  #: the same by 2 (a + b)
    alone: float  #: of this step, against the previous version


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--frames", type=int, default=30, help="of each clip")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("files", nargs="*", type=existing_file, help="default: some of the footage")
    options = parser.parse_args()
    folder = footage()
    real = [folder / "real" / name for name in CLIPS]
    files = options.files or [path for path in real if path.exists()]
    files = files or [folder / name for name in SAMPLES]
    steps = [
        step
        for path in files
        for name, codecs in CHAINS.items()
        for step in chain(path, name, codecs, options.frames, options.steps)
    ]
    rows = []
    for name in CHAINS:
        mine = [step for step in steps if step.chain == name]
        for number in sorted({1, 2, 5, options.steps}):
            at = [step for step in mine if step.number == number]
            if at:
                rows.append((name, number, *(_range(at, key) for key in _SHOWN)))
    print(table(("codec", "steps", *_SHOWN.values()), rows))
    broken = [step for step in steps if step.measured < step.bound - 1e-9]
    slack = [step.measured - step.bound for step in steps]
    print(f"\n{len(steps)} steps, {len(broken)} above their bound")
    print(f"the bound is {np.median(slack):.2f} dB below what is measured (median)")
    figures = {
        "steps": [asdict(step) for step in steps],
        "violations": len(broken),
        "slack": {"median": float(np.median(slack)), "most": max(slack), "least": min(slack)},
    }
    finish(options, "chains", figures, passed=not broken)


_SHOWN = {
    "alone": "each step, dB",
    "measured": "measured, dB",
    "bound": "bound, dB",
    "vss": "bound of VSS's code, dB",
}


def _range(steps: Sequence[Step], key: str) -> str:
    values = [getattr(step, key) for step in steps]
    return f"{min(values):.1f} to {max(values):.1f}"


def chain(path: Path, name: str, codecs: Sequence[str], frames: int, steps: int) -> list[Step]:
    """Encode the first frames of a clip repeatedly, each time from the previous result."""
    media, first = _opened(path, frames)
    rng = np.random.default_rng(len(path.name) + steps)
    now, total, vss = first, 0.0, 0.0
    found = []
    for number in range(1, steps + 1):
        codec = ARCHIVE_CODECS[codecs[(number - 1) % len(codecs)]]
        low, high = (8, 34) if codec.name != "av1" else (12, 50)
        quality = int(rng.integers(low, high))
        now, error = _encoded(codec, media, quality, now)
        total += error
        vss = error**2 if number == 1 else 2 * (vss + error**2)
        measured = max(frame_error(a, b) for a, b in zip(first, now, strict=True))
        found.append(
            Step(
                path.name,
                name,
                number,
                codec.name,
                quality,
                psnr_from_error(measured),
                psnr_from_error(total),
                psnr_from_error(math.sqrt(vss)),
                psnr_from_error(error),
            )
        )
    return found


def _opened(path: Path, frames: int) -> tuple[MediaInfo, list[av.VideoFrame]]:
    media = examine(path).media
    with av.open(str(path)) as opened:
        pictures = []
        for picture in opened.decode(video=0):
            pictures.append(picture)
            if len(pictures) == frames:
                break
    return media, pictures


def _encoded(
    codec: ArchiveCodec, media: MediaInfo, quality: int, pictures: Sequence[av.VideoFrame]
) -> tuple[list[av.VideoFrame], float]:
    run = encode_run(codec, media, quality, pictures)
    return list(decode_run(codec, run)), run.error


if __name__ == "__main__":
    main()
