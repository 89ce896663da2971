"""Finds videos of a store that show the same place, and draws two of them in one picture.

Color signatures select candidate pairs; only those are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.cells.overlap_geometry import (
    Homography,
    PixelArray,
    PointArray,
    cut_at_seam,
    image_corners,
    image_size,
    project_points,
)
from vfsd.codecs.cells.plane_merge import warp_with_mask
from vfsd.core.view_request import View
from vfsd.errors import IntegrityError, UsageError, VfsdError
from vfsd.labels.detectors import fit_size
from vfsd.overlap.join_encoder import require_joinable
from vfsd.overlap.overlap_pair import Overlap, Verdict, VideoSamples, compare_videos, features_of
from vfsd.read.read_context import ReadContext
from vfsd.read.read_executor import PlanExecutor
from vfsd.read.read_plan import plan_frames

Signature = npt.NDArray[np.float32]
"""3 x 256 (whole, left half, right half): square roots of the shares of colours."""

# Overlapping pairs had at most 0.27; the median of all pairs of different clips is 0.56.
RADIUS = 0.4
"""Maximum Hellinger distance of the nearest parts of two candidates."""
# Overlapping ones came first or second.
MAX_NEIGHBORS = 8
"""Nearest neighbours of a video that are compared."""

# Bins of lightness and the two colours: cameras differ more in exposure than in hue.
_BINS = (4, 8, 8)
# Videos that are compared with all others at a time.
_BLOCK = 256

LONGEST = 640
"""Longer side in pixels of the examined pictures."""
# Seconds: cameras adjust their exposure first.
_FIRST = Fraction(1, 2)
# Examined moments per video: up to 17 minutes.
_MOST_MOMENTS = 12
# Videos whose pictures and features are cached: at most 15 MB each.
_CACHED_VIDEOS = 16

SearchProgress = Callable[[str, int, int], None]
"""Called with (current step, done, total); may raise to cancel."""

_MARGIN = 12
_FONT = cv2.FONT_HERSHEY_DUPLEX
_BACKGROUND_COLOR = (24, 24, 24)
_TEXT_COLOR = (255, 255, 255)

# Pixels of a line of text.
_LINE = 30


def color_signature(pictures: Sequence[PixelArray]) -> Signature:
    """Return the signature of pictures of one video, of any size."""
    total = np.zeros((3, _BINS[0] * _BINS[1] * _BINS[2]))
    for picture in pictures:
        lab = cv2.cvtColor(picture, cv2.COLOR_RGB2LAB)
        middle = max(1, lab.shape[1] // 2)
        for part, pixels in enumerate((lab, lab[:, :middle], lab[:, -middle:])):
            histogram = cv2.calcHist(
                [np.ascontiguousarray(pixels)], [0, 1, 2], None, list(_BINS), [0, 256] * 3
            )
            total[part] += histogram.ravel() / pixels[..., 0].size
    return np.sqrt(total / len(pictures)).astype(np.float32)


def candidate_pairs(
    signatures: Sequence[Signature], *, most: int = MAX_NEIGHBORS, radius: float = RADIUS
) -> list[tuple[int, int]]:
    """Return pairs i < j in which one is among the `most` nearest of the other, within `radius`.

    At most `most` times the number of videos; ascending.
    """
    count = len(signatures)
    if count < 2:
        return []
    parts = np.concatenate(signatures)
    each = len(signatures[0])
    found: set[tuple[int, int]] = set()
    for first in range(0, count, _BLOCK):
        block = parts[first * each : (first + _BLOCK) * each]
        alike = (block @ parts.T).reshape(-1, each, count, each).max(axis=(1, 3))
        near = np.sqrt(np.clip(1 - alike, 0, None))
        for i, distances in enumerate(near, start=first):
            distances[i] = np.inf  # a video is not its own neighbor
            nearest = np.argpartition(distances, min(most, count - 1))[:most]
            found.update((min(i, j), max(i, j)) for j in nearest.tolist() if distances[j] <= radius)
    return sorted(found)


@dataclass(frozen=True, eq=False, slots=True)
class VideoPair:
    """Two videos that show the same place."""

    left: Video
    right: Video
    overlap: Overlap

    def __repr__(self) -> str:
        return (
            f"<VideoPair {self.left.name!r} and {self.right.name!r}: "
            f"{self.overlap.verdict.value}, {self.common_share:.2f} in common>"
        )

    @property
    def is_one_file(self) -> bool:
        """Whether both have the same bytes, which are stored once."""
        return self.overlap.verdict is Verdict.SAME

    @property
    def common_share(self) -> float:
        """`Overlap.common_bytes` as a share of both files."""
        return self.overlap.common_bytes / (self.left.info.size + self.right.info.size)


@dataclass(frozen=True, eq=False, slots=True)
class OverlapReport:
    """The result of a search."""

    pairs: Sequence[VideoPair]  #: by falling common bytes, refused ones last
    videos: int  #: number of examined videos
    compared: int  #: number of compared pairs, with similar colours
    unreadable: Mapping[str, VfsdError]  #: errors by name

    def __repr__(self) -> str:
        return (
            f"<OverlapReport: {self.videos} videos, {self.compared} pairs compared, "
            f"{len(self.pairs)} show the same place, {len(self.joinable)} can be joined, "
            f"{len(self.unreadable)} videos unreadable>"
        )

    @property
    def joinable(self) -> Sequence[VideoPair]:
        """The pairs that are not refused."""
        return [pair for pair in self.pairs if pair.overlap.verdict is not Verdict.REFUSED]


def sample_times(duration: Fraction) -> tuple[Fraction, ...]:
    """Return the moments to examine, in seconds; 0 for a short video."""
    times = tuple(_FIRST * 2**power for power in range(_MOST_MOMENTS))
    return tuple(time for time in times if time < duration) or (Fraction(0),)


def overlaps(
    store: Store,
    names: str | Iterable[str] | None = None,
    *,
    on_progress: SearchProgress | None = None,
) -> OverlapReport:
    """Find the pairs of these videos (default: all) that show the same place.

    A few frames of each video are decoded, and those with similar colors are compared.  All
    timelines are assumed to start at the same time.  `on_progress` is called with (the current
    step, done, total).
    """
    tools, videos = store.tools, list(store.find()) if names is None else store.named(names)
    report = on_progress or (lambda what, done, total: None)
    reader = _SampleReader(tools)
    seen, signatures = [], []
    unreadable: dict[str, VfsdError] = {}
    for done, video in enumerate(videos):
        report("examining videos", done, len(videos))
        try:
            pictures = reader.pictures(video)
        except VfsdError as error:
            unreadable[video.name] = error
            continue
        seen.append(video)
        signatures.append(color_signature(list(pictures.values())))
    near = candidate_pairs(signatures)
    pairs = []
    for done, (i, j) in enumerate(near):
        report("comparing pairs", done, len(near))
        found = _compare(reader, seen[i], seen[j])
        if found is not None:
            pairs.append(found)
    report("comparing pairs", len(near), len(near))
    pairs.sort(key=lambda pair: (-pair.overlap.common_bytes, pair.left.name, pair.right.name))
    return OverlapReport(pairs, len(seen), len(near), unreadable)


def overlap(store: Store, one: str, other: str) -> VideoPair | None:
    """Compare two videos; return None if they do not show the same place.

    Raises `IntegrityError` for one that cannot be read.
    """
    return compare_pair(store.tools, store[one], store[other])


def compare_pair(tools: ReadContext, one: Video, other: Video) -> VideoPair | None:
    """Compare two videos as `overlap` does."""
    return _compare(_SampleReader(tools), one, other)


def frame_of(tools: ReadContext, video: Video, time: Fraction) -> PixelArray:
    """Return the displayed frame on screen at `time`, in its own size.

    Raises `OutOfRangeError`, `IntegrityError`.
    """
    picture: PixelArray = _frames(tools, video, (time,), (video.width, video.height))[0]
    return picture


def _frames(
    tools: ReadContext, video: Video, times: Sequence[Fraction], size: tuple[int, int]
) -> Sequence[PixelArray]:
    """Decode frames from the original, without logging the read."""
    frames = np.array([video.index_at(time) for time in times], dtype=np.int64)
    plan = plan_frames(frames, View(size=size), video.original, context_of(video).table)
    try:
        return list(PlanExecutor(context_of(video).table, tools).execute(plan))
    except OSError as error:
        raise IntegrityError(f"{video.name!r} cannot be read: {error}") from error


def _compare(reader: _SampleReader, one: Video, other: Video) -> VideoPair | None:
    found = compare_videos(reader.moments(one), reader.moments(other))
    if found is None:
        return None
    found = _with_shared_bytes(found, one, other)
    return VideoPair(other, one, found) if found.swapped else VideoPair(one, other, found)


def _with_shared_bytes(found: Overlap, one: Video, other: Video) -> Overlap:
    """Refine the verdict by stored bytes and pixel formats."""
    if found.verdict is Verdict.REFUSED:
        return found
    if one.info.digest == other.info.digest:
        return replace(
            found, verdict=Verdict.SAME, why="already stored once: the same bytes", common_bytes=0
        )
    try:
        require_joinable(one.original.media, other.original.media)
    except UsageError as error:
        return replace(found, verdict=Verdict.REFUSED, why=str(error), common_bytes=0)
    return found


class _SampleReader:
    """Reads and caches the samples of videos."""

    def __init__(self, tools: ReadContext) -> None:
        self._tools = tools
        self.pictures = lru_cache(_CACHED_VIDEOS)(self._read)
        self.moments = lru_cache(_CACHED_VIDEOS)(self._described)

    def _read(self, video: Video) -> Mapping[Fraction, PixelArray]:
        times = sample_times(video.duration)
        size = fit_size(video.width, video.height, LONGEST)
        return dict(zip(times, _frames(self._tools, video, times, size), strict=True))

    def _described(self, video: Video) -> VideoSamples:
        pictures = self.pictures(video)
        return VideoSamples(
            (video.width, video.height),
            video.duration,
            video.info.size,
            pictures,
            {time: features_of(picture) for time, picture in pictures.items()},
        )


_LONGEST, _NARROWEST = 1600, 800
"""Maximum of the longer side, and minimum of the width, which leaves room for text."""
_LEFT, _RIGHT, _SEAM = (255, 220, 40), (90, 200, 250), (255, 120, 110)


def draw_pair(tools: ReadContext, pair: VideoPair, time: Fraction) -> PixelArray:
    """Return the frames of both at `time`, below lines with the results.

    For cameras that move relative to each other, uses the homography of the nearest examined
    moment. Raises `OutOfRangeError` after the end of either, and `IntegrityError`.
    """
    found = pair.overlap
    nearest = min(range(len(found.times)), key=lambda at: abs(found.times[at] - time))
    left, right = frame_of(tools, pair.left, time), frame_of(tools, pair.right, time)
    return draw(left, right, found.matrices[nearest], pair)


def draw(left: PixelArray, right: PixelArray, matrix: Homography, pair: VideoPair) -> PixelArray:
    """Draw two displayed frames of a pair; `matrix` maps the right one to the left one."""
    found = pair.overlap
    quad = project_points(matrix, image_corners(image_size(right)))
    around = np.concatenate([quad, image_corners(image_size(left))])
    low, high = around.min(axis=0), around.max(axis=0)
    across, longest = float(high[0] - low[0]), float((high - low).max())
    scale = min(max(1.0, _NARROWEST / across), _LONGEST / longest)
    place = np.array(
        [
            [scale, 0, _MARGIN - low[0] * scale],
            [0, scale, _MARGIN - low[1] * scale],
            [0, 0, 1],
        ]
    )
    width, height = (int(side) + 2 * _MARGIN for side in (high - low) * scale)
    canvas = _blended(left, found.agreement.exposure.to_left(right), place, matrix, (width, height))
    _outline(canvas, project_points(place, image_corners(image_size(left))), _LEFT)
    _outline(canvas, project_points(place, quad), _RIGHT)
    names = [("left: " + pair.left.name, _LEFT), ("right: " + pair.right.name, _RIGHT)]
    here = None if found.cut is None else cut_at_seam(matrix, image_size(left), image_size(right))
    if here is not None:
        seam = np.array([[here.seam, 0], [here.seam, left.shape[0] - 1]], np.float64)
        edge = np.array([[here.edge, 0], [here.edge, right.shape[0] - 1]], np.float64)
        _dashed(canvas, project_points(place, seam), _SEAM)
        _dashed(canvas, project_points(place @ matrix, edge), _SEAM)
        names.append((f"cut at column {here.seam} and {here.edge}", _SEAM))
    seen = found.agreement
    lines = [
        f"{found.verdict}{': ' if found.why else ''}{found.why}",
        f"{found.shares[0]:.0%} and {found.shares[1]:.0%} in common, {seen.psnr_left:.1f} and "
        f"{seen.psnr_right:.1f} dB, {'fixed' if found.fixed else 'moving'}"
        + (f", {pair.common_share:.0%} of both in common" if found.common_bytes else ""),
    ]
    heading = [*((line, _TEXT_COLOR) for line in lines), *names]
    return np.vstack([_headline(canvas.shape[1], heading), canvas])


def _blended(
    left: PixelArray,
    right: PixelArray,
    place: Homography,
    matrix: Homography,
    size: tuple[int, int],
) -> Any:
    """Return the mean of both where they overlap."""
    one, here = warp_with_mask(left, place, size)
    other, there = warp_with_mask(right, place @ matrix, size)
    canvas = np.full((size[1], size[0], 3), _BACKGROUND_COLOR, np.uint8)
    canvas[here] = one[here]
    canvas[there] = other[there]
    both = here & there
    canvas[both] = cv2.addWeighted(one, 0.5, other, 0.5, 0)[both]
    return canvas


def _outline(canvas: Any, polygon: PointArray, colour: tuple[int, int, int]) -> None:
    points = polygon.round().astype(np.int32)
    cv2.polylines(canvas, [points], True, colour, 2, cv2.LINE_AA)


def _dashed(canvas: Any, ends: PointArray, colour: tuple[int, int, int]) -> None:
    start, stop = ends
    count = max(1, int(np.linalg.norm(stop - start) / 12))
    for part in range(0, count, 2):
        a, b = (start + (stop - start) * min(1, at / count) for at in (part, part + 1))
        cv2.line(canvas, _pixel(a), _pixel(b), colour, 2, cv2.LINE_AA)


def _pixel(point: Any) -> tuple[int, int]:
    return round(float(point[0])), round(float(point[1]))


def _headline(width: int, lines: Sequence[tuple[str, tuple[int, int, int]]]) -> PixelArray:
    strip: Any = np.full((_LINE * len(lines) + _MARGIN, width, 3), _BACKGROUND_COLOR, np.uint8)
    for at, (text, colour) in enumerate(lines):
        plain = text.encode("ascii", "replace").decode()  # the font has only ASCII
        size = 0.62
        while size > 0.2 and cv2.getTextSize(plain, _FONT, size, 1)[0][0] > width - 2 * _MARGIN:
            size *= 0.95
        base = _MARGIN, _LINE * (at + 1) - 6
        cv2.putText(strip, plain, base, _FONT, size, colour, 1, cv2.LINE_AA)
    return np.asarray(strip, dtype=np.uint8)
