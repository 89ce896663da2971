"""Pure geometry of the frame: rectangles, layouts of tiles around boxes, and what reading costs.

Nothing in here knows files, codecs or the catalog.
"""

from vfsd.tiling.decode_work import TILE_COST, Decoded, decoded_frames, decoded_pixels
from vfsd.tiling.geometry import Rect
from vfsd.tiling.layout import LayoutRules, TileLayout
from vfsd.tiling.partition import coarse, fine
from vfsd.tiling.sot import common, cut_sequences, meet
from vfsd.tiling.uniform import parse_layout, uniform
from vfsd.tiling.wanted_boxes import Boxes, FrameNumbers

__all__ = [
    "TILE_COST",
    "Boxes",
    "Decoded",
    "FrameNumbers",
    "LayoutRules",
    "Rect",
    "TileLayout",
    "coarse",
    "common",
    "cut_sequences",
    "decoded_frames",
    "decoded_pixels",
    "fine",
    "meet",
    "parse_layout",
    "uniform",
]
