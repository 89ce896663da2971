"""Storage for two overlapping cameras: their files, separate replacements, and a joint of both.

The program estimates the size of a store after the files of joined videos were removed.  Each pair
is joined.  The files are also replaced separately, by encodings with the same PSNR (of the worst
plane of the worst frame, for either side).  Finally, the pieces of the joint are encoded like
replacements instead of cells, at the coarsest quality that gives both sides that PSNR.  This last
step is simulated: no store keeps such pieces.

All sizes are those of objects in a store, or of packets.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av

from benchmarks.common import arguments, finish, table
from benchmarks.joined import camera_pairs
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.codecs import VideoFrame
from vfsd.codecs.cells.plane_merge import PlaneJoint, PlaneMerger, plane_mean_squares
from vfsd.codecs.encoding.archive_encoder import archive_codec, decode_run, encode_run
from vfsd.codecs.frames.color import blank_like
from vfsd.codecs.frames.planes import plane_samples
from vfsd.codecs.frames.transforms import cut_out
from vfsd.core.model import psnr_from_mse
from vfsd.errors import NotFoundError, NothingSavedError
from vfsd.overlap import join, split
from vfsd.overlap.join_encoder import JoinFit, JoinSettings
from vfsd.tiling import Rect

CODEC = "hevc"
_FINEST, _COARSEST = 6, 40
_SLACK = 0.05
"""Tolerance of a bound in dB: encoders work in steps."""

Decibels = tuple[float, float]
"""PSNR of the left and of the right side."""


@dataclass(frozen=True)
class Pieces:
    """Total size of the pieces of a joint."""

    bytes: int
    psnr: Decibels


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--width", type=int, default=640, help="of a camera's pictures")
    parser.add_argument("--frames", type=int, default=48, help="of each camera")
    parser.add_argument("--only", nargs="+", default=[""], help="pairs whose name holds any of it")
    options = parser.parse_args()
    rows = []
    for name, left, right in camera_pairs(options.width, options.frames):
        if any(part in name for part in options.only):
            rows.append({"pair": name, **measured(left, right)})
            print(as_row(rows[-1]), flush=True)
    if not rows:
        parser.error(f"no pair's name holds any of {', '.join(options.only)}")
    headings = ("pair", "files, kB", "and the joint", "joint, cells", "dB, left right")
    more = ("each replaced", "dB", "pieces like these", "dB", "saves")
    print(table((*headings, *more), [cells(row) for row in rows]))
    finish(options, "covers", rows, passed=all("each" in row or "refused" in row for row in rows))


def measured(left: Path, right: Path) -> dict[str, Any]:
    """Bytes of objects, and PSNR of both sides, for each way to store a pair."""
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "store") as store:
        for path, name in ((left, "left.mp4"), (right, "right.mp4")):
            store.ingest(path, name).policy.set("original=replaceable,psnr=20")
        files = _stored(store)
        try:
            report = join(store, "left.mp4", "right.mp4", JoinSettings())
        except NotFoundError as error:
            return {"refused": str(error)}
        if report.psnr is None or report.frames < len(store[report.left]):
            return {"refused": "not all pictures can be joined", "joined": report.frames}
        found: dict[str, Any] = {"files": files, "now": _stored(store)}
        found |= {"cells": report.bytes, "cells_psnr": report.psnr}
        sides = [_pictures(store, store[name]) for name in (report.left, report.right)]
        pieces = coded_pieces(store[report.left], store[report.right], sides, report.psnr)
        if pieces is not None:
            found |= {"pieces": pieces.bytes, "pieces_psnr": pieces.psnr}
        split(store, report.left, report.right)
        achieved = []
        for name, decibels in zip((report.left, report.right), report.psnr, strict=True):
            try:
                done = store[name].policy.replace_original(psnr=decibels - _SLACK, codec=CODEC)
                achieved.append(done.psnr)
            except NothingSavedError:
                achieved.append(float("inf"))
        return {**found, "each": _stored(store), "each_psnr": tuple(achieved)}


def coded_pieces(
    left: Video, right: Video, sides: Sequence[list[VideoFrame]], wanted: Decibels
) -> Pieces | None:
    """The pieces at the coarsest acceptable quality; None if no quality is good enough."""
    media = (left.original.media, right.original.media)
    fit = JoinFit(sides[0], sides[1], media, JoinSettings().merge)
    joint = next(fit.joints(None), None)
    if joint is None:
        return None
    best: Pieces | None = None
    low, high = _FINEST, _COARSEST
    while low <= high:
        quality = (low + high) // 2
        made = _coded(joint, left, sides, quality)
        if all(a >= b - _SLACK for a, b in zip(made.psnr, wanted, strict=True)):
            best, low = made, quality + 1
        else:
            high = quality - 1
    return best


def _coded(
    joint: PlaneJoint, like: Video, sides: Sequence[list[VideoFrame]], quality: int
) -> Pieces:
    weaver, cut = PlaneMerger(joint), joint.cut
    sources: dict[str, list[VideoFrame]] = {"left": [], "middle": [], "right": []}
    for one, other in zip(*sides, strict=True):
        middle = blank_like(one, *cut.middle)
        made = weaver.middle(plane_samples(one), plane_samples(other))
        for samples, plane in zip(plane_samples(middle), made, strict=True):
            samples[...] = plane
        sources["middle"].append(middle)
        if "left" in joint.pieces:
            sources["left"].append(_part(one, Rect(0, 0, cut.seam, cut.left[1])))
        if "right" in joint.pieces:
            sources["right"].append(_part(other, Rect(cut.edge, 0, *cut.right)))
    codec = archive_codec(CODEC, like.original.media)
    size, shown = 0, {}
    for piece in joint.pieces:
        pictures = sources[piece]
        media = dataclasses.replace(
            like.original.media, width=pictures[0].width, height=pictures[0].height
        )
        run = encode_run(codec, media, quality, pictures)
        size += run.size + len(run.configuration)
        shown[piece] = list(decode_run(codec, run))
    worst = [0.0, 0.0]
    for at, pair in enumerate(zip(*sides, strict=True)):
        planes = {piece: plane_samples(decoded[at]) for piece, decoded in shown.items()}
        out = [[plane.copy() for plane in plane_samples(one)] for one in pair]
        weaver.left(planes.get("left"), planes["middle"], out[0])
        weaver.right(planes["middle"], planes.get("right"), out[1])
        for side in range(2):
            worst[side] = max(
                worst[side], *plane_mean_squares(out[side], plane_samples(pair[side]))
            )
    return Pieces(size, (psnr_from_mse(worst[0], 255), psnr_from_mse(worst[1], 255)))


def _part(picture: VideoFrame, rect: Rect) -> VideoFrame:
    made = blank_like(picture, rect.width, rect.height)
    cut_out(picture, rect, made)
    return made


def _pictures(store: Store, video: Video) -> list[VideoFrame]:
    with av.open(str(store.parts.originals.path_of(video.original))) as file:
        return list(file.decode(video=0))


def _stored(store: Store) -> int:
    """The total size of all objects."""
    folder = store.parts.directory.objects
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def as_row(row: dict[str, Any]) -> str:
    return "| " + " | ".join(map(str, cells(row))) + " |"


def cells(row: dict[str, Any]) -> Sequence[object]:
    if "refused" in row:
        return (row["pair"], row["refused"], *[""] * 8)

    def kilobytes(key: str) -> object:
        return round(row[key] / 1000) if key in row else ""

    def decibels(key: str) -> str:
        return " ".join(f"{value:.1f}" for value in row.get(key, ()))

    saved = f"{1 - row['pieces'] / row['each']:.0%}" if "pieces" in row else ""
    return (
        *(row["pair"], kilobytes("files"), kilobytes("now"), kilobytes("cells")),
        *(decibels("cells_psnr"), kilobytes("each"), decibels("each_psnr")),
        *(kilobytes("pieces"), decibels("pieces_psnr"), saved),
    )


if __name__ == "__main__":
    main()
