"""Runs a detector on frames of a video, and stores its boxes; see `VideoLabels.detect`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from reprlib import repr as shown
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from vfsd.api.reading import stream
from vfsd.core.detections import Detection, DetectionColumns, Ints, Source
from vfsd.core.frames import Frame
from vfsd.core.model import LogicalVideo
from vfsd.core.timebase import Span
from vfsd.core.view_request import View
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.labels.detectors import plan_chunks, require_every, stepped_ranges
from vfsd.read.read_context import VideoContext, VideoSnapshot
from vfsd.validation import boolean

if TYPE_CHECKING:
    from vfsd.labels.detectors import Detector, Every, Found, FrameRequest, WorkChunk

_EACH = "`detect` yields (number, boxes of that frame) for each frame it receives, in their order"


def detect(
    video: VideoContext,
    detector: Detector,
    span: Span | None,
    every: Every | SupportsIndex | None,
    on_progress: Callable[[int, int], None] | None,
    replace: bool,
    psnr: float,
    frames_only: range | None = None,
) -> int:
    """See `VideoLabels.detect`; `frames_only` are frames to examine instead of a span."""
    replace = boolean(replace, "replace")
    video.parts.require_writable()
    info = video.info  # its frame numbers are used to the end, even if the record changes
    media = info.original.media
    width, height = media.display_width, media.display_height
    _require_detector(detector)
    wanted = detector.request(width, height)
    source = detector.source
    chosen = video.frames_of_span(span) if frames_only is None else frames_only
    if not chosen:
        raise OutOfRangeError(f"no frame of {info.name!r} appears in that span")
    done = [] if replace else video.parts.catalog.detections.examined(info, source)
    chunks = plan_chunks(
        _numbers(video, wanted, every), chosen, [one.frames for one in done], wanted.block
    )
    total = sum(len(chunk.shown) for chunk in chunks)
    frames = shown_frames(video, chunks, wanted, psnr, on_progress, total)
    added = 0
    for chunk in chunks:
        given = islice(frames, len(chunk.shown))
        found = list(_kept(detector, chunk, given, width, height))
        for _ in given:  # frames that the detector did not take
            pass
        added += _store(video, info, found, chunk, source, replace)
    return added


def _numbers(
    video: VideoContext, wanted: FrameRequest, every: Every | SupportsIndex | None
) -> Ints:
    """The frames of the whole video that the detector may see."""
    every = require_every(wanted.every if every is None else every)
    if wanted.block > 1 and every != wanted.every:
        raise UsageError(
            f"every must be {wanted.every!r} as of the detector, got {every!r}",
            hint="make it with another `every`",
        )
    if every == "key":
        return np.asarray(video.table.keyframes(), dtype=np.int64)
    return np.arange(0, video.original.frames, every, dtype=np.int64)


def shown_frames(
    video: VideoContext,
    chunks: list[WorkChunk],
    wanted: FrameRequest,
    psnr: float,
    on_progress: Callable[[int, int], None] | None,
    total: int,
) -> Iterator[Frame]:
    """The frames of all chunks as one stream: decoders do not start again with each chunk."""
    numbers = np.concatenate([np.zeros(0, np.int64), *(chunk.shown for chunk in chunks)])
    done = 0
    for run in stepped_ranges(numbers):
        view = View(frames=(run.start, run.stop, run.step), size=wanted.size)

        def asked(_: VideoSnapshot, view: View = view) -> View:
            return view

        # The read log knows these reads as those of a detector, which tiles do not serve.
        for frame in stream(video, "detect", asked, wanted.format, psnr):
            done += 1
            if on_progress is not None:
                on_progress(done, total)
            yield frame


def _store(
    video: VideoContext,
    info: LogicalVideo,
    found: list[Detection],
    chunk: WorkChunk,
    source: Source,
    replace: bool,
) -> int:
    catalog, rows = video.parts.catalog, DetectionColumns.from_detections(found)
    if not replace:
        return catalog.detections.add_unexamined(info, rows, source, chunk.kept)
    return catalog.detections.add(info, rows, source, examined=chunk.kept, replace=chunk.covers)


def _require_detector(detector: object) -> None:
    """Raises `UsageError` for a name, and for a class instead of an object."""
    if isinstance(detector, type) or not hasattr(detector, "request"):
        raise UsageError(
            f"detector must be an object of vfsd.labels.detectors, got {shown(detector)}",
            hint="give MotionDetector() or another of vfsd.labels.detectors; "
            'detector_named("motion") makes one by its name',
        )


def _kept(
    detector: Detector, chunk: WorkChunk, given: Iterator[Frame], width: int, height: int
) -> Iterator[Detection]:
    """The boxes of the frames whose boxes are stored.

    Raises `UsageError` unless the detector answers for every frame in order: a frame without an
    answer must not count as examined.
    """
    kept = set(chunk.kept.tolist())
    left = iter(chunk.shown.tolist())
    for number, found in _answers(detector.detect(given, width, height)):
        wanted = next(left, None)
        if number != wanted:
            instead = "after the last frame" if wanted is None else f"instead of frame {wanted}"
            raise UsageError(f"a detector answered for frame {number!r} {instead}", hint=_EACH)
        for one in found:
            if isinstance(one, Detection) and one.frame != number:
                raise UsageError(
                    f"a detector answered for frame {number} with a box of frame {one.frame!r}",
                    hint=_EACH,
                )
        if number in kept:
            yield from found
    missing = next(left, None)
    if missing is not None:
        raise UsageError(f"a detector gave no answer for frame {missing}", hint=_EACH)


def _answers(given: object) -> Iterator[Found]:
    """The answers of `Detector.detect`, checked.  Raises `UsageError`."""
    if not isinstance(given, Iterable):
        raise UsageError(
            f"the answers of a detector must be iterable, got {shown(given)}", hint=_EACH
        )
    for one in given:
        is_pair = isinstance(one, Sequence) and len(one) == 2
        if not is_pair or not isinstance(one[1], Iterable):
            raise UsageError(
                f"an answer of a detector must be (number, boxes), got {shown(one)}", hint=_EACH
            )
        yield one[0], list(one[1])
