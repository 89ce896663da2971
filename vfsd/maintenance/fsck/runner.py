"""Runs all checks of a store in order and collects their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vfsd.errors import IntegrityError, VfsdError
from vfsd.maintenance.fsck import derived, namespace_checks, objects, originals
from vfsd.maintenance.fsck.finding import CheckRun, Finding
from vfsd.storage.context import StoreContext

Check = Callable[[CheckRun], Iterator[Finding]]

_CHECKS: tuple[tuple[str, Check], ...] = (
    ("catalog", namespace_checks.catalog),
    ("orphans", namespace_checks.orphans),
    ("pending", namespace_checks.pending),
    ("links", namespace_checks.links),
    ("spool", namespace_checks.spool),
    ("tiles", derived.tiles),
    ("decisions", derived.decisions),
    ("objects", objects.objects),
    ("recordings", objects.unfinished),
    ("garbage", objects.garbage),
    ("budgets", derived.budgets),
    ("digests", originals.digests),  # first: a digest identifies the labels of a video
    ("videos", originals.videos),
    ("linked", originals.linked),
    ("sums", originals.sums),
    ("damage", originals.damage),
)
_DEEP: tuple[tuple[str, Check], ...] = (
    ("content", objects.content),
    ("private", namespace_checks.readable),
)
"""Checks that read all stored bytes."""

_BAD_CATALOG_ERRORS = (
    *(IntegrityError, TypeError, ValueError, LookupError),
    *(ArithmeticError, AttributeError, MemoryError),
)
"""Errors that a damaged catalog can cause, unlike a failing disk, a full disk or a busy store."""

OnProgress = Callable[[str, int, int], None]
"""Called with (name of the check, checks done, total number of checks)."""


def run(
    context: StoreContext,
    *,
    repair: bool = False,
    deep: bool = False,
    on_progress: OnProgress | None = None,
) -> list[Finding]:
    """Run every check, and return the findings in order.

    The store may be in use and mounted.  A check verifies each inconsistency again before it
    reports it, and once more inside the transaction that repairs it.  Checks that need an unmounted
    store skip a mounted one.  A check that fails on a damaged catalog, or lacks a permission,
    reports that as a finding, and the next check runs.

    Raises `StoreError` before any repair if all objects are missing, as on a disk that is not
    mounted.  Raises `BusyError`, `NoSpaceError` and `OSError`.
    """
    if repair:
        context.require_objects_present()
    state = CheckRun(context, repair)
    checks = [*_CHECKS, *(_DEEP if deep else ())]
    findings: list[Finding] = []
    for done, (name, check) in enumerate(checks):
        if on_progress is not None:
            on_progress(name, done, len(checks))
        # One at a time: findings, and repairs, before an error must be reported as well.
        try:
            for finding in check(state):
                findings.append(finding)
        except _BAD_CATALOG_ERRORS as error:
            findings.append(Finding(name, f"this check cannot continue: {_error_text(error)}"))
        except PermissionError as error:
            findings.append(Finding(name, f"this check lacks a permission: {error}"))
    return findings


def _error_text(error: Exception) -> str:
    return str(error) if isinstance(error, VfsdError) else f"{type(error).__name__}: {error}"
