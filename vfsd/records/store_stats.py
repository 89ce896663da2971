"""Statistics of the contents of a store."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vfsd.api.store import Store


def _documented(text: str) -> Any:
    return dataclasses.field(metadata={"text": text})


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Contents of a store, in the order of the output."""

    videos: int = _documented("number of videos")
    damaged: int = _documented("number of stored files with known damage; `vfsd fsck` names them")
    without_sums: int = _documented(
        "number of originals without block checksums; `vfsd scrub` adds them"
    )
    originals: int = _documented("bytes of originals; shared bytes count once")
    tiles: int = _documented("bytes of tiles that reads may use")
    renditions: int = _documented("bytes of renditions that reads may use")
    joined: int = _documented("bytes of data joined with other videos")
    retired: int = _documented("bytes kept for a rollback")
    pinned: int = _documented("bytes of pinned data")
    free: int = _documented("free bytes on the disk")
    home: str | None = _documented("id of this home if the store has several, else null")


STORE_FIELDS = {one.name: one.metadata["text"] for one in dataclasses.fields(StoreStats)}
"""Keys of `StoreStats` in JSON."""


def store_stats(store: Store) -> StoreStats:
    """Return the contents of a store."""
    from vfsd.storage.homes import own_home  # the help of commands must not load the catalog

    usage = store.budget.usage()
    with store.catalog.reading() as seen:
        damaged = len(seen.integrity.damaged())
        without_sums = seen.integrity.count_without_checksums()
        originals = seen.derived_usage.stored_bytes()
    return StoreStats(
        videos=len(store),
        damaged=damaged,
        without_sums=without_sums,
        originals=originals,
        tiles=usage.tiles,
        renditions=usage.renditions,
        joined=usage.joined,
        retired=usage.retired,
        pinned=usage.pinned,
        free=shutil.disk_usage(store.path).free,
        home=own_home(store.parts),
    )
