"""Pure geometry of the frame: rectangles now, layouts of tiles and their costs later.

Nothing in here knows files, codecs or the catalog.
"""

from vfsd.tiling.geometry import Rect

__all__ = ["Rect"]
