"""What nothing refers to any more, and taking it away."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from vfsd.disk import view_cache_dir
from vfsd.disk.object_store import is_key
from vfsd.disk.safe_open import STAYS, is_full_directory, remove
from vfsd.maintenance.fsck.namespace_checks import remove_stray_spool, stray_spool
from vfsd.storage.catalog_swap import abandoned, discard_abandoned
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import discard_strays, reclaim
from vfsd.write.crash_recovery import delete_leftovers, find_leftovers
from vfsd.write.partial_files import KEPT_DAYS, UnfinishedRecording, unfinished_recordings


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """Garbage that was, or would be, taken away."""

    objects: list[str] = field(default_factory=list)  #: keys
    files: list[Path] = field(default_factory=list)  #: private, temporary and rendered ones
    bytes: int = 0
    kept: list[UnfinishedRecording] = field(
        default_factory=list
    )  #: that were not finished, and stay
    stuck: list[Path] = field(default_factory=list)  #: what cannot be deleted


def collect(
    parts: StoreContext, *, dry_run: bool = False, recording_days: float = KEPT_DAYS
) -> GarbageReport:
    """Take away what nothing refers to: objects, private files, what died on its way, and what was
    rendered of videos that have gone.

    Recordings that were not finished stay until nobody has written to them for so many days,
    directories until what is in them is moved away, and what may not be deleted.
    """
    found = _garbage(parts, recording_days)
    sizes = {path: _size(path) for path in found.paths}
    if dry_run:
        stuck = {path for path in sizes if is_full_directory(path)}
    else:
        _take_away(parts, found)
        still = _garbage(parts, recording_days).paths if sizes else []
        stuck = sizes.keys() & set(still)
    return GarbageReport(
        [key for key in found.keys if found.places.get(key) not in stuck],
        [path for path in found.files if path not in stuck],
        sum(size for path, size in sizes.items() if path not in stuck),
        found.kept,
        [path for path in sizes if path in stuck],
    )


@dataclass(frozen=True, slots=True)
class _Garbage:
    """What nothing refers to."""

    unused: list[str]  #: keys of objects that are recorded
    stray: list[str]  #: and of those that are not
    places: dict[str, Path]  #: where objects lie, or would: of those keys that are some
    left: list[Path]
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
        return self.left + self.misnamed + self.incoming + self.spooled + self.views

    @property
    def paths(self) -> list[Path]:
        return [*self.places.values(), *self.files]


def _garbage(parts: StoreContext, recording_days: float) -> _Garbage:
    with parts.catalog.reading() as seen:
        recorded = seen.objects.sizes()
        referenced = seen.objects.referenced()
        digests = seen.videos.digests()
    stray = [
        key for key in parts.objects.all_keys() if key not in recorded and key not in referenced
    ]
    unused = [key for key in recorded if key not in referenced]
    kept = [one for one in unfinished_recordings(parts) if not one.is_older(recording_days)]
    return _Garbage(
        unused,
        stray,
        {key: parts.objects.path(key) for key in unused + stray if is_key(key)},
        find_leftovers(parts, but=kept),
        parts.objects.misnamed(),
        abandoned(parts.directory),
        [path for _, path in stray_spool(parts)],
        view_cache_dir.stray_files(parts.directory.cache, digests),
        kept,
    )


def _take_away(parts: StoreContext, found: _Garbage) -> None:
    reclaim(parts, keys=found.unused)
    discard_strays(parts, found.stray)
    delete_leftovers(parts, found.left)
    for path in found.misnamed:
        with suppress(*STAYS):
            remove(path)
    discard_abandoned(parts.directory)
    remove_stray_spool(parts)
    view_cache_dir.delete(parts.directory.cache, found.views)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
