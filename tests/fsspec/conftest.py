from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores import new_store


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[Any]:
    """The file system of a new store."""
    fsspec = pytest.importorskip("fsspec")
    from vfsd.fsspec import VfsdFileSystem

    # As the entry point does, where the package is installed.
    fsspec.register_implementation("vfsd", VfsdFileSystem, clobber=True)
    new_store(tmp_path / "store").close()
    found = VfsdFileSystem(store=tmp_path / "store")
    yield found
    found.close()
    VfsdFileSystem.clear_instance_cache()
