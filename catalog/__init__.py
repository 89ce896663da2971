"""The catalog: the metadata of everything that is stored, and the location of its bytes.

Only this package knows SQLAlchemy; it returns values of `vfsd.core.model`.
"""

from vfsd.catalog.catalog import Catalog, FindOptions
from vfsd.catalog.database_url import absolute_url, has_password, redacted_url
from vfsd.catalog.detection_query import DetectionFilter, DetectionQuery
from vfsd.catalog.detections import Detections
from vfsd.catalog.engine import BUSY_SECONDS, ChangeWatch
from vfsd.catalog.schema import ROOT
from vfsd.catalog.sqlite_connections import checkpoint_if_closed
from vfsd.catalog.transactions import Transaction, database_taken_error
from vfsd.catalog.tree import NAME_BYTES, Tree, not_found_error, require_name, split_path
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
    "absolute_url",
    "checkpoint_if_closed",
    "database_taken_error",
    "has_password",
    "not_found_error",
    "redacted_url",
    "require_name",
    "split_path",
]
