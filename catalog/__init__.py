"""The catalog: the metadata of everything that is stored, and the location of its bytes.

Only this package knows SQLAlchemy; it returns values of `vfsd.core.model`.
"""

from vfsd.catalog.catalog import Catalog, Transaction
from vfsd.catalog.database_url import (
    absolute_url,
    has_password,
    is_shareable,
    redacted_url,
    without_password,
)
from vfsd.catalog.engine import BUSY_SECONDS, DEFAULT_STALENESS, ChangeWatch
from vfsd.catalog.open_catalog import database_taken_error
from vfsd.catalog.schema import ROOT
from vfsd.catalog.segments import TileState
from vfsd.catalog.sqlite_connections import checkpoint_if_closed
from vfsd.catalog.tree import NAME_BYTES, Tree, not_found_error, require_name, split_path
from vfsd.catalog.video_query import FindOptions, VideoFilter, VideoQuery
from vfsd.catalog.videos import Objects, Videos

__all__ = [
    "BUSY_SECONDS",
    "DEFAULT_STALENESS",
    "NAME_BYTES",
    "ROOT",
    "Catalog",
    "ChangeWatch",
    "FindOptions",
    "Objects",
    "TileState",
    "Transaction",
    "Tree",
    "VideoFilter",
    "VideoQuery",
    "Videos",
    "absolute_url",
    "checkpoint_if_closed",
    "database_taken_error",
    "has_password",
    "is_shareable",
    "not_found_error",
    "redacted_url",
    "require_name",
    "split_path",
    "without_password",
]
