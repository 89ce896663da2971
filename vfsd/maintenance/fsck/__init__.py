"""Checks a store for inconsistencies, repairs them on request, and collects garbage.

`run` calls one function for each check.  A `Finding` carries the name of its check:

catalog        the database is intact, and each column holds values of its type
orphans        an unmounted store has no files without a name
pending        an unmounted store has no files that still wait for classification
links          the names form a tree, and each inode has as many names as its link count
spool          each file that is not a video has a private file, and the spool has no others
tiles          each segment of tiles has its pack with the recorded cells; joined segments
               come in pairs
decisions      each tiling decision refers to the segment that it made
objects        each recorded object exists and has its recorded size
recordings     no unfinished recording waits for `vfsd recover`
garbage        the object store and the view cache hold only files that the catalog needs
budgets        derived data stays within its budgets, and pins refer to existing frames
digests        the digest of each video in the store is the name of its object
videos         each video has an original, and a consistent frame table
linked         each file indexed in place exists, is unchanged, and may be served
sums           block checksums belong to existing files and cover them completely;
               (deep) they match the stored bytes
damage         no original is known to be damaged
content        (deep) the bytes of each object hash to its name
permissions    (deep) this process may read each object
private        (deep) each private file can be read from the disk

A catalog too damaged for a check produces a finding of that check.
"""

from __future__ import annotations

from vfsd.maintenance.fsck.finding import Finding
from vfsd.maintenance.fsck.gc import GarbageReport, collect
from vfsd.maintenance.fsck.namespace_checks import unfinished_file_count
from vfsd.maintenance.fsck.namespace_repair import LOST_AND_FOUND
from vfsd.maintenance.fsck.runner import OnProgress, run

__all__ = [
    "LOST_AND_FOUND",
    "Finding",
    "GarbageReport",
    "OnProgress",
    "collect",
    "run",
    "unfinished_file_count",
]
