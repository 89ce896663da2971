"""The tables: the reference of what is stored, and what each column means.

Names of files, targets of links and extended attributes are bytes, as in the kernel.  Times ending
in ``_ns`` are Unix time in nanoseconds.  A change here needs a migration.

    identity    the store that owns the catalog, its homes and their mounts
    stored      objects, uploads, checksums and inspections
    tree        inodes, names, extended attributes, small files and their writers
    encodings   videos, their stored encodings, frame tables and sound
    tiles       segments of tiles and renditions, and decoding costs
    readlog     reads, and tiling decisions made from them
    limits      budgets, pins, evictions and renditions that policies made
    originals   policies, holds and the log of originals
    semantic    labelled boxes, their sources, examined frames, moments, vectors, layers
"""

from vfsd.catalog.schema.columns import catalog_state, homes, metadata, mounts, store_identity
from vfsd.catalog.schema.file_tables import (
    IS_ROOT,
    ROOT,
    block_sums,
    entries,
    garbage,
    holds,
    inspections,
    nodes,
    objects,
    original_log,
    orphans,
    pack_tables,
    policies,
    scrubs,
    small_files,
    uploads,
    writers,
    xattrs,
)
from vfsd.catalog.schema.usage_tables import (
    browser_renditions,
    budgets,
    decisions,
    evictions,
    pins,
    read_notes,
    reads,
    suspects,
    work_orders,
    work_results,
    work_units,
)
from vfsd.catalog.schema.video_tables import (
    box_counts,
    cells,
    costs,
    detections,
    examined,
    frame_pages,
    labels,
    layer_indexes,
    layers,
    moments,
    physical_videos,
    searches,
    segments,
    sound_pages,
    sounds,
    sources,
    tags,
    vectors,
    videos,
)

__all__ = [
    "IS_ROOT",
    "ROOT",
    "block_sums",
    "box_counts",
    "browser_renditions",
    "budgets",
    "catalog_state",
    "cells",
    "costs",
    "decisions",
    "detections",
    "entries",
    "evictions",
    "examined",
    "frame_pages",
    "garbage",
    "holds",
    "homes",
    "inspections",
    "labels",
    "layer_indexes",
    "layers",
    "metadata",
    "moments",
    "mounts",
    "nodes",
    "objects",
    "original_log",
    "orphans",
    "pack_tables",
    "physical_videos",
    "pins",
    "policies",
    "read_notes",
    "reads",
    "scrubs",
    "searches",
    "segments",
    "small_files",
    "sound_pages",
    "sounds",
    "sources",
    "store_identity",
    "suspects",
    "tags",
    "uploads",
    "vectors",
    "videos",
    "work_orders",
    "work_results",
    "work_units",
    "writers",
    "xattrs",
]
