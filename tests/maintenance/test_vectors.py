"""Vectors are kept like originals: by backups, `fsck`, `scrub` and garbage collection."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd import Store
from vfsd.maintenance import fsck
from vfsd.maintenance.backup import back_up
from vfsd.maintenance.restore import restore
from vfsd.maintenance.scrub import Scrubber

MATRIX = np.random.default_rng(0).normal(size=(50, 24)).astype(np.float16)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A store with one video, whose vectors are one object."""
    with new_store(tmp_path / "store") as store:
        store.ingest(FOLDER / "traffic.mp4", "a.mp4").vectors.add(MATRIX, range(50), "clip")
    return tmp_path / "store"


def object_of(store: Store) -> Path:
    with store.catalog.reading() as seen:
        (block,) = seen.vectors.all()
    return store.parts.objects.path(block.object_key)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


@pytest.mark.parametrize("derived", [True, False])
def test_backup_scrub_and_restore(made: Path, tmp_path: Path, derived: bool) -> None:
    target = tmp_path / "backup"
    with Store.open(made) as store:
        back_up(store.parts, target, derived=derived)
        damage(object_of(store))
        (found,) = fsck.run(store.parts, deep=True)
        assert found.check == "content"
        assert "the vectors of a.mp4" in found.message
        (again,) = fsck.run(store.parts, repair=True)  # known by now; only a copy repairs it
        assert (again.check, again.repaired) == ("damage", False)
        assert len(list(Scrubber(store.parts, [store["a.mp4"].info]).run())) == 1
        with Store.open(target, read_only=True) as copy:
            assert np.array_equal(copy["a.mp4"].vectors.get().matrix, MATRIX)
            (put_back,) = Scrubber(store.parts, sources=[copy.parts.objects]).run()
        assert (put_back.kind, put_back.names, put_back.repaired) == (
            "vectors",
            ("a.mp4",),
            "put back",
        )
        assert np.array_equal(store["a.mp4"].vectors.get().matrix, MATRIX)
        assert fsck.run(store.parts, deep=True) == []
        object_of(store).unlink()
    restore(target, made)
    with Store.open(made) as store:
        assert np.array_equal(store["a.mp4"].vectors.get().matrix, MATRIX)
        assert fsck.run(store.parts, deep=True) == []


def test_missing_object_stays_known(made: Path) -> None:
    with Store.open(made) as store:
        object_of(store).unlink()
        fsck.collect(store.parts)
        (found,) = fsck.run(store.parts, repair=True)
        assert (found.check, found.repaired) == ("objects", False)
        assert "vectors of a.mp4" in found.message
        # Added again, they are there.
        store["a.mp4"].vectors.add(MATRIX, range(50), "clip", replace=True)
        assert fsck.run(store.parts, deep=True) == []
        assert store["a.mp4"].vectors.remove() == 50
        assert len(set(store.parts.objects.all_keys())) == 1
