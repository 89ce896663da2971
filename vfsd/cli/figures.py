"""What ``vfsd stats``, ``top`` and ``metrics`` ask a store and its mount."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import BusyError

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.mount.fs.stats import Standing


@dataclass(frozen=True, slots=True)
class Stored:
    """What a store holds.  Bytes, but for `videos`, `damaged` and `without_sums`."""

    videos: int
    damaged: int  #: files of which bytes are known to be damaged
    without_sums: int  #: originals that are read without being compared
    originals: int  #: what several videos have counts once
    tiles: int  #: that reads may use
    renditions: int  #: that reads may use
    joined: int  #: pictures of cameras that are kept together
    retired: int  #: kept for a step back
    pinned: int
    free: int  #: on the disk


STORED_FIELDS = {
    "videos": "number of videos",
    "damaged": "number of stored files with bytes that are known to be damaged: `vfsd fsck` names "
    "them",
    "without_sums": "number of originals that have no sums of their blocks yet: `vfsd scrub` makes "
    "them",
    "originals": "bytes of originals; what several videos have counts once",
    "tiles": "bytes of tiles that reads may use",
    "renditions": "bytes of renditions that reads may use",
    "joined": "bytes of pictures of cameras that are kept together",
    "retired": "bytes of what is kept for a step back",
    "pinned": "bytes of what is pinned",
    "free": "bytes that are free on the disk",
}


def stored(store: Store) -> Stored:
    usage = store.budget.usage()
    with store.catalog.reading() as seen:
        damaged = len(seen.integrity.damaged())
        without_sums = seen.integrity.without_sums()
        originals = seen.holdings.stored_bytes()
    return Stored(
        len(store),
        damaged,
        without_sums,
        originals,
        usage.tiles,
        usage.renditions,
        usage.joined,
        usage.retired,
        usage.pinned,
        shutil.disk_usage(store.path).free,
    )


def standing_of(root: Path) -> Standing | None:
    """How the mount of a store is doing; None where it is not mounted, or does not answer."""
    from vfsd.disk.mount_client import own_attribute
    from vfsd.mount.fs.stats import Standing
    from vfsd.mount.fs.xattrs import STATS

    directory = StoreDirectory.open(root)
    place = (directory.mounted_by() or {}).get("place")
    if not place:
        return None
    try:
        return Standing.parse(own_attribute(str(place), STATS, directory.identity).decode())
    except (OSError, BusyError, ValueError):
        return None


def standing_record(standing: Standing) -> dict[str, Any]:
    return {
        "pid": standing.pid,
        "seconds": standing.seconds,
        "cpu_seconds": standing.cpu_seconds,
        "memory": standing.memory,
        "threads": standing.threads,
        "descriptors": standing.descriptors,
        "operations": {
            name: {
                "count": tally.count,
                "failed": tally.failed,
                "seconds": tally.seconds,
                "bytes": tally.bytes,
                "p50": tally.within(0.5),
                "p99": tally.within(0.99),
            }
            for name, tally in standing.operations.items()
        },
        "rendering": None if standing.rendering is None else asdict(standing.rendering),
        "passthrough": standing.passthrough,
    }
