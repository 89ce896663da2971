"""The catalog: what is stored, and where each byte of it lies.

SQLAlchemy is known in here only; values of `vfsd.core.model` come out.
"""

from vfsd.catalog.catalog import Catalog, FindOptions
from vfsd.catalog.database_url import has_password, lasting_url, shown_url
from vfsd.catalog.detection_query import DetectionFilter, DetectionQuery
from vfsd.catalog.detections import Detections
from vfsd.catalog.engine import BUSY_SECONDS, ChangeWatch
from vfsd.catalog.open_check import come_to_rest
from vfsd.catalog.paths import NAME_BYTES, not_there, require_name, split
from vfsd.catalog.transactions import Transaction, another_is_there
from vfsd.catalog.tree import Tree
from vfsd.catalog.tree_view import ROOT
from vfsd.catalog.video_query import VideoFilter, VideoQuery
from vfsd.catalog.videos import Objects, Videos

__all__ = [
    "BUSY_SECONDS",
    "NAME_BYTES",
    "ROOT",
    "Catalog",
    "ChangeWatch",
    "DetectionFilter",
    "DetectionQuery",
    "Detections",
    "FindOptions",
    "Objects",
    "Transaction",
    "Tree",
    "VideoFilter",
    "VideoQuery",
    "Videos",
    "another_is_there",
    "come_to_rest",
    "has_password",
    "lasting_url",
    "not_there",
    "require_name",
    "shown_url",
    "split",
]
