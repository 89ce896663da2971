"""Reads of many pictures: scans of labelled boxes or regions in the order of frames, crops of given
boxes, and `read_many` for requests on any videos.

A scan looks up labels first, so that only tiles with a wanted box are decoded.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, islice
from reprlib import repr as shown
from typing import Any, SupportsIndex, TypedDict, cast

import numpy as np

from vfsd.api.labels import VideoLabels
from vfsd.api.reading import ReadOptions, view_of
from vfsd.api.video import Video
from vfsd.core.detections import Detection, DetectionColumns, Source
from vfsd.core.frames import (
    Batch,
    Crop,
    CropRequest,
    Frames,
    crop_batches,
    frame_numbers,
    padded_rect,
    to_display_rect,
)
from vfsd.core.label_query import Labels, clauses_of
from vfsd.core.model import MediaInfo
from vfsd.core.process_control import OwnerProcess, available_cores
from vfsd.core.timebase import Span
from vfsd.core.view_request import Size, checked_size, exact_size, resolve_size
from vfsd.disk.checksums import merged
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.read.crop_reader import CropReader
from vfsd.read.read_context import VideoContext
from vfsd.read.read_log import ScanPurpose
from vfsd.tiling import Rect, Region, is_region_text, region_corners, region_error
from vfsd.validation import non_negative


class ScanOptions(TypedDict, total=False):
    """The arguments of `Video.scan` besides its labels."""

    span: Span | None
    frames: range | None
    region: Region | None
    source: str | Source | None
    min_confidence: float | None
    track: int | None
    padding: int
    psnr: float | None
    seen_in: Video | None


@dataclass(frozen=True, slots=True)
class SeenRun:
    """A run of frames that each have a box of the scan."""

    frames: range
    seconds: tuple[float, float]  #: from the first frame's appearance to the last one's end
    labels: tuple[str, ...]
    boxes: int


class Scan:
    """The pixels of boxes.  Made by `Video.scan`; may be used repeatedly.

    Results come in the order of frames, and within a frame in the order in which the boxes were
    added.  All cores decode ahead of the caller, by a few seconds of video at most.
    """

    def __init__(
        self,
        video: VideoContext,
        reader: CropReader,
        columns: DetectionColumns,
        *,
        padding: int,
    ) -> None:
        self._video = video
        self._physical = video.original
        self._reader = reader
        self._padding = padding
        media = video.original.media
        self._columns = columns.clipped(media.display_width, media.display_height).sorted_by_frame()

    def __repr__(self) -> str:
        frames = len(set(self._columns.frames.tolist()))
        return f"<Scan: {len(self)} boxes on {frames} frames>"

    def _repr_html_(self) -> str:
        """Return the first crops for a notebook, as many as are cheap to decode."""
        from vfsd.api.previews import crops_html

        return crops_html(self._video, self._boxes(), repr(self), len(self))

    def __len__(self) -> int:
        """Number of boxes."""
        return len(self._columns)

    # -- forms

    def crops(self, *, size: Size | None = None, format: str = "rgb24") -> Iterator[Crop]:
        """The pixels of each box, scaled to `size` (as for `Video.read`) if given.

        The pixels of a crop are rows x columns x channels, in `format`.
        """
        return self._reader.read(self._boxes(), size, format)

    def batches(self, count: int, size: Size, *, format: str = "rgb24") -> Iterator[Batch]:
        """Crops scaled to `size` (width, height), `count` at a time; the last batch may have fewer.

        Raises `UsageError`.
        """
        return crop_batches(self.crops(size=exact_size(size), format=format), count)

    def frames(self, *, size: Size | None = None, format: str = "rgb24") -> Iterator[Crop]:
        """Each whole frame with a box, once."""
        return self._reader.of_frames().read(self._whole_frames(), size, format)

    def tiles(self, *, size: Size | None = None, format: str = "rgb24") -> Iterator[Crop]:
        """The tiles of each frame's layout that hold a box; frames without tiles are whole."""
        return self._reader.read(self._touched_tiles(), size, format)

    def spans(self, *, gap: int = 0) -> list[SeenRun]:
        """Runs of frames with boxes, including up to `gap` frames without one in between.

        Raises `UsageError`.
        """
        gap = non_negative(gap, "gap")
        runs: list[tuple[int, int]] = []  # rows, half-open
        frames = self._columns.frames
        start = 0
        for row in range(1, len(frames) + 1):
            if row == len(frames) or frames[row] - frames[row - 1] > gap + 1:
                runs.append((start, row))
                start = row
        return [self._seen(low, high) for low, high in runs]

    # -- requests for the crop reader

    def _boxes(self) -> Iterator[CropRequest]:
        for detection in self._columns:
            yield CropRequest(detection.frame, self._rect(detection), (detection,))

    def _whole_frames(self) -> Iterator[CropRequest]:
        full = self._physical.media.frame_rect
        for frame, seen in self._by_frame():
            yield CropRequest(frame, full, seen)

    def _touched_tiles(self) -> Iterator[CropRequest]:
        media = self._physical.media
        for frame, seen in self._by_frame():
            segment = self._reader.segment_of(frame)
            if segment is None:
                yield CropRequest(frame, media.frame_rect, seen)
                continue
            for tile in segment.layout.tiles:
                shown = to_display_rect(tile, media)
                inside = tuple(one for one in seen if self._rect(one).intersection(shown))
                if inside:
                    yield CropRequest(frame, shown, inside)

    def _by_frame(self) -> Iterator[tuple[int, tuple[Detection, ...]]]:
        for frame, together in groupby(self._columns, lambda detection: detection.frame):
            yield frame, tuple(together)

    def _rect(self, detection: Detection) -> Rect:
        return padded_rect(detection, self._physical.media, self._padding)

    def _seen(self, low: int, high: int) -> SeenRun:
        rows = self._columns.select(slice(low, high))
        frames = range(int(rows.frames[0]), int(rows.frames[-1]) + 1)
        last = self._reader.table.frame(frames[-1])
        start = self._reader.table.frame_pts(frames.start)
        return SeenRun(
            frames,
            (self._reader.seconds(start), self._reader.seconds(last.pts + last.duration)),
            tuple(sorted({str(label) for label in rows.labels})),
            len(rows),
        )


@dataclass(frozen=True, slots=True)
class Interest:
    """A run of frames, and the regions of interest on each of them."""

    frames: range  #: may have a step
    regions: tuple[Rect, ...]  #: of the displayed frame; may be empty
    seen: DetectionColumns  #: the boxes behind the regions, by frame


class RegionScan:
    """Every frame's regions of interest.  Made by `Video.scan(roi=...)`; may be used repeatedly.

    Results come in the order of frames.  Runs without a region of interest are left out.  All cores
    decode ahead of the caller, by a few seconds of video.
    """

    def __init__(
        self, video: VideoContext, reader: CropReader, interests: Sequence[Interest]
    ) -> None:
        self._video = video
        self._media = video.original.media
        self._reader = reader
        self.interests = tuple(interests)  #: by time; together all frames that were asked for

    def __repr__(self) -> str:
        return f"<RegionScan: regions of interest on {len(self)} frames>"

    def _repr_html_(self) -> str:
        """Return the first areas for a notebook, as many as are cheap to decode."""
        from vfsd.api.previews import crops_html

        return crops_html(self._video, self._areas(), repr(self), len(self))

    def __len__(self) -> int:
        """Number of frames with a region of interest."""
        return sum(len(one.frames) for one in self.interests if one.regions)

    def tiles(self, *, size: Size | None = None, format: str = "rgb24") -> Iterator[Crop]:
        """The tiles of each frame's layout that hold a region; frames without tiles are whole."""
        return self._reader.read(self._tiles(), size, format)

    def areas(self, *, size: Size | None = None, format: str = "rgb24") -> Iterator[Crop]:
        """One picture of each frame: the bounding box of its regions."""
        return self._reader.read(self._areas(), size, format)

    def batches(self, count: int, size: Size, *, format: str = "rgb24") -> Iterator[Batch]:
        """Tiles scaled to one size (width, height), `count` at a time; the last may have fewer.

        Raises `UsageError`.
        """
        return crop_batches(self.tiles(size=exact_size(size), format=format), count)

    # -- requests for the crop reader

    def _tiles(self) -> Iterator[CropRequest]:
        for one in self.interests:
            if one.regions:
                for frame, seen in _by_frame(one):
                    for rect in self._held(frame, one.regions):
                        yield CropRequest(frame, rect, self._inside(rect, seen))

    def _areas(self) -> Iterator[CropRequest]:
        for one in self.interests:
            if one.regions:
                area = Rect.around(one.regions)
                for frame, seen in _by_frame(one):
                    yield CropRequest(frame, area, seen)

    def _held(self, frame: int, regions: Sequence[Rect]) -> list[Rect]:
        """The tiles of that frame that hold a part of a region."""
        segment = self._reader.segment_of(frame)
        if segment is None:
            return [self._media.frame_rect]
        shown = [to_display_rect(tile, self._media) for tile in segment.layout.tiles]
        return [rect for rect in shown if any(rect.intersection(region) for region in regions)]

    def _inside(self, rect: Rect, seen: Sequence[Detection]) -> tuple[Detection, ...]:
        return tuple(one for one in seen if padded_rect(one, self._media, 0).intersection(rect))


def interests_around(
    columns: DetectionColumns,
    media: MediaInfo,
    sequences: Sequence[range],
    examined: Sequence[range],
    *,
    padding: int,
) -> list[Interest]:
    """The regions of interest around boxes, for each of `sequences`, which are in order of time.

    A sequence without an `examined` frame may show anything: the whole frame is of interest.
    """
    rows = columns.clipped(media.display_width, media.display_height).sorted_by_frame()
    looked = merged(examined)
    found = []
    for frames in sequences:
        low, high = np.searchsorted(rows.frames, [frames.start, frames.stop])
        seen = rows.select(slice(int(low), int(high)))
        regions = tuple(dict.fromkeys(padded_rect(one, media, padding) for one in seen))
        place = bisect_right(looked, frames.start, key=lambda run: run.stop)
        known = place < len(looked) and looked[place].start < frames.stop
        found.append(Interest(frames, regions if regions or known else (media.frame_rect,), seen))
    return found


def _by_frame(interest: Interest) -> Iterator[tuple[int, tuple[Detection, ...]]]:
    """Every frame, with its boxes."""
    seen = {
        frame: tuple(together)
        for frame, together in groupby(interest.seen, lambda detection: detection.frame)
    }
    for frame in interest.frames:
        yield frame, seen.get(frame, ())


def scan_boxes(
    video: VideoContext,
    labels: Labels | None,
    *,
    frames: range | None,
    region: Region | None,
    source: str | Source | None,
    min_confidence: float | None,
    track: int | None,
    padding: int,
    psnr: float | None,
    seen_in: VideoContext,
) -> Scan:
    """A scan of the boxes that `VideoLabels.query` finds in `seen_in`; see `Video.scan`."""
    found = VideoLabels(seen_in).query(
        labels,
        frames=frames,
        region=region,
        source=source,
        min_confidence=min_confidence,
        track=track,
    )
    reader = _crop_reader(video, psnr, labels)
    return Scan(video, reader, found.columns(), padding=padding)


def scan_regions(
    video: VideoContext,
    roi: str | Region,
    *,
    frames: range | None,
    source: str | Source | None,
    padding: int,
    psnr: float | None,
    seen_in: VideoContext,
) -> RegionScan:
    """A scan of regions of interest on `frames`, by default all; see `Video.scan`."""
    place: str | Rect
    is_label = isinstance(roi, str) and not is_region_text(roi)
    place = str(roi) if is_label else _region_in(video, roi)
    chosen = range(video.original.frames) if frames is None else frames
    if not isinstance(chosen, range) or chosen.step < 1:
        raise UsageError(
            f"frames must be an ascending range, got {shown(frames)}",
            hint="boxes of single frames are found by `scan` without `roi`",
        )
    interests = _interests(video, seen_in, place, chosen, source, padding)
    return RegionScan(video, _crop_reader(video, psnr, place), interests)


def require_same_frames(video: VideoContext, other: VideoContext) -> None:
    """Raises `UsageError` unless both have as many frames of the same size."""
    one, two = video.original, other.original
    shape = one.media.display_width, one.media.display_height
    if (two.frames, two.media.display_width, two.media.display_height) != (one.frames, *shape):
        raise UsageError(f"{other.name!r} has other frames than {video.name!r}")


def _crop_reader(
    video: VideoContext, psnr: float | None, wanted: Labels | Rect | None
) -> CropReader:
    purpose = ScanPurpose()
    if isinstance(wanted, Rect):
        purpose = ScanPurpose(region=wanted)
    elif wanted is not None:
        # The log has lists of labels alone: without the rest, they match these boxes and others.
        plain = [one.labels for one in clauses_of(wanted) if one.is_plain]
        purpose = ScanPurpose(tuple(tuple(sorted(words)) for words in plain) or None)
    info = video.info
    return CropReader(info, video.table, video.tools, video.tiles(info, psnr), purpose)


def _region_in(video: VideoContext, roi: Region) -> Rect:
    rect = view_of(video.snapshot(), region=roi).region
    if rect is None or not video.original.media.frame_rect.contains(rect):
        raise OutOfRangeError(f"the region {roi} reaches outside the frame")
    return rect


def _interests(
    video: VideoContext,
    seen_in: VideoContext,
    roi: str | Rect,
    frames: range,
    source: str | Source | None,
    padding: int,
) -> list[Interest]:
    sequences = [run for run in video.sequences() if _among(run, frames)]
    if not isinstance(roi, str):
        nothing = DetectionColumns.of([], [], [])
        found = [Interest(run, (roi,), nothing) for run in sequences]
    else:
        # Without the warning of `VideoLabels.query`: a label that no source has used yet only means
        # that nothing was examined for it.
        seen = video.parts.catalog.detections.find(seen_in.info, roi, source=source).columns()
        labels = VideoLabels(seen_in)
        examined = labels.examined_for(roi) if source is None else labels.examined(source)
        looked = [one.frames for one in examined]
        media = video.original.media
        found = interests_around(seen, media, sequences, looked, padding=padding)
    return [dataclasses.replace(one, frames=_among(one.frames, frames)) for one in found]


def _among(run: range, frames: range) -> range:
    """The frames of `frames`, which may have a step, that are in a run."""
    steps = max(0, -(-(run.start - frames.start) // frames.step))
    return range(frames.start + steps * frames.step, min(run.stop, frames.stop), frames.step)


# -- crops of given boxes

CropOf = Detection | tuple[SupportsIndex, Region | Iterable[float]]
"""A frame and a box on it."""

_A_CROP = 'for example (7, (10, 20, 90, 80)) or (7, "80x60+10+20")'


def read_crops(
    video: VideoContext,
    boxes: Iterable[CropOf],
    size: Size | None,
    format: str,
    psnr: float | None,
) -> list[Crop]:
    """See `Video.crops`."""
    reader = _crop_reader(video, psnr, None)
    return _in_given_order(reader, _crop_requests(video, list(_several(boxes))), size, format)


def iterate_crops(
    video: VideoContext,
    boxes: Iterable[CropOf],
    size: Size | None,
    format: str,
    psnr: float | None,
    memory: int,
) -> Iterator[Crop]:
    """See `Video.iterate_crops`.  The arguments are checked before this returns, except the boxes,
    which are checked when they are used.
    """
    memory = non_negative(memory, "memory")
    size = None if size is None else checked_size(size)
    waiting = _several(boxes)
    return _windows(video, waiting, _crop_reader(video, psnr, None), size, format, memory)


def _windows(
    video: VideoContext,
    boxes: Iterator[CropOf],
    reader: CropReader,
    size: Size | None,
    format: str,
    memory: int,
) -> Iterator[Crop]:
    window: list[CropRequest] = []
    held = 0
    while some := list(islice(boxes, _BOXES_AT_ONCE)):
        for want in _crop_requests(video, some):
            sides = want.rect.width, want.rect.height
            width, height = sides if size is None else resolve_size(size, *sides)
            held += _BYTES_PER_PIXEL * width * height
            if held > memory and window:
                yield from _in_given_order(reader, window, size, format)
                window, held = [], _BYTES_PER_PIXEL * width * height
            window.append(want)
    yield from _in_given_order(reader, window, size, format)


_BOXES_AT_ONCE = 1024
_BYTES_PER_PIXEL = 3


def _in_given_order(
    reader: CropReader, wants: Sequence[CropRequest], size: Size | None, format: str
) -> list[Crop]:
    """Read the areas by frame, and return them in the order of `wants`."""
    order = sorted(range(len(wants)), key=lambda place: wants[place].frame)
    found: dict[int, Crop] = {}
    crops = reader.read((wants[place] for place in order), size, format, by_gop=True)
    for place, crop in zip(order, crops, strict=True):
        found[place] = crop
    return [found[place] for place in range(len(wants))]


def _several(boxes: Any) -> Iterator[CropOf]:
    if isinstance(boxes, Iterable) and not isinstance(boxes, (str, bytes, Mapping)):
        return iter(boxes)
    raise UsageError(f"boxes must be a list of (frame, box), got {shown(boxes)}", hint=_A_CROP)


def _crop_requests(video: VideoContext, boxes: Sequence[Any]) -> list[CropRequest]:
    """The whole pixels of the frame that each box touches.

    Raises `OutOfRangeError` for a frame outside the video and a box outside its frame, and
    `UsageError`.
    """
    original = video.original
    pairs = [_frame_and_box(one) for one in boxes]
    numbers = frame_numbers([frame for frame, _ in pairs], original.frames).tolist()
    full = original.media.frame_rect
    found = []
    for given, number, (_, box) in zip(boxes, numbers, pairs, strict=True):
        try:
            corners = [float(edge) for edge in region_corners(box)]
        except (TypeError, ValueError):
            raise region_error(box) from None
        if not (corners[0] < corners[2] and corners[1] < corners[3]):
            raise UsageError(f"region must have an area, got {shown(box)}")
        x1, y1 = (max(edge, 0.0) for edge in corners[:2])
        x2, y2 = min(corners[2], full.x2), min(corners[3], full.y2)
        if not (x1 < x2 and y1 < y2):
            raise OutOfRangeError(
                f"region must be within the frame of {full.width}x{full.height}, got {shown(box)}"
            )
        rect = Rect(math.floor(x1), math.floor(y1), math.ceil(x2), math.ceil(y2))
        found.append(CropRequest(number, rect, (given,) if isinstance(given, Detection) else ()))
    return found


def _frame_and_box(one: Any) -> tuple[Any, Any]:
    if isinstance(one, Detection):
        return one.frame, one.box
    if not isinstance(one, (str, bytes)):
        try:
            frame, box = one
            return frame, box
        except (TypeError, ValueError):
            pass
    raise UsageError(f"a crop must be (frame, box), got {shown(one)}", hint=_A_CROP)


# -- reads of many videos

Request = tuple[str, ReadOptions]
"""The name of a video, and arguments of `Video.read`."""
_HINT = 'give them as [("a.mp4", {"span": (1, 2)})]'


def read_many(
    open_video: Callable[[str], Video], requests: Iterable[Request], threads: int | None = None
) -> Iterator[Frames]:
    """The result of `Video.read` for each request, in their order.

    `threads` reads run at a time (default: one for each core).  One more result is ready ahead of
    the caller, so memory holds only a few.  The error of a read is raised when it is its turn; the
    later requests are dropped.  Raises `UsageError` for malformed requests, and in a forked child
    that continues the iteration of its parent.
    """
    known: dict[str, Video] = {}

    def read(request: Request) -> Frames:
        name, what = _pair(request)
        if name not in known:
            known[name] = open_video(name)
        return known[name].read(**what)

    hands = threads or available_cores()
    waiting = _one_by_one(requests)
    origin = OwnerProcess()
    executor = ThreadPoolExecutor(hands, thread_name_prefix="batch")

    def submit(count: int) -> Iterator[Future[Frames]]:
        return (executor.submit(read, request) for request in islice(waiting, count))

    try:
        running = deque(submit(hands + 1))
        while running:
            yield running.popleft().result()
            origin.require_same_process("a read")
            running.extend(submit(1))
    finally:
        if not origin.is_parent:  # a forked child has no such threads
            executor.shutdown(wait=True, cancel_futures=True)


def _one_by_one(requests: Any) -> Iterator[Any]:
    """Raises `UsageError` unless requests are an iterable other than text or a mapping."""
    try:
        if not isinstance(requests, (str, Mapping)):
            return iter(requests)
    except TypeError:
        pass
    raise UsageError(
        f"requests must be a list of (name, options), got {shown(requests)}", hint=_HINT
    )


def _pair(request: Any) -> Request:
    """Raises `UsageError` for a malformed request."""
    is_pair = isinstance(request, Sequence) and len(request) == 2
    if is_pair and isinstance(request[0], str) and isinstance(request[1], Mapping):
        return request[0], cast(ReadOptions, request[1])  # `Video.read` checks them
    raise UsageError(f"a request must be (name, options), got {shown(request)}", hint=_HINT)
