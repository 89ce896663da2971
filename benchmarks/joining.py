"""Joining overlapping cameras, simulated: cut, encode, decode and reassemble."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from benchmarks.common import footage, table
from sample_videos.cameras import Cameras
from sample_videos.scene import Scene
from vfsd.codecs.cells.cell_decoders import cell_decoder
from vfsd.codecs.cells.cell_encoders import encode_cells, tile_codec
from vfsd.codecs.cells.overlap_geometry import PixelArray, SeamCut, image_size, inverse_homography
from vfsd.codecs.cells.pack import CellStream, PackedCell
from vfsd.codecs.cells.plane_merge import (
    MERGES,
    ExposureMatch,
    MergeFunction,
    mean_square,
    psnr_of_square,
    warp_with_mask,
)
from vfsd.codecs.frames.quality import SourcePicture
from vfsd.core.model import MediaInfo
from vfsd.overlap.overlap_pair import Overlap, VideoSamples, compare_videos, features_of
from vfsd.tiling import Rect

WIDE = (
    "real/futsal_1080p.mp4",
    "real/nflx_BirdsInCage_1080p.mp4",
    "real/nflx_OldTownCross_1080p.mp4",
)
OVERLAPS = (0.3, 0.5, 0.75)

MEAN_PSNR_BOUND = 30.0
SAVED_BOUNDS = {0.3: 0.33, 0.75: 0.45}
"""VSS's figure: what is saved at such an overlap, where each picture has those dB and no more."""
COARSEST = 51
OF_LIMIT_BOUND = 0.8
"""Saved bytes of all clips with an overlap, relative to the saved pixels.  Two frames that share a
part save half of it."""


@dataclass(frozen=True)
class Source:
    """The source of wide frames."""

    name: str
    rate: Fraction
    frames: Callable[[tuple[int, int], int], Iterator[PixelArray]]  #: (size, number of frames)
    noise: float  #: noise of the simulated cameras; filmed clips have their own


def joining(width: int, frames: int, quality: int) -> Iterator[dict[str, Any]]:
    """The results of joining for each clip and overlap, with that many frames and cameras of
    that width."""
    for source in sources():
        for overlap in OVERLAPS:
            cameras = Cameras(
                width, width * 9 // 32 * 2, overlap, noise=source.noise, gain=1.06, bias=-4
            )
            wide = list(source.frames(cameras.field, frames))
            left = [cameras.left(picture, at) for at, picture in enumerate(wide)]
            right = [cameras.right(picture, at) for at, picture in enumerate(wide)]
            found = overlap_of(left, right, source.rate)
            row = {"clip": source.name, "overlap": overlap}
            if found is None or found.cut is None or found.swapped:
                yield {**row, "found": False}
                continue
            yield {**row, "found": True, **measured(left, right, found, quality)}


def sources() -> Iterator[Source]:
    def generated(size: tuple[int, int], count: int) -> Iterator[PixelArray]:
        width, height = size
        scene = Scene(width, height, frames=count, noise=0, density=0.1, seed=1, numbered=False)
        return map(scene.frame, range(count))

    yield Source("generated", Fraction(30), generated, 2.0)
    for clip in WIDE:
        path = footage() / clip
        if path.exists():
            yield Source(path.stem, Fraction(25), lambda *what, path=path: filmed(path, *what), 1.0)


def filmed(path: Path, size: tuple[int, int], count: int) -> Iterator[PixelArray]:
    """The largest part of each frame with those proportions, scaled."""
    width, height = size
    with av.open(str(path)) as file:
        for at, frame in enumerate(file.decode(video=0)):
            if at == count:
                return
            picture = frame.to_ndarray(format="rgb24")
            rows, columns = picture.shape[:2]
            scale = min(columns / width, rows / height)
            across, down = int(width * scale), int(height * scale)
            x, y = (columns - across) // 2, (rows - down) // 2
            part = picture[y : y + down, x : x + across]
            method = cv2.INTER_AREA if scale > 1 else cv2.INTER_CUBIC
            yield np.asarray(cv2.resize(part, size, interpolation=method), dtype=np.uint8)


def overlap_of(left: list[PixelArray], right: list[PixelArray], rate: Fraction) -> Overlap | None:
    """The overlap as a store finds it, but from five moments of these frames in their own size."""
    chosen = np.unique(np.linspace(0, len(left) - 1, 5).astype(int)).tolist()
    sides = []
    for pictures in (left, right):
        shown = {Fraction(at) / rate: pictures[at] for at in chosen}
        sides.append(
            VideoSamples(
                image_size(pictures[0]),
                len(pictures) / rate,
                1_000_000,
                shown,
                {moment: features_of(picture) for moment, picture in shown.items()},
            )
        )
    return compare_videos(*sides)


def measured(
    left: list[PixelArray], right: list[PixelArray], found: Overlap, quality: int
) -> dict[str, Any]:
    cut, light = found.cut, found.agreement.exposure
    assert cut is not None
    apart = [coded(pictures, quality) for pictures in (left, right)]
    separate = sum(size for size, _ in apart)
    result: dict[str, Any] = {
        "verdict": str(found.verdict),
        "shares": list(found.shares),
        "limit": 1 - (cut.left_kept + cut.right_kept) / 2,
        "estimate": found.common_bytes / 2_000_000,
        "separate": separate,
        "psnr": [psnr(shown, seen) for (_, shown), seen in zip(apart, (left, right), strict=True)],
        "merges": {},
    }
    for name, merge in MERGES.items():
        result["merges"][name] = joined(left, right, found, merge, quality, separate)
    result["coarse"] = coarsest(left, right, found, quality, separate)
    pieces = split_pair(left[0], right[0], cut, light, MERGES["unprojected"])
    result["untouched"] = bool(
        np.array_equal(restore_left(pieces, cut), left[0])
        and np.array_equal(pieces.right, right[0][:, cut.edge :])
    )
    return result


def coarsest(
    left: list[PixelArray], right: list[PixelArray], found: Overlap, quality: int, separate: int
) -> dict[str, Any]:
    """The mean of both, encoded as coarsely as the PSNR of VSS permits for both sides."""
    low, high = quality, COARSEST + 1  # good enough; too coarse
    best = joined(left, right, found, MERGES["mean"], low, separate)
    while high - low > 1:
        middle = (low + high) // 2
        tried = joined(left, right, found, MERGES["mean"], middle, separate)
        if min(tried["psnr"]) >= MEAN_PSNR_BOUND:
            low, best = middle, tried
        else:
            high = middle
    apart = sum(coded(pictures, low)[0] for pictures in (left, right))
    return {**best, "quality": low, "apart": 1 - apart / separate}


def joined(
    left: list[PixelArray],
    right: list[PixelArray],
    found: Overlap,
    merge: MergeFunction,
    quality: int,
    separate: int,
) -> dict[str, Any]:
    """Size and quality of a pair that is stored in pieces."""
    cut, light = found.cut, found.agreement.exposure
    assert cut is not None
    pieces = [split_pair(a, b, cut, light, merge) for a, b in zip(left, right, strict=True)]
    coded_pieces = [
        coded([getattr(one, part) for one in pieces], quality)
        for part in ("left", "middle", "right")
    ]
    again = [
        OverlapPieces(*three) for three in zip(*(shown for _, shown in coded_pieces), strict=True)
    ]
    size = sum(size for size, _ in coded_pieces)
    return {
        "bytes": size,
        "saved": 1 - size / separate,
        "psnr": [
            psnr([restore_left(one, cut) for one in again], left),
            psnr([restore_right(one, cut, light) for one in again], right),
        ],
    }


def coded(pictures: list[PixelArray], quality: int) -> tuple[int, list[PixelArray]]:
    """(bytes, decoded frames) of frames as one cell; empty if they have no pixels."""
    width, height = image_size(pictures[0])
    if not width:
        return 0, pictures
    media = MediaInfo("mp4", "h264", None, width, height, "yuv420p", Fraction(1, 30), Fraction(30))
    frames = (
        av.VideoFrame.from_ndarray(np.ascontiguousarray(one), format="rgb24").reformat(
            format="yuv420p"
        )
        for one in pictures
    )
    codec = tile_codec("fast", media)
    ((cell, _),) = encode_cells(
        codec, media, {Rect.of_size(width, height): quality}, map(SourcePicture, frames)
    )
    return sum(map(len, cell.packets)), [one[:height, :width] for one in decoded(cell)]


def decoded(cell: CellStream) -> list[PixelArray]:
    decoder = cell_decoder(PackedCell(cell.codec, cell.width, cell.height, cell.extradata, (0, 0)))
    shown = [found for packet in cell.packets for found in decoder.decode(memoryview(packet))]
    shown += decoder.drain()
    if [at for at, _ in shown] != list(range(len(cell.packets))):
        raise ValueError("a piece does not decode to its pictures")
    return [np.asarray(picture.to_ndarray(format="rgb24"), np.uint8) for _, picture in shown]


def psnr(shown: Sequence[PixelArray], seen: Sequence[PixelArray]) -> float:
    """PSNR of luma over all frames together, in dB."""
    squares = [mean_square(luma(a), luma(b)) for a, b in zip(shown, seen, strict=True)]
    return psnr_of_square(float(np.mean(squares)))


def luma(picture: PixelArray) -> PixelArray:
    return np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), dtype=np.uint8)


def show_joining(rows: list[dict[str, Any]]) -> bool:
    cells = []
    passed = True
    for row in rows:
        if not row["found"]:
            cells.append((row["clip"], f"{row['overlap']:.0%}", "not found", *[""] * 9))
            passed = False
            continue
        first, second = row["merges"]["unprojected"], row["merges"]["mean"]
        cells.append(
            (
                row["clip"],
                f"{row['overlap']:.0%}",
                row["verdict"],
                f"{row['limit']:.1%}",
                f"{row['estimate']:.1%}",
                " ".join(f"{value:.1f}" for value in row["psnr"]),
                f"{first['saved']:.1%}",
                " ".join(f"{value:.1f}" for value in first["psnr"]),
                f"{second['saved']:.1%}",
                " ".join(f"{value:.1f}" for value in second["psnr"]),
                row["untouched"],
                f"{row['coarse']['saved']:.0%}, {row['coarse']['apart']:.0%}",
            )
        )
        passed &= row["untouched"] and min(second["psnr"]) >= MEAN_PSNR_BOUND
    heads = (
        "clip",
        "overlap",
        "verdict",
        "pixels saved",
        "estimate",
        "dB apart",
        "unprojected saves",
        "dB",
        "mean saves",
        "dB ",
        "left untouched",
        f"at {MEAN_PSNR_BOUND:g} dB: mean, apart",
    )
    print()
    print(table(heads, cells), flush=True)
    for overlap in OVERLAPS:
        alike = [row for row in rows if row["overlap"] == overlap and row["found"]]
        if alike:
            limit = float(np.mean([row["limit"] for row in alike]))
            saved = {name: saved_together(alike, name) for name in MERGES}
            passed &= all(part >= OF_LIMIT_BOUND * limit for part in saved.values())
            words = ", ".join(f"{name} {part:.1%}" for name, part in saved.items())
            print(f"\n{overlap:.0%}: {limit:.1%} of the pixels; all clips together: {words}")
            coarse = saved_of([row["coarse"] for row in alike], alike)
            passed &= coarse >= SAVED_BOUNDS.get(overlap, 0)
            print(f"  as coarse as {MEAN_PSNR_BOUND:g} dB allow: {coarse:.1%}")
    return passed


def saved_together(rows: Sequence[dict[str, Any]], merge: str) -> float:
    """The saved share of the bytes of all clips."""
    return saved_of([row["merges"][merge] for row in rows], rows)


def saved_of(found: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> float:
    joined_bytes = sum(int(one["bytes"]) for one in found)
    return 1 - joined_bytes / sum(int(row["separate"]) for row in rows)


@dataclass(frozen=True, eq=False)
class OverlapPieces:
    """The three pieces of two pictures; a piece may have no columns."""

    left: PixelArray
    middle: PixelArray
    right: PixelArray


def split_pair(
    left: PixelArray, right: PixelArray, cut: SeamCut, light: ExposureMatch, merge: MergeFunction
) -> OverlapPieces:
    """Cut a pair of RGB pictures into pieces."""
    middle, seen = warp_with_mask(light.to_left(right), cut.to_middle, cut.middle)
    common = _common_part(cut)
    middle[common] = merge(left[:, cut.seam :], middle[common].copy(), seen[common])
    return OverlapPieces(left[:, : cut.seam].copy(), middle, right[:, cut.edge :].copy())


def restore_left(pieces: OverlapPieces, cut: SeamCut) -> PixelArray:
    """Return the left picture from the pieces."""
    return np.hstack([pieces.left, pieces.middle[_common_part(cut)]])


def restore_right(pieces: OverlapPieces, cut: SeamCut, light: ExposureMatch) -> PixelArray:
    """Return the right picture from the pieces."""
    size = cut.edge, cut.right[1]
    laid, _ = warp_with_mask(pieces.middle, inverse_homography(cut.to_middle), size)
    return np.hstack([light.to_right(laid), pieces.right])


def _common_part(cut: SeamCut) -> tuple[slice, slice]:
    place = cut.left_in_middle
    return slice(place.y1, place.y2), slice(place.x1, place.x2)
