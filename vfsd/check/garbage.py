"""What nothing refers to any more, and taking it away."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from vfsd.budget.reclaim import discard_unpublished, reclaim
from vfsd.check.spool import remove_stray_spool, stray_spool
from vfsd.copies.takeover import abandoned, discard_abandoned
from vfsd.leftovers import leftovers, take_away
from vfsd.making.recordings import KEPT_DAYS, Recording, recordings
from vfsd.objects import is_key
from vfsd.parts import Parts
from vfsd.regularfiles import is_full_directory, remove


@dataclass(frozen=True, slots=True)
class Collected:
    """Garbage that was, or would be, taken away."""

    objects: list[str] = field(default_factory=list)  #: keys
    files: list[Path] = field(default_factory=list)  #: private and temporary files
    bytes: int = 0
    kept: list[Recording] = field(default_factory=list)  #: that were not finished, and stay
    stuck: list[Path] = field(default_factory=list)  #: directories with something in them


def collect(parts: Parts, *, dry_run: bool = False, recording_days: float = KEPT_DAYS) -> Collected:
    """Take away what nothing refers to: objects, private files, what died on its way.

    Recordings that were not finished stay until nobody has written to them for so many days, and
    directories until what is in them is moved away.
    """
    with parts.catalog.reading() as seen:
        recorded = seen.objects.sizes()
        referenced = seen.objects.referenced()
    stray = [
        key for key in parts.objects.all_keys() if key not in recorded and key not in referenced
    ]
    unused = [key for key in recorded if key not in referenced]
    kept = [one for one in recordings(parts) if not one.is_older(recording_days)]
    left, files = leftovers(parts, but=kept), parts.objects.misnamed()
    incoming = abandoned(parts.directory)
    spooled = [path for _, path in stray_spool(parts)]
    own = {key: parts.objects.path(key) for key in stray + unused if is_key(key)}
    stuck = [path for path in [*own.values(), *left, *files, *spooled] if is_full_directory(path)]
    stray, unused = ([key for key in keys if own.get(key) not in stuck] for keys in (stray, unused))
    left, files, spooled = (
        [path for path in paths if path not in stuck] for paths in (left, files, spooled)
    )
    size = sum(_size(path) for path in left + files + incoming + spooled)
    size += sum(_size(own[key]) for key in stray + unused if key in own)
    if not dry_run:
        reclaim(parts, keys=unused)
        for key in stray:
            discard_unpublished(parts, key)
        take_away(parts, left)
        for path in files:
            remove(path)
        discard_abandoned(parts.directory)
        remove_stray_spool(parts)
    return Collected(unused + stray, left + files + incoming + spooled, size, kept, stuck)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
