"""The catalog: what is stored, and where each byte of it lies.

SQLAlchemy is known in here only; values of `vfsd.model` come out.
"""

from vfsd.catalog.atrest import come_to_rest
from vfsd.catalog.catalog import Catalog, FindOptions
from vfsd.catalog.databaseurl import has_password, lasting_url, shown_url
from vfsd.catalog.detectionquery import DetectionFilter, DetectionQuery
from vfsd.catalog.detections import Detections
from vfsd.catalog.engine import BUSY_SECONDS, ChangeWatch
from vfsd.catalog.query import VideoFilter, VideoQuery
from vfsd.catalog.seentree import ROOT
from vfsd.catalog.transactions import Transaction, another_is_there
from vfsd.catalog.tree import Tree
from vfsd.catalog.treenames import NAME_BYTES, not_there, require_name, split
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
