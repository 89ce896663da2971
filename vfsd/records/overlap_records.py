"""Records of videos that show the same place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vfsd.overlap.join_videos import JoinedPair
    from vfsd.overlap.overlap_search import VideoPair


PAIR_FIELDS = {
    "left": "path from the root of the store",
    "right": "path from the root of the store",
    "verdict": "same (same bytes, stored once), copy (one shows exactly what the other shows), "
    "join (they agree at all moments), partly (at some moments) or refused",
    "sentence": "the verdict in a sentence",
    "why": "why it is refused or agrees only partly, or what is unknown; else empty",
    "fixed": "whether one homography fits all moments: false if the cameras move relative to "
    "each other",
    "shares": "[left, right]: fraction of each frame that the other one sees",
    "psnr": "[left, right]: dB of the common part against the other one",
    "movement": "1: the same objects move in both, 0: unrelated movement; null: nothing moves",
    "moments": "list of objects: seconds, psnr ([left, right]) and homography (3 rows; from "
    "right to left, pixels of displayed frames)",
    "exposure": "object: gains and offsets (red, green, blue) from levels of the right one to "
    "levels of the left one",
    "cut": "object: seam (left columns before it are in the left frame only) and edge (right "
    "columns from it on are in the right frame only), at the first moment; null without a cut",
    "common_bytes": "estimated bytes of the common part, in the file that has fewer; 0 if stored "
    "once. Joining takes more space, since the originals stay",
    "common": "the same as a fraction of both files",
}


def verdict_sentence(pair: VideoPair) -> str:
    """Return the verdict on two videos as a sentence, with the names of both."""
    left, right, found = pair.left.name, pair.right.name, pair.overlap
    cameras = "Fixed cameras" if found.fixed else "Cameras that move"
    seen = f"{found.shares[0]:.0%} of {left} and {found.shares[1]:.0%} of {right}"
    why = f": {found.why}" if found.why else ""
    match str(found.verdict):
        case "same":
            return f"{left} and {right} have the same bytes, which are stored once."
        case "copy":
            return f"One of {left} and {right} shows exactly the pixels of the other."
        case "join":
            return f"{cameras} see the same at the same time in {seen}, so both can be joined."
        case "partly":
            return f"{cameras} see the same in {seen}, but only at some moments{why}."
        case _:
            return f"{left} and {right} show the same place, but cannot be joined{why}."


def pair_record(pair: VideoPair) -> dict[str, Any]:
    found = pair.overlap
    seen = found.agreement
    return {
        "left": pair.left.name,
        "right": pair.right.name,
        "verdict": str(found.verdict),
        "sentence": verdict_sentence(pair),
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
        "common_bytes": found.common_bytes,
        "common": pair.common_share,
    }


JOINED_FIELDS = {
    "left": "path from the root of the store",
    "right": "path from the root of the store",
    "frames": "number of joined frames of each video",
    "segments": "list of objects: left and right ([first, end] of the frames), psnr ([left, "
    "right]: dB of the worst plane of the worst picture), bytes",
    "copied_frames": "number of frames of the right video that are equal to those of the left one",
    "bytes": "bytes stored for both, in addition to the originals",
    "psnr": "[left, right]: dB of the worst plane of the worst picture",
}


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
