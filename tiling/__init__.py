"""Pure geometry of the frame: rectangles, layouts of tiles around boxes, and what reading costs.

Nothing in here knows files, codecs or the catalog.
"""

from vfsd.tiling.geometry import Rect
from vfsd.tiling.layout import LayoutRules, TileLayout
from vfsd.tiling.uniform import uniform

__all__ = [
    "LayoutRules",
    "Rect",
    "TileLayout",
    "uniform",
]
