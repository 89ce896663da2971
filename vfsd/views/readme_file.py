"""``NAME@/README.txt``: how views are named, with examples that fit the video."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from vfsd.core import view_path
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import LogicalVideo
from vfsd.core.timebase import clock
from vfsd.core.view_path import Form, Request
from vfsd.core.view_request import View
from vfsd.tiling import Rect

_MP4 = Form("mp4")
_MILLISECONDS = 1000


def readme_text(video: LogicalVideo, table: FrameTable) -> bytes:
    """The same bytes for the same state of the catalog."""
    original = video.original
    count, media = original.frames, original.media
    size = f"{media.display_width}x{media.display_height}"
    examples = list(_examples(video, table))
    width = max(len(name) for name, _ in examples)
    lines = [
        f"Views of {video.name}",
        "",
        f"{count} frames (0 to {count - 1}) of {size} pixels, "
        f"duration {float(original.duration):.3f} s ({clock(original.duration)}).",
        "",
        "Open a file in this directory by its name, and vfsd makes it.  Only a few names are",
        "listed.  Examples for this video:",
        "",
        *(f"    {name:{width}}  {what}" for name, what in examples),
        "",
        "If a view cannot be opened, read why/ and its name for the reason, as in:",
        "",
        f"    cat why/{examples[0][0]}",
        "",
        (view_path.__doc__ or "").strip(),
    ]
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _examples(video: LogicalVideo, table: FrameTable) -> Iterator[tuple[str, str]]:
    """(name, what it is)."""
    original = video.original
    count, media = original.frames, original.media
    first, end = count // 4, max(count // 2, count // 4 + 1)

    def at(frame: int) -> Fraction:
        return Fraction((table.frame_pts(frame) - original.first_pts) * original.time_base)

    # Rounded outwards to milliseconds, so that the span holds a frame however short the video is.
    low = math.floor(at(first) * _MILLISECONDS)
    high = max(low + 1, math.ceil((at(end) if end < count else original.duration) * _MILLISECONDS))
    span = Fraction(low, _MILLISECONDS), Fraction(high, _MILLISECONDS)
    region = _middle(media.display_width, media.display_height)
    half = max(2, media.display_width // 4 * 2)

    def named(view: View, form: Form = _MP4, scale: tuple[int, int] | None = None) -> str:
        return view_path.unparse(Request(view, form, scale))

    yield (
        named(View(span)),
        f"seconds {float(span[0]):g} to {float(span[1]):g}, with sound if there is any",
    )
    yield named(View(frames=(first, end, 1))), f"frames {first} to {end - 1}"
    yield named(View(region=region)), "a region: width x height + left + top"
    yield named(View(), scale=(half, 0)), f"scaled to a width of {half}"
    yield named(View(span, region=region, fps=Fraction(5))), "these together, at 5 frames a second"
    yield named(View(), Form("mp4", "h264")), "all of it in H.264"
    yield named(View(frames=(first, end, 1)), Form("y4m")), "uncompressed frames"
    yield f"frames/{first:06}.png", f"frame {first}; .jpg and .npy as well"
    yield f"explain/{named(View(span))}.json", "how a view is made, and what that costs"
    yield "info.json", "properties of the video"


def _middle(width: int, height: int) -> Rect:
    """About half of the picture each way, at even pixels where it has them."""
    left, top = width // 8 * 2, height // 8 * 2
    return Rect(left, top, left + max(1, width // 4 * 2), top + max(1, height // 4 * 2))
