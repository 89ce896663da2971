"""Which views may be asked for over HTTP: bounds on their size, rate and length."""

from __future__ import annotations

from vfsd.api.store_files import FoundFile
from vfsd.core.view_request import ViewSpec, parse_view_path
from vfsd.errors import NotFoundError, UsageError
from vfsd.web.http_errors import HttpError
from vfsd.web.web_context import WebContext

_STILLS = ("frames/", "objects/", "layout/", "explain/", "layout.png")


def is_still(view: str) -> bool:
    """Whether a path below ``NAME@/`` may have to be decoded before its size is known."""
    rest = view.partition("/")[2] if view.startswith("stream") else view
    return rest.startswith(_STILLS)


def require_view_within_limits(web: WebContext, found: FoundFile) -> None:
    """Raises `HttpError` for a view that would cost too much."""
    assert found.view is not None
    try:
        spec = parse_view_path(found.view.rpartition("/")[2])
    except (NotFoundError, UsageError):
        return  # another file, or no file at all
    with web.store.catalog.reading() as seen:
        original = seen.videos.by_inode(found.node.ino).original
    media, limits = original.media, web.options.limits
    if spec.scale is not None:
        width, height = _size(spec, media.display_width, media.display_height)
        if width > limits.max_side or height > limits.max_side:
            raise HttpError(400, f"a view may have {limits.max_side} pixels a side")
        if width > media.display_width or height > media.display_height:
            raise HttpError(
                400,
                f"a view may not be larger than its video, {media.display_width}x"
                f"{media.display_height}",
            )
    if spec.view.fps is not None and spec.view.fps > max(limits.max_rate, media.average_rate or 0):
        raise HttpError(400, f"a view may have {limits.max_rate} frames per second")


def _size(spec: ViewSpec, width: int, height: int) -> tuple[int, int]:
    found = spec.resolve(width, height)
    return found.size or (width, height)
