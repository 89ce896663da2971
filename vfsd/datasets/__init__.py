"""Data sets of other programs, made from videos of a store and their boxes.

`export_pictures` writes COCO and YOLO data sets.  Files of boxes for annotation tools are formats
of `vfsd.labels`.
"""

from vfsd.datasets.pictures import Exported, export_pictures
from vfsd.datasets.selection import FRAMES, SPLITS, split_videos

__all__ = ["FRAMES", "SPLITS", "Exported", "export_pictures", "split_videos"]
