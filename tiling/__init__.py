"""Pure geometry of the frame: rectangles, and layouts of tiles.

Nothing in here knows files, codecs or the catalog.
"""

from vfsd.tiling.geometry import Rect
from vfsd.tiling.layout import LayoutRules, TileLayout
from vfsd.tiling.sot import cut_sequences
from vfsd.tiling.uniform import parse_layout, uniform

__all__ = ["LayoutRules", "Rect", "TileLayout", "cut_sequences", "parse_layout", "uniform"]
