"""Cameras that see the same scene: detected pairs, and the savings of joining them.

Discovery: all clips of the footage (without it, generated ones) go into a store and are searched.
Four fifths of the pairs known to show the same place at the same time must be found, at least at
some moments, and no other pair.  Pairs at different speeds may agree at some moments, but not at
all of them.

Joining, simulated: two windows of wider clips, the right one warped and with another exposure, both
with independent noise, become three pieces.  The pieces are encoded with the tile codec `fast`, and
so are both windows for comparison.  The frames are reassembled from the decoded pieces and compared
with the source.  With the merge `unprojected`, the left frame in the pieces is bit-exact before
encoding.

Joining in a store: the same cameras, and filmed pairs, are joined, and stored as whole tiles at the
same rate factor for comparison.  Every frame of both must reach 30 dB, and `fsck` must find
nothing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, finish, footage, table
from benchmarks.joined import show_stored, stored
from benchmarks.joining import joining, show_joining
from sample_videos.cameras import Cameras, FilmedScene, write_pictures
from sample_videos.scene import Scene
from vfsd.api.store import Store
from vfsd.overlap import overlaps
from vfsd.overlap.overlap_pair import Verdict

SEEN_TOGETHER = (
    ("derived_futsal_left_1280x720", "derived_futsal_right_1280x720"),
    ("derived_futsal_left_1280x720", "futsal_1080p"),
    ("derived_futsal_right_1280x720", "futsal_1080p"),
    ("office_a_640x480", "office_b_640x480"),
    ("roof_left_270x480", "roof_right_270x480"),
    ("nflx_BirdsInCage_1080p", "nflx_BirdsInCage_1080p_hevc"),
    ("derived_mosaic_4k_hevc", "nflx_OldTownCross_1080p"),
    ("derived_mosaic_4k_hevc", "nflx_Seeking_1080p"),
)
"""Pairs in the footage that show the same place at the same time."""
OTHER_SPEED = (
    ("derived_mosaic_4k_hevc", "nflx_BirdsInCage_1080p"),
    ("derived_mosaic_4k_hevc", "nflx_BirdsInCage_1080p_hevc"),
    ("derived_mosaic_4k_hevc", "nflx_Tennis_1080p"),
)
"""The mosaic has 25 frames a second of what was filmed with 30 and 24: they drift apart, so that
some moments agree."""
RECALL_BOUND = 0.8


def main() -> None:
    parser = arguments(__doc__, runs=1)
    parser.add_argument("--frames", type=int, default=48, help="that are encoded of each pair")
    parser.add_argument("--width", type=int, default=960, help="pixels of a camera's picture")
    parser.add_argument("--quality", type=int, default=23, help="rate factor")
    parser.add_argument("--only", choices=("discovery", "joining", "joined"), help="one part of it")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    passed = True
    if options.only in (None, "discovery"):
        figures["discovery"] = discovery()
        passed &= show_discovery(figures["discovery"])
    if options.only in (None, "joining"):
        figures["joining"] = list(joining(options.width, options.frames, options.quality))
        passed &= show_joining(figures["joining"])
    if options.only in (None, "joined"):
        figures["joined"] = list(stored(options.width, options.frames, options.quality))
        passed &= show_stored(figures["joined"])
    finish(options, "overlap", figures, passed=passed)


@dataclass(frozen=True)
class Clips:
    files: Sequence[Path]
    together: Sequence[tuple[str, str]]  #: names without suffixes
    drifting: Sequence[tuple[str, str]]


def discovery() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clips = filmed_clips() or generated_clips(folder)
        with Store.create(folder / "store") as store:
            for path in clips.files:
                store.ingest(path, path.stem, link=True)
            start, cpu = time.perf_counter(), time.process_time()
            report = overlaps(store)
            wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    rows = [
        {
            "left": pair.left.name,
            "right": pair.right.name,
            "verdict": str(pair.overlap.verdict),
            "why": pair.overlap.why,
            "fixed": pair.overlap.fixed,
            "shares": list(pair.overlap.shares),
            "psnr": [pair.overlap.agreement.psnr_left, pair.overlap.agreement.psnr_right],
            "movement": pair.overlap.agreement.movement,
            "saved": pair.common_share,
            "truth": truth(clips, pair.left.name, pair.right.name),
        }
        for pair in report.pairs
    ]
    found = [row for row in rows if row["truth"] == "together"]
    agreeing = [row for row in found if row["verdict"] != Verdict.REFUSED]
    whole = (Verdict.JOIN, Verdict.COPY)
    wrong = [
        row
        for row in rows
        if (row["truth"] == "apart" and row["verdict"] != Verdict.REFUSED)
        or (row["truth"] == "drifting" and row["verdict"] in whole)
    ]
    return {
        "videos": report.videos,
        "pairs": report.videos * (report.videos - 1) // 2,
        "compared": report.compared,
        "unreadable": len(report.unreadable),
        "together": len(clips.together),
        "found": len(found),
        "agreeing": len(agreeing),
        "recall": len(agreeing) / len(clips.together),
        "false_joins": len(wrong),
        "seconds": wall,
        "cpu": cpu,
        "rows": rows,
    }


def truth(clips: Clips, one: str, other: str) -> str:
    for name, pairs in (("together", clips.together), ("drifting", clips.drifting)):
        if (one, other) in pairs or (other, one) in pairs:
            return name
    return "apart"


def filmed_clips() -> Clips | None:
    if not (footage() / "pairs").is_dir():
        return None
    files = [path for place in ("real", "pairs") for path in sorted((footage() / place).iterdir())]
    return Clips(files, SEEN_TOGETHER, OTHER_SPEED)


def generated_clips(folder: Path) -> Clips:
    """Two pairs, a later minute of one of their cameras, and unrelated scenes."""
    files, together = [], []
    for seed, overlap in ((1, 0.5), (2, 0.75)):
        filmed = FilmedScene.of(Cameras(overlap=overlap), frames=130, seed=seed)
        for side, picture in (("left", filmed.left), ("right", filmed.right)):
            files.append(folder / f"{side}{seed}.mp4")
            write_pictures(files[-1], map(picture, range(65)))
        together.append((f"left{seed}", f"right{seed}"))
        files.append(folder / f"later{seed}.mp4")
        write_pictures(files[-1], map(filmed.left, range(65, 130)))
    for seed in (3, 4):
        files.append(folder / f"other{seed}.mp4")
        write_pictures(files[-1], map(Scene(frames=65, seed=seed).frame, range(65)))
    return Clips(files, together, ())


def show_discovery(found: dict[str, Any]) -> bool:
    rows = [
        (
            row["left"],
            row["right"],
            row["truth"],
            row["verdict"],
            "fixed" if row["fixed"] else "moving",
            " ".join(f"{share:.0%}" for share in row["shares"]),
            " ".join(f"{value:.1f}" for value in row["psnr"]),
            "" if row["movement"] is None else f"{row['movement']:.2f}",
            f"{row['saved']:.0%}",
        )
        for row in found["rows"]
    ]
    heads = ("left", "right", "truth", "verdict", "cameras", "in common", "dB", "movement", "saves")
    print(table(heads, rows))
    print(
        f"\n{found['videos']} videos, {found['pairs']} pairs, {found['compared']} compared, in "
        f"{found['seconds']:.1f} s ({found['cpu']:.1f} s of CPU time); found {found['found']} of "
        f"{found['together']}, {found['agreeing']} of them agree; "
        f"{found['false_joins']} false joins",
        flush=True,
    )
    return found["recall"] >= RECALL_BOUND and not found["false_joins"] and not found["unreadable"]


if __name__ == "__main__":
    main()
