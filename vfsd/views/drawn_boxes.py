"""Boxes that are drawn into the pictures of a view: outline, label and track.

Shapes end at even pixels where chroma has half the resolution, so that every sample outside of them
is that of the view without boxes.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from vfsd.codecs.frames.color import coded_color, media_coding
from vfsd.core.detections import NO_TRACK, DetectionColumns
from vfsd.core.pixel_array import Pixels
from vfsd.views.layout_facts import FONT, LABEL_COLORS, ascii_text
from vfsd.views.view_input import PictureForm

# A line is this share of the shorter side, and at least two pixels.
_LINES_PER_SIDE = 240
# Heights of text as shares of the shorter side, and in pixels.
_TEXTS_PER_SIDE = 40
_LEAST_TEXT_PIXELS = 10
_FONT_PIXELS = 22  # height of capitals of FONT at size 1
# Light text has this luma at most behind it.
_DARK_TEXT_FROM = 110

Box = tuple[int, int, int, int]
"""x1, y1, x2, y2 in pixels of the picture, half-open."""
Color = tuple[int, int, int]


class DrawnBoxes:
    """The boxes of a view, by frame."""

    def __init__(self, rows: DetectionColumns) -> None:
        self._rows = rows.sorted_by_frame()

    @property
    def memory(self) -> int:
        """Bytes of its arrays."""
        rows = self._rows
        return rows.frames.nbytes + rows.codes.nbytes + rows.boxes.nbytes + rows.tracks.nbytes

    @property
    def digest(self) -> str:
        """Equal for equal drawings, and only for these."""
        rows = self._rows
        text = blake3("\0".join(rows.names).encode("utf-8", "surrogatepass"))
        for column in (rows.frames, rows.codes, rows.boxes, rows.tracks):
            text.update(np.ascontiguousarray(column).tobytes())
        return text.hexdigest()

    def draw(self, samples: Pixels, frame: int, form: PictureForm) -> None:
        """Draw the boxes of `frame` into a picture, as `PictureConverter.convert` returns it.

        `form` is in rgb24 or yuv420p.
        """
        rows = self._rows
        low, high = np.searchsorted(rows.frames, [frame, frame + 1])
        if low == high:
            return
        canvas = _Canvas(samples, form)
        for row in range(int(low), int(high)):
            label, track = rows.names[int(rows.codes[row])], int(rows.tracks[row])
            text = ascii_text(label if track == NO_TRACK else f"{label} {track}")
            color = LABEL_COLORS[zlib.crc32(label.encode("utf-8", "replace")) % len(LABEL_COLORS)]
            canvas.box(tuple(rows.boxes[row].tolist()), color, text)


class _Canvas:
    """The planes of one picture."""

    def __init__(self, samples: Pixels, form: PictureForm) -> None:
        self._form = form
        self._width, self._height = form.size
        short = min(form.size)
        self._line = max(2, round(short / _LINES_PER_SIDE / 2) * 2)
        self._text = max(_LEAST_TEXT_PIXELS, short // _TEXTS_PER_SIDE)
        self._planes, self._step = _planes(samples, form)

    def box(self, box: tuple[float, ...], color: Color, text: str) -> None:
        """Draw a box in pixels of the displayed frame."""
        region, step = self._form.region, self._step
        across, down = self._width / region.width, self._height / region.height
        x1 = int((box[0] - region.x1) * across // step * step)
        y1 = int((box[1] - region.y1) * down // step * step)
        x2 = int(-(-(box[2] - region.x1) * across // step) * step)
        y2 = int(-(-(box[3] - region.y1) * down // step) * step)
        line = self._line
        for part in (
            (x1, y1, x2, min(y2, y1 + line)),
            (x1, max(y1, y2 - line), x2, y2),
            (x1, y1, min(x2, x1 + line), y2),
            (max(x1, x2 - line), y1, x2, y2),
        ):
            self._fill(part, color)
        is_seen = x1 < self._width and x2 > 0 and y1 < self._height and y2 > 0
        if text and is_seen:
            self._plate(x1, y1, color, text)

    def _fill(self, part: Box, color: Color) -> None:
        for plane, value, step in zip(self._planes, self._values(color), self._steps, strict=True):
            x1, y1, x2, y2 = self._clipped(part, step)
            plane[y1:y2, x1:x2] = value

    def _plate(self, x: int, y: int, color: Color, text: str) -> None:
        """Write text on a plate above (x, y), or below it if the frame ends above."""
        mask = _text_mask(text, self._text)
        height, width = mask.shape
        left = min(max(0, x), max(0, (self._width - width) // 2 * 2))
        top = y - height if y >= height else max(0, y)
        part = (left, top, left + width, top + height)
        self._fill(part, color)
        x1, y1, x2, y2 = self._clipped(part, 1)
        seen = mask[y1 - top : y2 - top, x1 - left : x2 - left]
        ink = (0, 0, 0) if _brightness(color) > _DARK_TEXT_FROM else (255, 255, 255)
        # The chroma of the plate stays: that of the text would reach beyond its pixels.
        inked = zip(self._planes, self._values(ink), self._steps, strict=True)
        for plane, value in ((plane, value) for plane, value, step in inked if step == 1):
            under = plane[y1:y2, x1:x2].astype(np.int32)
            plane[y1:y2, x1:x2] = (under + (value - under) * seen // 255).astype(np.uint8)

    @property
    def _steps(self) -> tuple[int, int, int]:
        return 1, self._step, self._step

    def _values(self, color: Color) -> tuple[int, int, int]:
        if self._form.pixel_format == "rgb24":
            return color
        return coded_color(color, media_coding(self._form.media))

    def _clipped(self, part: Box, step: int) -> Box:
        """Return the samples of a plane with one sample for `step` x `step` pixels."""
        across, down = -(-self._width // step), -(-self._height // step)
        x1, x2 = (min(max(0, edge // step), across) for edge in (part[0], part[2]))
        y1, y2 = (min(max(0, edge // step), down) for edge in (part[1], part[3]))
        return x1, y1, x2, y2


def _planes(samples: Pixels, form: PictureForm) -> tuple[list[npt.NDArray[np.uint8]], int]:
    """Return the three planes as views of `samples`, and the pixels for each chroma sample."""
    width, height = form.size
    if form.pixel_format == "rgb24":
        picture = samples.reshape(height, width, 3)
        return [picture[..., channel] for channel in range(3)], 1
    flat = samples.reshape(-1)
    across, down = -(-width // 2), -(-height // 2)
    luma, chroma = width * height, across * down
    return [
        flat[:luma].reshape(height, width),
        flat[luma : luma + chroma].reshape(down, across),
        flat[luma + chroma : luma + 2 * chroma].reshape(down, across),
    ], 2


def _brightness(color: Color) -> float:
    red, green, blue = color
    return 0.299 * red + 0.587 * green + 0.114 * blue


@lru_cache(maxsize=1024)
def _text_mask(text: str, pixels: int) -> npt.NDArray[np.int32]:
    """Return the opacity of a text with a margin, 0 to 255; its sides are even."""
    size = pixels / _FONT_PIXELS
    thick = max(1, round(size))
    (width, height), base = cv2.getTextSize(text, FONT, size, thick)
    pad = max(2, pixels // 4)
    shape = (-(-(height + base + 2 * pad) // 2) * 2, -(-(width + 2 * pad) // 2) * 2)
    mask = np.zeros(shape, np.uint8)
    cv2.putText(mask, text, (pad, pad + height), FONT, size, 255, thick, cv2.LINE_AA)
    return mask.astype(np.int32)
