"""Checks that find, and repair, one broken promise each; and the collection of garbage.

catalog        the database file is whole, and has in each column what that may have
orphans        no file without a name is left when nobody can have it open
pending        no file waits for judgement when no mount is there to judge it
links          every file counts as many names as it has, and can be reached; every name leads to
               one; every directory lies in one other, and none in itself
spool          every file that is no video has its private bytes, and nothing else lies there
tiles          every segment of tiles has its pack, with the cells that it says; joined ones come
               in pairs
decisions      every decision to tile means the segment that it has made
objects        every recorded object is there, in its full size
recordings     no recording waits for `vfsd recover`
garbage        nothing lies among the objects that the catalog does not know
budgets        what derived data takes keeps within its budgets, and pins are of frames there are
digests        every video in the store is called as its object
videos         every video has an original, and a frame table that can be read and adds up
linked         every file indexed in place is where it was, what it was, and one that may be shown
sums           the sums of blocks are of files that there are, and as many as these have blocks;
               (deep) of objects whose bytes are right, they are right, too
damage         no original is known to be damaged
content        (deep) every object's bytes hash to its name
permissions    (deep) every object may be read by who runs this
private        (deep) the disk gives the bytes of every file that is no video

A check that can make no sense of the catalog is itself a finding.
"""

from __future__ import annotations

from vfsd.maintenance.fsck.finding import Finding
from vfsd.maintenance.fsck.gc import GarbageReport, collect
from vfsd.maintenance.fsck.namespace_checks import under_way
from vfsd.maintenance.fsck.namespace_repair import LOST_AND_FOUND
from vfsd.maintenance.fsck.runner import OnProgress, run

__all__ = [
    "LOST_AND_FOUND",
    "Finding",
    "GarbageReport",
    "OnProgress",
    "collect",
    "run",
    "under_way",
]
