"""The GOP length of new tiles and renditions, and the segments of browser renditions.

A short GOP makes a read of a single frame decode less, and takes more bytes.  Browser renditions
are whole pictures that web browsers play and that views copy.
"""

from __future__ import annotations

from typing import Literal

from vfsd.codecs.cells.cell_encoders import WEB_QUALITY, tile_codec
from vfsd.core.model import MediaInfo
from vfsd.core.timebase import Span
from vfsd.core.view_request import Size, resolve_size
from vfsd.derive.catalog_world import size_world
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.derive.workload import frame_runs
from vfsd.errors import UsageError
from vfsd.read.read_context import VideoContext
from vfsd.tiling import TileLayout
from vfsd.tiling.cost import WEB
from vfsd.tiling.policy import Query, ScaledFrames, Tiling
from vfsd.validation import whole_number

GopLength = int | Literal["auto"] | None
"""Frames from one key picture to the next; None: about a second; ``"auto"``: by the logged reads.
"""

GOP_LENGTHS = (1, 4, 8)
"""The lengths that are considered, besides about a second."""

# Players seek to key pictures only, and a segment of HLS begins with one.
_WEB_SECONDS = 2

MAX_GOP = 300
"""The longest segment has as many frames."""


def random_read_segments(video: VideoContext) -> tuple[list[range], tuple[int | None, ...]]:
    """Return the segments of renditions for random reads, and the GOP lengths to consider.

    A segment has about a GOP of the original, at least a second and at most `MAX_GOP` frames.  Its
    last second alone would cost nearly as much, since it needs the same frames of the original.
    """
    seconds = video.sequences()
    keys = max(1, len(video.table.keyframes()))
    longer = video.sequences(gop=min(MAX_GOP, len(video.table) // keys))
    if len(longer) == len(seconds):
        return seconds, (None, *GOP_LENGTHS)
    return longer, (*GOP_LENGTHS, round(len(video.table) / len(seconds)))


def gop_frames(
    video: VideoContext,
    gop: GopLength,
    picture: tuple[int, int] | None,
    settings: TileSettings,
) -> int | None:
    """Return a GOP length in frames; None for about a second.

    Browser renditions have about two seconds.  `picture` is the size of the stored pictures, None
    for that of the video.  Raises `UsageError`
    for a length below 1 or above `MAX_GOP`, and for text other than ``auto``.
    """
    if gop is None and settings.codec == WEB:
        rate = len(video.table) / max(float(video.original.duration), 1e-9)
        return min(MAX_GOP, max(1, round(_WEB_SECONDS * rate)))
    if gop is None:
        return None
    if gop == "auto":
        return best_gop(video, picture, settings)
    length = whole_number(gop, "gop")
    if not 1 <= length <= MAX_GOP:
        raise UsageError(f"gop must be 1 to {MAX_GOP} frames, got {length}")
    return length


def best_gop(
    video: VideoContext, picture: tuple[int, int] | None, settings: TileSettings
) -> int | None:
    """Return the GOP length with the least predicted cost of making it and of the logged reads.

    Reads of any part of the frame count as reads of whole pictures.  Without reads it is None.
    """
    media = video.original.media
    width, height = picture or (media.width, media.height)
    video.tools.read_log.flush()
    reads = list(video.parts.catalog.reads(video.info))
    if not reads:
        return None
    aims = frozenset([ScaledFrames(width, height)])
    queries = [Query(frames, aims) for read in reads for frames in frame_runs(read)]
    world = size_world(video, settings)
    layout = TileLayout.untiled(width, height)

    def cost(gop: int | None) -> float:
        tiling = Tiling.whole(layout, gop)
        making = sum(world.making_cost(sot, tiling).seconds for sot in world.sots)
        return making + sum(
            world.rendition_seconds(sot, query, tiling)
            for query in queries
            for sot in world.touched(query)
        )

    return min((None, *GOP_LENGTHS[::-1]), key=cost)


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
