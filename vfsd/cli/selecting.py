"""Which videos of a store a command is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vfsd.errors import NotFoundError

if TYPE_CHECKING:
    from vfsd.catalog import Catalog
    from vfsd.store import Store
    from vfsd.videos.video import Video


def videos_named(store: Store, names: Sequence[str]) -> list[Video]:
    """As `named`, without the names."""
    return list(named(store, names).values())


def named(store: Store, names: Sequence[str]) -> dict[str, Video]:
    """The videos with these names, each once, in that order; by the name that was given.

    A name with ``*``, ``?`` or ``[`` in it that nothing has is a pattern, as of `vfsd find`.
    Raises `NotFoundError` for a name that no video has, or a pattern that no name fits.
    """
    found: dict[str, Video] = {}
    for name in names:
        if set("*?[") & set(name) and name not in store:
            fitting = list(store.find(name))
            if not fitting:
                raise NotFoundError(f"no video matches {name!r}", hint="see `vfsd find`")
            found.update((video.name, video) for video in fitting)
        else:
            found.setdefault(name, store[name])
    return found


def matched_paths(catalog: Catalog, names: Sequence[str]) -> list[str]:
    """Paths of entries of any kind, each once, in the order given.

    A name with ``*``, ``?`` or ``[`` in it that has no entry is a pattern for the names of videos.
    Raises `NotFoundError` for a pattern that no name fits; other names are not looked up.
    """
    found: dict[str, None] = {}
    for name in names:
        fitting = [name]
        if set("*?[") & set(name) and not _has_entry(catalog, name):
            fitting = [video.name for video in catalog.find(name)]
            if not fitting:
                raise NotFoundError(f"no video matches {name!r}", hint="see `vfsd find`")
        found.update(dict.fromkeys(fitting))
    return list(found)


def _has_entry(catalog: Catalog, name: str) -> bool:
    try:
        with catalog.reading() as seen:
            seen.tree.resolve(name)
    except NotFoundError:
        return False
    return True
