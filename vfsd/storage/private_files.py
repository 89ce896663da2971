"""Copies of files that are no videos, and of settings, as one store has them, for another."""

from __future__ import annotations

import shutil
from pathlib import Path

from vfsd.disk.direct_io import stored_chunks
from vfsd.disk.store_layout import StoreDirectory


def copy_private(source: Path, copy: Path) -> None:
    """Copy a file of a store with its times and mode; there is no copy where that fails.

    Raises `FileNotFoundError` where it is not there, `IntegrityError` where the disk does not give
    it, or something else lies there, `OSError` where it cannot be written.
    """
    chunks = stored_chunks(source)
    try:
        with open(copy, "wb", buffering=0) as file:
            for chunk in chunks:
                view = memoryview(chunk)
                while view:
                    view = view[file.write(view) :]
        shutil.copystat(source, copy)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise


def bring_settings(source: StoreDirectory, target: StoreDirectory, coming: StoreDirectory) -> None:
    """Lay into `coming` what the settings of `target` are to be: those of `source`.

    Where that has none, and so the usual ones, those that `target` has must not stay.
    """
    if source.settings.exists():
        shutil.copy2(source.settings, coming.settings)
    elif target.settings.exists():
        coming.settings.touch()
