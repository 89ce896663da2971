"""Garbage collection: finds files and objects that the catalog does not need, and deletes them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from vfsd.disk import view_cache_dir
from vfsd.disk.object_store import is_key
from vfsd.disk.safe_open import STAYS, is_nonempty_directory, remove
from vfsd.maintenance.fsck.namespace import remove_stray_spool, stray_spool
from vfsd.storage.catalog_swap import abandoned, discard_abandoned
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import discard_strays, reclaim
from vfsd.write.unfinished_files import (
    KEPT_DAYS,
    UnfinishedRecording,
    delete_leftovers,
    find_leftovers,
    unfinished_recordings,
)


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """Garbage that `collect` deleted, or would delete in a dry run."""

    objects: list[str] = field(default_factory=list)  #: keys
    files: list[Path] = field(default_factory=list)  #: private, temporary and cached ones
    bytes: int = 0
    kept: list[UnfinishedRecording] = field(default_factory=list)  #: recordings too young to delete
    stuck: list[Path] = field(default_factory=list)  #: files that cannot be deleted


def collect(
    context: StoreContext, *, dry_run: bool = False, recording_days: float = KEPT_DAYS
) -> GarbageReport:
    """Delete unused objects and private files, temporary files, and views of removed videos.

    An unfinished recording stays for `recording_days` after its last write.  Directories that are
    not empty stay, as do files that cannot be deleted: they are reported as `stuck`.
    """
    found = _garbage(context, recording_days)
    sizes = {path: _size(path) for path in found.paths}
    if dry_run:
        stuck = {path for path in sizes if is_nonempty_directory(path)}
    else:
        _delete(context, found)
        still = _garbage(context, recording_days).paths if sizes else []
        stuck = sizes.keys() & set(still)
    return GarbageReport(
        [key for key in found.keys if found.paths_of_objects.get(key) not in stuck],
        [path for path in found.files if path not in stuck],
        sum(size for path, size in sizes.items() if path not in stuck),
        found.kept,
        [path for path in sizes if path in stuck],
    )


@dataclass(frozen=True, slots=True)
class _Garbage:
    """All garbage of a store, by its kind."""

    unused: list[str]  #: keys of objects that are recorded, but not used
    stray: list[str]  #: keys of objects that are not recorded
    paths_of_objects: dict[str, Path]  #: by key, without names that are not keys
    leftovers: list[Path]
    misnamed: list[Path]
    incoming: list[Path]
    spooled: list[Path]
    views: list[Path]
    kept: list[UnfinishedRecording]

    @property
    def keys(self) -> list[str]:
        return self.unused + self.stray

    @property
    def files(self) -> list[Path]:
        return self.leftovers + self.misnamed + self.incoming + self.spooled + self.views

    @property
    def paths(self) -> list[Path]:
        return [*self.paths_of_objects.values(), *self.files]


def _garbage(context: StoreContext, recording_days: float) -> _Garbage:
    with context.catalog.reading() as seen:
        recorded = seen.objects.sizes()
        referenced = seen.objects.referenced()
        digests = seen.videos.digests()
    stray = [
        key for key in context.objects.all_keys() if key not in recorded and key not in referenced
    ]
    unused = [key for key in recorded if key not in referenced]
    kept = [one for one in unfinished_recordings(context) if not one.is_older(recording_days)]
    return _Garbage(
        unused,
        stray,
        {key: context.objects.path(key) for key in unused + stray if is_key(key)},
        find_leftovers(context, but=kept),
        context.objects.misnamed(),
        abandoned(context.directory),
        [path for _, path in stray_spool(context)],
        view_cache_dir.stray_files(context.directory.cache, digests),
        kept,
    )


def _delete(context: StoreContext, found: _Garbage) -> None:
    reclaim(context, keys=found.unused)
    discard_strays(context, found.stray)
    delete_leftovers(context, found.leftovers)
    for path in found.misnamed:
        with suppress(*STAYS):
            remove(path)
    discard_abandoned(context.directory)
    remove_stray_spool(context)
    view_cache_dir.delete(context.directory.cache, found.views)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
