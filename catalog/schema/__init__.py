"""The tables.  This package is the reference of what is stored and what each column means.

Names of files, targets of links and extended attributes are bytes, as they are to the kernel.
Times that end in ``_ns`` are Unix time in nanoseconds.  A change here needs a migration.

    identity    whose catalog it is
    stored      objects, and what is known of their bytes
    tree        inodes, names and extended attributes
    encodings   videos, their stored encodings, frame tables and sound
    tiles       segments of tiles and renditions, and what decoding costs
    readlog     what was read, and what was made because of it
    limits      budgets, pins and evictions
    originals   policies, holds and the log of originals
    semantic    labelled boxes, their sources, and the frames that were examined
"""

from vfsd.catalog.schema.budgets import budgets, evictions, pins
from vfsd.catalog.schema.columns import metadata
from vfsd.catalog.schema.detections import detections, examined, labels, sources
from vfsd.catalog.schema.encodings import (
    frame_pages,
    physical_videos,
    sound_pages,
    sounds,
    tags,
    videos,
)
from vfsd.catalog.schema.identity import store_identity
from vfsd.catalog.schema.objects import block_sums, inspections, objects, scrubs
from vfsd.catalog.schema.policies import holds, original_log, policies
from vfsd.catalog.schema.read_log import decisions, reads
from vfsd.catalog.schema.tiles import cells, costs, segments
from vfsd.catalog.schema.tree import entries, nodes, orphans, xattrs

__all__ = [
    "block_sums",
    "budgets",
    "cells",
    "costs",
    "decisions",
    "detections",
    "entries",
    "evictions",
    "examined",
    "frame_pages",
    "holds",
    "inspections",
    "labels",
    "metadata",
    "nodes",
    "objects",
    "original_log",
    "orphans",
    "physical_videos",
    "pins",
    "policies",
    "reads",
    "scrubs",
    "segments",
    "sound_pages",
    "sounds",
    "sources",
    "store_identity",
    "tags",
    "videos",
    "xattrs",
]
