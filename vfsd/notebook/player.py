"""The kernel's side of the player; player.js is the browser's side.

The browser asks for a few frames at a time, by a message over the widget's comm.  The answer is one
message for each frame, with a JPEG as its buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfsd.errors import ExtraMissingError, UsageError, VfsdError
from vfsd.validation import whole_number

try:
    import anywidget
    import traitlets
except ImportError:
    raise ExtraMissingError(
        "anywidget is not installed", hint="pip install 'vfsd[notebook]'"
    ) from None

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.detections import Source
    from vfsd.core.frames import Frame
    from vfsd.core.label_query import Labels
    from vfsd.core.timebase import Seconds

MAX_FRAMES = 8
"""Frames of one answer."""
MAX_JPEG_BYTES = 200_000
MAX_BOXES = 500
"""Boxes drawn on a frame."""
MAX_SIDE = 1280
_QUALITIES = (85, 70, 50, 30, 10)


class Player(anywidget.AnyWidget):  # type: ignore[misc]
    """Shows a video frame by frame, with its boxes; made by `Video.show`."""

    _esm = Path(__file__).with_name("player.js")

    name = traitlets.Unicode().tag(sync=True)
    first = traitlets.Int().tag(sync=True)
    end = traitlets.Int().tag(sync=True)
    frame = traitlets.Int().tag(sync=True)  #: the one that is shown; may be set
    fps = traitlets.Float().tag(sync=True)
    width = traitlets.Int().tag(sync=True)  #: pixels of the displayed frame, the unit of boxes
    height = traitlets.Int().tag(sync=True)
    most = traitlets.Int(MAX_FRAMES).tag(sync=True)
    # The first frame: a saved notebook shows it without a kernel.
    poster = traitlets.Bytes().tag(sync=True)
    poster_facts = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        video: Video,
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        labels: Labels | None = None,
        source: str | Source | None = None,
        size: int = 640,
    ) -> None:
        """See `Video.show`."""
        size = whole_number(size, "size")
        if not 16 <= size <= MAX_SIDE:
            raise UsageError(f"size must be 16 to {MAX_SIDE} pixels, got {size}")
        frames = video.frames_in(span)
        scale = min(1.0, size / max(video.width, video.height))
        self._video = video
        self._labels = labels
        self._source = source
        self._size = max(1, round(video.width * scale)), max(1, round(video.height * scale))
        (one,) = self._answers(frames.start, 1)
        super().__init__(
            name=video.name,
            first=frames.start,
            end=frames.stop,
            frame=frames.start,
            fps=float(video.fps) or 25.0,
            width=video.width,
            height=video.height,
            poster=one[1],
            poster_facts=one[0],
        )
        self.on_msg(self._answer)

    def _answer(self, _: object, message: Any, __: object) -> None:
        """Send the frames that the browser asks for; others than those of the span are refused."""
        if not isinstance(message, Mapping) or message.get("type") != "frames":
            return
        first, count = message.get("first"), message.get("count", 1)
        if type(first) is not int or type(count) is not int:
            return
        end = min(first + min(count, MAX_FRAMES), self.end)
        if not self.first <= first < end:
            return
        try:
            for facts, data in self._answers(first, end - first):
                self.send(facts, [data])
        except (VfsdError, OSError) as error:
            self.send({"type": "error", "frame": first, "text": str(error)})

    def _answers(self, first: int, count: int) -> list[tuple[dict[str, Any], bytes]]:
        frames = range(first, first + count)
        boxes: dict[int, list[list[Any]]] = {}
        query = self._video.labels.query(self._labels, frames=frames, source=self._source)
        for part in query.batches(MAX_BOXES * MAX_FRAMES):
            for one in part:
                found = boxes.setdefault(one.frame, [])
                if len(found) < MAX_BOXES:
                    found.append([*one.box, one.label, one.confidence])
        read = self._video.frames(frames, size=self._size)
        return [
            (
                {
                    "type": "frame",
                    "frame": one.index,
                    "seconds": one.seconds,
                    "damaged": one.damaged,
                    "boxes": boxes.get(one.index, []),
                },
                jpeg_of(one),
            )
            for one in read
        ]


def jpeg_of(frame: Frame) -> bytes:
    """Return a frame as JPEG, in the best quality with at most `MAX_JPEG_BYTES`."""
    import cv2

    for quality in _QUALITIES:
        options = [cv2.IMWRITE_JPEG_QUALITY, quality]
        data: bytes = cv2.imencode(".jpg", frame.data[..., ::-1], options)[1].tobytes()
        if len(data) <= MAX_JPEG_BYTES:
            break
    return data
