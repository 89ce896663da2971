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
layers         each layer has a map of one channel for each of its frames
digests        the digest of each video in the store is the name of its object
boxes          the numbers of boxes by label and source are those of the boxes
videos         each video has an original, and a consistent frame table
vectors        the objects of vectors have the recorded shape, and their frames exist
linked         each file indexed in place exists, is unchanged, and may be served
sums           block checksums belong to existing files and cover them completely;
               (deep) they match the stored bytes
damage         no original is known to be damaged
bucket         (objects) the bucket has all objects with their sizes, and no other files
content        (deep) the bytes of each object hash to its name
permissions    (deep) this process may read each object
private        (deep) each private file can be read from the disk

A catalog too damaged for a check produces a finding of that check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from vfsd.errors import IntegrityError, UsageError, VfsdError
from vfsd.maintenance.fsck import derived, namespace, originals
from vfsd.maintenance.fsck import objects as stored_objects
from vfsd.maintenance.fsck.finding import CheckRun, Finding
from vfsd.maintenance.fsck.gc import GarbageReport, collect
from vfsd.maintenance.fsck.namespace import LOST_AND_FOUND, unfinished_file_count
from vfsd.storage.context import StoreContext

__all__ = [
    "LOST_AND_FOUND",
    "Finding",
    "GarbageReport",
    "OnProgress",
    "collect",
    "require_bucket",
    "run",
    "unfinished_file_count",
]


Check = Callable[[CheckRun], Iterator[Finding]]

_CHECKS: tuple[tuple[str, Check], ...] = (
    ("catalog", namespace.catalog),
    ("orphans", namespace.orphans),
    ("pending", namespace.pending),
    ("links", namespace.links),
    ("spool", namespace.spool),
    ("tiles", derived.tiles),
    ("decisions", derived.decisions),
    ("objects", stored_objects.objects),
    ("recordings", stored_objects.unfinished),
    ("garbage", stored_objects.garbage),
    ("budgets", derived.budgets),
    ("layers", derived.layers),
    ("digests", originals.digests),  # first: a digest identifies the labels of a video
    ("boxes", originals.box_counts),
    ("videos", originals.videos),
    ("vectors", originals.vectors),
    ("linked", originals.linked),
    ("sums", stored_objects.sums),
    ("damage", stored_objects.damage),
)
# Checks that read all stored bytes.
_DEEP: tuple[tuple[str, Check], ...] = (
    ("content", stored_objects.content),
    ("private", namespace.readable),
)

# Errors that a damaged catalog can cause, unlike a failing disk, a full disk or a busy store.
_BAD_CATALOG_ERRORS = (
    *(IntegrityError, TypeError, ValueError, LookupError),
    *(ArithmeticError, AttributeError, MemoryError),
)

OnProgress = Callable[[str, int, int], None]
"""Called with (name of the check, checks done, total number of checks); during a long check, with
its own steps."""


def run(
    context: StoreContext,
    *,
    repair: bool = False,
    deep: bool = False,
    objects: bool = False,
    on_progress: OnProgress | None = None,
) -> list[Finding]:
    """Run every check, and return the findings in order.

    `deep` reads all stored bytes; `objects` lists the bucket and compares it with the catalog.

    The store may be in use and mounted.  A check verifies each inconsistency again before it
    reports it, and once more inside the transaction that repairs it.  Checks that need an unmounted
    store skip a mounted one.  A check that fails on a damaged catalog, or lacks a permission,
    reports that as a finding, and the next check runs.

    Raises `UsageError` for `objects` without a bucket, and `StoreError` before any repair if all
    objects are missing, as on a disk that is not mounted.  Raises `BusyError`, `NoSpaceError` and
    `OSError`.
    """
    if repair:
        context.require_objects_present()
    checks = [*_CHECKS, *(_DEEP if deep else ())]
    if objects:
        from vfsd.maintenance.fsck.bucket import bucket  # most stores have none

        require_bucket(context)
        checks.append(("bucket", bucket))
    findings: list[Finding] = []
    for done, (name, check) in enumerate(checks):
        state = CheckRun(context, repair)
        if on_progress is not None:
            on_progress(name, done, len(checks))
            state = CheckRun(context, repair, partial(on_progress, name))
        # One at a time: findings, and repairs, before an error must be reported as well.
        try:
            for finding in check(state):
                findings.append(finding)
        except _BAD_CATALOG_ERRORS as error:
            findings.append(Finding(name, f"this check cannot continue: {_error_text(error)}"))
        except PermissionError as error:
            findings.append(Finding(name, f"this check lacks a permission: {error}"))
    return findings


def require_bucket(context: StoreContext) -> None:
    """Raise `UsageError` for a store without a bucket."""
    if context.objects.is_local:
        raise UsageError(
            "the store has no bucket", hint="leave the option out; `vfsd push` gives it one"
        )


def _error_text(error: Exception) -> str:
    return str(error) if isinstance(error, VfsdError) else f"{type(error).__name__}: {error}"
