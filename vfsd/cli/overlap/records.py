"""Pairs of videos as JSON, and as lines of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vfsd.cli.output import shown
from vfsd.core.timebase import human_bytes

if TYPE_CHECKING:
    from vfsd.overlap.join_videos import JoinedPair
    from vfsd.overlap.search import VideoPair

FIELDS = {
    "left": "path from the root of the store",
    "right": "path from the root of the store",
    "verdict": "same (both have the same bytes, which are stored once), copy (one shows just what "
    "the other does), join (they agree at all moments), "
    "partly (at some) or refused",
    "why": "it is refused, only partly good, or how far it is not known; else empty",
    "fixed": "whether one homography holds at all moments: false where the cameras move against "
    "each other",
    "shares": "[left, right]: the part of each frame that the other one sees",
    "psnr": "[left, right]: dB of what each shows there, as the other one shows it",
    "movement": "1: what moves is the same on both, 0: it has nothing to do with each other; null: "
    "nothing moves",
    "moments": "list of objects: seconds, psnr ([left, right]) and homography (3 rows; from "
    "right to left, pixels of displayed frames)",
    "exposure": "object: gains and offsets (red, green, blue) from the right one's levels to the "
    "left one's",
    "cut": "object: seam (columns of the left frame before it are left only) and edge (columns of "
    "the right frame from there on are right only), at the first moment; null without one",
    "common_bytes": "of what both see, about, in the file that has it in fewer; 0 where it is "
    "stored once. Joining does not save them while the originals stay: it takes more",
    "common": "the same as a part of both files",
}


def record(pair: VideoPair) -> dict[str, Any]:
    found = pair.overlap
    seen = found.agreement
    return {
        "left": pair.left.name,
        "right": pair.right.name,
        "verdict": str(found.verdict),
        "why": found.why,
        "fixed": found.fixed,
        "shares": list(found.shares),
        "psnr": [seen.psnr_left, seen.psnr_right],
        "movement": seen.movement,
        "moments": [
            {"seconds": float(time), "psnr": list(psnr), "homography": matrix.tolist()}
            for time, matrix, *psnr in zip(
                found.times, found.matrices, seen.left, seen.right, strict=True
            )
        ],
        "exposure": {
            "gains": list(seen.exposure.gains),
            "offsets": list(seen.exposure.offsets),
        },
        "cut": None if found.cut is None else {"seam": found.cut.seam, "edge": found.cut.edge},
        "common_bytes": found.common,
        "common": pair.common,
    }


HEADINGS = ("left", "right", "", "cameras", "of left", "of right", "dB", "in common", "")
ALIGNMENT = "<<<<>>>><"


def cells(pair: VideoPair) -> tuple[str, ...]:
    found = pair.overlap
    seen = found.agreement
    common = f"{human_bytes(found.common)} ({pair.common:.0%})" if found.common else "-"
    return (
        shown(pair.left.name),
        shown(pair.right.name),
        str(found.verdict),
        "fixed" if found.fixed else "moving",
        f"{found.shares[0]:.0%}",
        f"{found.shares[1]:.0%}",
        f"{seen.psnr_left:.1f}, {seen.psnr_right:.1f}",
        common,
        found.why,
    )


JOINED_FIELDS = {
    "left": "path from the root of the store",
    "right": "path from the root of the store",
    "frames": "of either, that are joined",
    "segments": "list of objects: left and right ([first, end] of the frames), psnr ([left, "
    "right]: dB of the worst plane of the worst picture), bytes",
    "copied_frames": "of the right one, that are nothing but those of the left one",
    "bytes": "that are stored for both, beside the originals",
    "psnr": "[left, right]: dB of the worst plane of the worst picture",
}
JOINED_HEADINGS = ("left", "right", "frames", "segments", "beside originals", "worst dB")
JOINED_ALIGNMENT = "<<>>>>"


def joined_record(pair: JoinedPair) -> dict[str, Any]:
    return {
        "left": pair.left,
        "right": pair.right,
        "frames": pair.frames,
        "segments": [
            {
                "left": [one.first_frame, one.end_frame],
                "right": [other.first_frame, other.end_frame],
                "psnr": [one.psnr, other.psnr],
                "bytes": one.size + other.size,
            }
            for one, other in pair.segments
        ],
        "copied_frames": pair.copied,
        "bytes": pair.bytes,
        "psnr": list(pair.psnr),
    }


def joined_cells(pair: JoinedPair) -> tuple[str, ...]:
    return (
        shown(pair.left),
        shown(pair.right),
        str(pair.frames),
        str(len(pair.segments)),
        human_bytes(pair.bytes),
        pair_of_psnr(pair.psnr),
    )


def pair_of_psnr(psnr: tuple[float, float]) -> str:
    """The left one's and the right one's."""
    return f"{psnr[0]:.1f}, {psnr[1]:.1f}"
