"""Looking at a video: the part of `vfsd.Video` that runs detectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from reprlib import repr as shown
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from vfsd.api.frames import VideoFrames
from vfsd.api.labels import VideoLabels
from vfsd.core.detections import Detection, DetectionColumns, Ints, Source
from vfsd.core.frames import Frame
from vfsd.core.model import LogicalVideo
from vfsd.core.timebase import Seconds
from vfsd.core.view_request import View
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.validation import yes_or_no

if TYPE_CHECKING:
    from vfsd.labels.detectors.detector import Detector, Every, Found, FrameRequest, WorkChunk

_EACH = "`find` gives (number, boxes of that frame) for each frame that it is shown, in their order"


class VideoDetect(VideoLabels, VideoFrames):
    """Shows a video's frames to detectors, and keeps what they find."""

    def detect(
        self,
        detector: Detector,
        span: tuple[Seconds, Seconds | None] | None = None,
        every: Every | SupportsIndex | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        replace: bool = False,
        psnr: float = math.inf,
    ) -> int:
        """Show the frames of `span` (default: all) to a detector, and store what it finds; how
        many boxes were added.

        `every` n-th frame of the video is looked at, or "key" frames; default: what the detector
        wants.  Frames are read once, in the detector's size, from the original unless a lower
        `psnr` lets tiles do.  `on_progress` is told (frames shown, frames in all); it may raise.

        Boxes are stored a chunk of frames at a time (64, or those that the detector looks at
        together), each in one transaction with the note that its frames were examined.  So after
        an interruption, whatever `examined` says of `detector.source` is complete, and the same
        call goes on with the rest: frames that this very source has examined are not looked at
        again.  Where two such calls run at once, what is stored first counts.  With `replace`
        they are looked at again, and chunk by chunk everything that this source said of the span
        goes; what an interruption leaves is new up to some frame, and old after it.

        Raises `UsageError`, also for a detector that does not answer for each frame that it is
        shown, `ReadOnlyError`, `OutOfRangeError` for a span without frames, `NotFoundError` when
        the video's bytes have changed or its frames have been counted anew, and what the detector
        raises.
        """
        from vfsd.labels.detectors.detector import plan_chunks

        replace = yes_or_no(replace, "replace")
        self._parts.require_writable()
        info = self.info  # by which frames are numbered here, whatever becomes of it meanwhile
        media = info.original.media
        width, height = media.display_width, media.display_height
        _require_detector(detector)
        wanted = detector.wants(width, height)
        source = detector.source
        chosen = range(self.info.original.frames) if span is None else self.frames_of_span(span)
        if not chosen:
            raise OutOfRangeError(f"no frame of {self.info.name!r} appears in that span")
        chunks = plan_chunks(
            self._numbers(wanted, every),
            chosen,
            [] if replace else [one.frames for one in self.examined(source)],
            wanted.block,
        )
        total = sum(len(chunk.shown) for chunk in chunks)
        frames = self._shown(chunks, wanted, psnr, on_progress, total)
        added = 0
        for chunk in chunks:
            shown = islice(frames, len(chunk.shown))
            found = list(_kept(detector, chunk, shown, width, height))
            for _ in shown:  # what the detector did not care to see
                pass
            added += self._store(info, found, chunk, source, replace)
        return added

    def _numbers(self, wanted: FrameRequest, every: Every | SupportsIndex | None) -> Ints:
        """The frames of the whole video that the detector may see."""
        from vfsd.labels.detectors.detector import require_every

        every = require_every(wanted.every if every is None else every)
        if wanted.block > 1 and every != wanted.every:
            raise UsageError(
                f"what the detector finds depends on the frames it sees: every {wanted.every!r}",
                hint="make it with another `every`",
            )
        if every == "key":
            return np.asarray(self.table.keyframes(), dtype=np.int64)
        return np.arange(0, self.info.original.frames, every, dtype=np.int64)

    def _shown(
        self,
        chunks: list[WorkChunk],
        wanted: FrameRequest,
        psnr: float,
        on_progress: Callable[[int, int], None] | None,
        total: int,
    ) -> Iterator[Frame]:
        """The frames of all chunks in one go: decoders do not start again with each."""
        from vfsd.labels.detectors.detector import stepped_ranges

        numbers = np.concatenate([np.zeros(0, np.int64), *(chunk.shown for chunk in chunks)])
        done = 0
        for run in stepped_ranges(numbers):
            for frame in self._looked_at(run, wanted.size, wanted.format, psnr):
                done += 1
                if on_progress is not None:
                    on_progress(done, total)
                yield frame

    def _looked_at(
        self, frames: range, size: tuple[int, int] | None, format: str, psnr: float
    ) -> Iterator[Frame]:
        """As `iterate`, but remembered as the read of a detector."""
        view = View(frames=(frames.start, frames.stop, frames.step), size=size)
        return self._stream("detect", lambda _: view, format, psnr)

    def _store(
        self,
        info: LogicalVideo,
        found: list[Detection],
        chunk: WorkChunk,
        source: Source,
        replace: bool,
    ) -> int:
        catalog, rows = self._parts.catalog, DetectionColumns.from_detections(found)
        if not replace:
            return catalog.add_first_look(info, rows, source, chunk.kept)
        return catalog.add_detections(info, rows, source, examined=chunk.kept, replace=chunk.covers)


def _require_detector(detector: object) -> None:
    """Raises `UsageError` for a name, and for a class of which none was made."""
    if isinstance(detector, type) or not hasattr(detector, "wants"):
        raise UsageError(
            f"detector must be an object of vfsd.labels.detectors, got {shown(detector)}",
            hint="give MotionDetector() or another of vfsd.labels.detectors; "
            'detector_named("motion") makes one by its name',
        )


def _kept(
    detector: Detector, chunk: WorkChunk, shown: Iterator[Frame], width: int, height: int
) -> Iterator[Detection]:
    """The boxes of the frames whose boxes are stored.

    Raises `UsageError` unless there is one answer for every frame that is shown, in their order:
    what nobody has looked at must not count as examined.
    """
    kept = set(chunk.kept.tolist())
    left = iter(chunk.shown.tolist())
    for number, found in _answers(detector.find(shown, width, height)):
        wanted = next(left, None)
        if number != wanted:
            instead = "no frame was left" if wanted is None else f"it was the turn of {wanted}"
            raise UsageError(f"a detector answered for frame {number!r}, and {instead}", hint=_EACH)
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
    """What `Detector.find` gives, one by one.  Raises `UsageError` for what are no answers."""
    if not isinstance(given, Iterable):
        raise UsageError(f"a detector's answers are {shown(given)}", hint=_EACH)
    for one in given:
        is_pair = isinstance(one, Sequence) and len(one) == 2
        if not is_pair or not isinstance(one[1], Iterable):
            raise UsageError(f"a detector answered {shown(one)}", hint=_EACH)
        yield one[0], list(one[1])
