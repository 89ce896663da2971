"""Finds the video of a store that a path, a URL or a name leads to.

A path in a mount is recognised as on the command line: by the identity that the mount reports for
it.  The video is then read from the store's directory, so that no byte passes through FUSE.  Each
store is opened once in a process and stays open.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from vfsd.core.open_once import OpenOnce
from vfsd.errors import BusyError, MountError, NoStoreError, StoreError, UsageError
from vfsd.mount.mounted_path import resolve

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video

_log = logging.getLogger(__name__)

SCHEME = "vfsd://"
VARIABLE = "VFSD_STORE"

_stores: OpenOnce[tuple[str, int, int], Store] = OpenOnce()
"""By path, device and inode of the store's directory."""


def video_of(source: object) -> Video | None:
    """Return the video that `source` leads to, or None if it is not in a store.

    `source` is one of

    - a path in a mount,
    - ``vfsd:///srv/videos//cam1/a.mp4``: the path of a store, ``//``, and a name in it,
    - ``vfsd://cam1/a.mp4`` or, where no such file exists, ``cam1/a.mp4``: a name in the store of
      $VFSD_STORE.

    Everything else leads to None: other files, views and plain files in a mount, URLs of other
    schemes, and objects that are not paths.

    Raises `UsageError` and `NotFoundError` for a malformed ``vfsd://`` URL and one without a video,
    `BusyError` if a mount does not answer, and the errors of `Store.open`.
    """
    if not isinstance(source, str | os.PathLike):
        return None
    path = os.fspath(source)
    if not isinstance(path, str) or not path:
        return None
    if path.startswith(SCHEME):
        return _video_of_url(path)
    if "://" in path:
        return None
    try:
        (found,) = resolve([path], _known())
    except BusyError:
        raise
    except (StoreError, MountError) as error:
        # The store is not visible here, but its files are: the peer reads them through the mount.
        _log.warning("%s is read through its mount: %s", path, error)
        return None
    if found is not None:
        return shared_store(found.root).get(found.name) if found.name else None
    named = os.environ.get(VARIABLE)
    if not named or os.path.isabs(path) or os.path.lexists(path):
        return None
    try:
        return shared_store(named).get(path)
    except UsageError:  # not a name that a video could have
        return None


def shared_store(root: str | os.PathLike[str]) -> Store:
    """Return this process's open store in the directory `root`.

    It is opened for reading alone where the directory cannot be written.  Raises as `Store.open`.
    """
    from vfsd.api.store import Store

    def opened() -> Store:
        read_only = os.path.isdir(root) and not os.access(root, os.W_OK)
        return Store.open(root, read_only=read_only)

    return _stores.get(_identity(root), opened)


def close_stores() -> None:
    """Close the stores that this process has open here; their videos cannot be read any more."""
    _stores.close()


def _video_of_url(url: str) -> Video:
    root, separator, name = url.removeprefix(SCHEME).partition("//")
    if not separator:
        name, root = root, os.environ.get(VARIABLE, "")
    if not root or not name:
        raise UsageError(
            f"{url} must be {SCHEME}STORE//NAME",
            hint=f"for example {SCHEME}/srv/videos//cam1/a.mp4; without STORE// the name is one "
            f"in the store of ${VARIABLE}",
        )
    return shared_store(root)[name]


def _known() -> list[Path]:
    """Directories to try for a mount whose store has another path here."""
    named = os.environ.get(VARIABLE)
    return [Path(named)] if named else []


def _identity(root: str | os.PathLike[str]) -> tuple[str, int, int]:
    """Return a key that another store at the same path does not have."""
    path = os.path.realpath(root)
    try:
        status = os.stat(path)
    except OSError as error:
        raise NoStoreError(f"{path} cannot be opened: {error.strerror}") from error
    return path, status.st_dev, status.st_ino
