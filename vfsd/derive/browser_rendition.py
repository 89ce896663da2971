"""Browser renditions: whole pictures that web browsers play and that views copy."""

from __future__ import annotations

from vfsd.codecs.cells.cell_encoders import WEB_QUALITY, tile_codec
from vfsd.core.model import MediaInfo
from vfsd.core.timebase import Span
from vfsd.core.view_request import Size, resolve_size
from vfsd.derive.gop_length import gop_frames
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.errors import UsageError
from vfsd.read.read_context import VideoContext
from vfsd.tiling import TileLayout
from vfsd.tiling.cost import WEB

BROWSER_WIDTH = 1280
"""Default width of the displayed frame."""

BROWSER_SETTINGS = TileSettings(WEB, quality=WEB_QUALITY)
"""The codec and the quality."""

_HDR = {"smpte2084": "HDR (PQ)", "arib-std-b67": "HDR (HLG)"}


def browser_size(media: MediaInfo, width: int = BROWSER_WIDTH) -> tuple[int, int]:
    """Return the (width, height) of a browser rendition's displayed frame.

    Both are even.  The width is at most `width`, and at most that of the video.
    """
    if media.display_width <= width:
        return media.display_width // 2 * 2, media.display_height // 2 * 2
    if width < 2:
        raise UsageError(f"the width of a browser rendition must be at least 2, got {width}")
    size: Size = (width // 2 * 2, 0)
    return resolve_size(size, media.display_width, media.display_height)


def browser_plan(
    video: VideoContext, width: int = BROWSER_WIDTH, span: Span | None = None
) -> list[PlannedSegment]:
    """Return the segments of a browser rendition: those with frames in `span` (default: all).

    Each has a GOP of about two seconds.  Raises `UsageError` for pixels without a conversion.
    """
    media = video.original.media
    tile_codec(WEB, media)
    size = browser_size(media, width)
    stored = size if media.rotation % 180 == 0 else size[::-1]
    gop = gop_frames(video, None, stored, BROWSER_SETTINGS)
    layout = TileLayout.untiled(*stored)
    return [PlannedSegment(frames, layout, gop=gop) for frames in video.sequences(span, gop=gop)]


def browser_losses(media: MediaInfo) -> list[str]:
    """Return what a browser rendition changes of the pictures besides their size, for people."""
    losses = []
    wanted = tile_codec(WEB, media).converted_format(media.pixel_format)
    if media.bit_depth > 8:
        losses.append(f"{media.bit_depth} bits become 8")
    if wanted is not None and "420" not in media.pixel_format:
        losses.append(f"chroma of {media.pixel_format} becomes 4:2:0")
    if media.color_transfer in _HDR:
        losses.append(f"{_HDR[media.color_transfer]} stays, without tone mapping")
    if media.interlaced:
        losses.append("interlaced pictures are marked as progressive")
    return losses
