"""Bounds on the size, rate and length of views over HTTP, and the form that a browser can play."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from vfsd.api.store_files import FoundFile
from vfsd.core.capture_time import NS, is_span_name, parse_span_name
from vfsd.core.model import FileState, PhysicalVideo
from vfsd.core.view_request import View, ViewSpec, parse_view_path
from vfsd.errors import NotFoundError, UsageError
from vfsd.views import explain_view
from vfsd.views.view_resolver import view_of_moment
from vfsd.web.http_errors import HttpError
from vfsd.web.web_context import WebContext

_STILLS = ("frames/", "objects/", "layout/", "explain/", "layout.png")
_PLAYABLE_ENDINGS = (".mp4", ".m4v", ".mov", ".webm")
# The width of pictures that are encoded because a browser cannot play the original.
_FALLBACK_WIDTH = 1280
_MOST_HOURS = 24


def is_still(view: str) -> bool:
    """Whether a path below ``NAME@/`` may have to be decoded before its size is known."""
    rest = view.partition("/")[2] if view.startswith("stream") else view
    return rest.startswith(_STILLS)


def require_view_within_limits(web: WebContext, found: FoundFile) -> None:
    """Raises `HttpError` for a view that would cost too much."""
    assert found.view is not None
    if found.node.is_dir:
        _require_short(found.view)
        return
    try:
        name = found.view.rpartition("/")[2]
        spec = parse_view_path(view_of_moment(found.view) or name)
    except (NotFoundError, UsageError):
        return  # another file, or no file at all
    with web.store.catalog.reading() as seen:
        info = seen.videos.by_inode(found.node.ino)
    media, limits = info.original.media, web.options.limits
    whole = media.display_width, media.display_height
    view = spec.resolve(*whole)
    if spec.scale is not None:
        width, height = view.size or whole
        if max(width, height) > limits.max_side:
            raise HttpError(400, f"a view may have {limits.max_side} pixels a side")
        # Encoders need even sides.
        if width > whole[0] + whole[0] % 2 or height > whole[1] + whole[1] % 2:
            raise HttpError(400, f"a view must not be larger than its video, {whole[0]}x{whole[1]}")
    if view.fps is not None and view.fps > max(limits.max_rate, media.average_rate or 0):
        raise HttpError(400, f"a view may have {limits.max_rate} frames per second")
    if _seconds(view, info.original) > limits.max_seconds and not _is_copied(web, found, spec):
        raise HttpError(
            400,
            f"an encoded view may be {limits.max_seconds} s long",
            hint="ask for a span, as in t=0-60",
        )


def _require_short(name: str) -> None:
    """Raises `HttpError` for a file of a timeline that plans the views of too many videos."""
    if not is_span_name(name):
        return
    start, end = parse_span_name(name)
    if end - start > _MOST_HOURS * 3600 * NS:
        raise HttpError(400, f"a file of a timeline may be {_MOST_HOURS} hours long")


def _seconds(view: View, original: PhysicalVideo) -> Fraction:
    if view.span is not None:
        start, stop = view.span
        return min(stop or original.duration, original.duration) - start
    if view.frames is not None and original.frames:
        first, end, step = view.frames
        count = min(end or original.frames, original.frames) - first
        return original.duration * count / original.frames / step
    return original.duration


def _is_copied(web: WebContext, found: FoundFile, spec: ViewSpec) -> bool:
    """Whether packets are copied, perhaps except for the ends."""
    with web.store.catalog.reading() as seen:
        info = seen.videos.by_inode(found.node.ino)
    made = explain_view(web.store.parts, web.store.tools, info, spec).made
    return made in ("copied", "stitched", "spliced")


def other_form(web: WebContext, found: FoundFile, query: Mapping[str, str]) -> str | None:
    """Return the end of the path of a form with a codec in ``can=``; None for the file itself.

    Raises `HttpError` (406) where no form of the video can be played.
    """
    if "can" not in query or found.node.state is not FileState.VIDEO:
        return None
    can = query["can"].lower().split(",")
    with web.store.catalog.reading() as seen:
        info = seen.videos.by_inode(found.node.ino)
    original = info.original
    media = original.media
    if media.codec in can:
        is_direct = found.name.lower().endswith(_PLAYABLE_ENDINGS)
        return None if is_direct else "@/full.mp4"
    if "h264" in can:
        playable = web.store.open_video(info).views.playable(["h264"])
        if playable.origin == "rendition":
            return f"@/{playable.name}"
    if "h264" in can and original.duration <= web.options.limits.max_seconds:
        width = min(_FALLBACK_WIDTH, media.display_width)
        return f"@/size={width}x0,codec=h264.mp4"
    raise HttpError(406, f"{media.codec} is not among the codecs in can=")
