"""Pictures and HTML that a notebook shows for a value, of bounded size.

A picture is at most `MAX_SIDE` pixels wide and high.  A representation has at most `MAX_PICTURES`
pictures, `MAX_ROWS` rows and `MAX_BYTES` bytes.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_BYTES = 1_000_000
MAX_PICTURES = 24
MAX_ROWS = 20
MAX_SIDE = 640
THUMBNAIL_SIDE = 160
MAX_SECONDS = 1.0
"""CPU time that the decoding of all pictures of one representation may take, as predicted."""
_MAX_TEXT = 200
_JPEG_QUALITY = 80
# For the closing tags and the last caption.
_RESERVE = 4096


def png_of(pixels: npt.NDArray[Any]) -> bytes | None:
    """Return a picture as a PNG file; None for pixels that are no RGB or gray picture."""
    shown = _visible(pixels)
    if shown is None:
        return None
    import cv2

    side = MAX_SIDE
    while True:
        found: bytes = cv2.imencode(".png", _scaled(shown, side)[..., ::-1])[1].tobytes()
        if len(found) <= MAX_BYTES:
            return found
        side //= 2  # noise, which PNG cannot compress


def thumbnail_tag(pixels: npt.NDArray[Any], side: int = THUMBNAIL_SIDE) -> str | None:
    """Return a small picture as an HTML element; None as for `png_of`."""
    shown = _visible(pixels)
    if shown is None:
        return None
    import cv2

    small = _scaled(shown, side)
    options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
    data: bytes = cv2.imencode(".jpg", small[..., ::-1], options)[1].tobytes()
    height, width = small.shape[:2]
    text = base64.b64encode(data).decode("ascii")
    return f'<img width="{width}" height="{height}" src="data:image/jpeg;base64,{text}">'


def _visible(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8] | None:
    """Return height x width x 3 of 8 bits.  BGR is shown as RGB: an array does not say which."""
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or not pixels.size:
        return None
    if pixels.dtype == np.uint16:
        pixels = pixels >> 8
    elif pixels.dtype != np.uint8:
        return None
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)).astype(np.uint8))


def _scaled(pixels: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    height, width = pixels.shape[:2]
    longest = max(height, width)
    if longest <= side:
        return pixels
    import cv2

    size = max(1, width * side // longest), max(1, height * side // longest)
    small: Any = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return np.asarray(small, np.uint8)


def escaped(value: object) -> str:
    """Return a text for HTML, cut to a bounded length; None is a dash."""
    text = "-" if value is None else str(value)
    text = text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."
    return html.escape(text.encode("utf-8", "backslashreplace").decode())


def sheet(title: str, pictures: Iterable[tuple[npt.NDArray[Any], str]], total: int) -> str:
    """Return a title and pictures with captions; `total` is the number that there could be.

    `pictures` is read no further than the bounds allow.
    """
    parts: list[str] = []
    used = len(title)
    source = iter(pictures)
    while len(parts) < MAX_PICTURES and (pair := next(source, None)) is not None:
        pixels, caption = pair
        tag = thumbnail_tag(pixels)
        if tag is None:
            break
        part = (
            f'<figure style="{_FIGURE}">{tag}<figcaption>{escaped(caption)}</figcaption></figure>'
        )
        used += len(part.encode())
        if used > MAX_BYTES - _RESERVE:
            break
        parts.append(part)
    close = getattr(source, "close", None)
    if close is not None:
        close()
    return f"<div><div>{escaped(title)}</div>{''.join(parts)}{_more(total - len(parts))}</div>"


def table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[object]], total: int | None = None
) -> str:
    """Return a title and at most `MAX_ROWS` rows; `total` is the number that there could be."""
    head = "".join(f"<th>{escaped(one)}</th>" for one in headings)
    body: list[str] = []
    for row in rows:
        if len(body) == MAX_ROWS:
            break
        cells = "".join(f'<td style="text-align:left">{escaped(one)}</td>' for one in row)
        body.append(f"<tr>{cells}</tr>")
    more = _more(0 if total is None else total - len(body))
    return (
        f"<div><div>{escaped(title)}</div><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table>{more}</div>"
    )


def _more(count: int) -> str:
    return f"<div>... and {count:,} more</div>" if count > 0 else ""


_FIGURE = "display:inline-block;margin:2px;font-size:80%;text-align:center"
