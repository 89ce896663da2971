"""All checks, one after the other."""

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
    ("digests", originals.digests),  # by which it is told whose labels they are
    ("videos", originals.videos),
    ("linked", originals.linked),
    ("sums", originals.sums),
    ("damage", originals.damage),
)
_DEEP: tuple[tuple[str, Check], ...] = (
    ("content", objects.content),
    ("private", namespace_checks.readable),
)
"""Those that read all that is stored."""

_NO_SENSE = (
    *(IntegrityError, TypeError, ValueError, LookupError),
    *(ArithmeticError, AttributeError, MemoryError),
)
"""What comes of a catalog that makes no sense.  Not of disks that fail or are full, nor of others
who hold the store."""

OnProgress = Callable[[str, int, int], None]
"""Called with (name of the check, checks done, checks in all)."""


def run(
    parts: StoreContext,
    *,
    repair: bool = False,
    deep: bool = False,
    on_progress: OnProgress | None = None,
) -> list[Finding]:
    """Run every check; what they found, and whether it was repaired.

    Checks that only make sense on a store at rest are left out while it is mounted.  A store may
    be used, and mounted, meanwhile: what was found is looked at again before it is told, and
    inside the transaction that repairs it.  A check that can make no sense of the catalog, or may
    not do what it has to, says so, and the next one is made.  Raises `BusyError`, `NoSpaceError`,
    `OSError`, and `StoreError` before anything is repaired where all objects are gone, as those of
    a disk that is not mounted.
    """
    if repair:
        parts.require_objects_present()
    state = CheckRun(parts, repair)
    checks = [*_CHECKS, *(_DEEP if deep else ())]
    findings: list[Finding] = []
    for done, (name, check) in enumerate(checks):
        if on_progress is not None:
            on_progress(name, done, len(checks))
        # One at a time: what was found, and repaired, before it could not go on is told, too.
        try:
            for finding in check(state):
                findings.append(finding)
        except _NO_SENSE as error:
            findings.append(Finding(name, f"this cannot be checked: {_said(error)}"))
        except PermissionError as error:
            findings.append(Finding(name, f"this may not be looked at, or not be changed: {error}"))
    return findings


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, VfsdError) else f"{type(error).__name__}: {error}"
