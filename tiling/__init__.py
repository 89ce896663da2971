"""Pure geometry of the frame: rectangles, layouts of tiles around boxes, and the cost of reads.

Independent of files, codecs and the catalog.
"""

from vfsd.tiling.cost import TILE_COST, Boxes, Decoded, FrameNumbers, decoded_frames, decoded_pixels
from vfsd.tiling.layout import (
    LayoutRules,
    Rect,
    Region,
    TileLayout,
    cut_sequences,
    frame_intersection,
    is_region_text,
    overlaps,
    parse_layout,
    region_corners,
    region_error,
    uniform_layout,
)
from vfsd.tiling.partition import coarse_layout, fine_layout

__all__ = [
    "TILE_COST",
    "Boxes",
    "Decoded",
    "FrameNumbers",
    "LayoutRules",
    "Rect",
    "Region",
    "TileLayout",
    "coarse_layout",
    "cut_sequences",
    "decoded_frames",
    "decoded_pixels",
    "fine_layout",
    "frame_intersection",
    "is_region_text",
    "overlaps",
    "parse_layout",
    "region_corners",
    "region_error",
    "uniform_layout",
]
