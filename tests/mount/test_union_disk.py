"""A store on a FUSE disk that shows hard links of one file as separate files (mergerfs)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from vfsd.api.store import Store
from vfsd.maintenance.fsck import run as check

pytestmark = pytest.mark.mount

CLIP = FOLDER / "portrait.mp4"


@pytest.fixture
def union(tmp_path: Path) -> Iterator[Mounted]:
    """A store on mergerfs, where two hard links have different inode numbers."""
    if shutil.which("mergerfs") is None:
        pytest.skip("mergerfs is not installed")
    branch, top = tmp_path / "branch", tmp_path / "union"
    branch.mkdir()
    top.mkdir()
    options = "cache.files=partial,dropcacheonclose=true,inodecalc=path-hash"
    subprocess.run(["mergerfs", "-o", options, branch, top], check=True)
    try:
        place = Mounted(top)
        yield place
        place.unmount()
    finally:
        subprocess.run(["umount", "-l", top], check=True)


def objects_left(store: Path) -> list[Path]:
    """All files in the store that hold bytes of objects."""
    return [path for path in (store / "objects").rglob("*") if path.is_file()]


def test_hard_links_differ(union: Mounted) -> None:
    one, other = union.root / "one", union.root / "other"
    one.write_bytes(b"x")
    os.link(one, other)
    assert one.stat().st_ino != other.stat().st_ino


def test_mount_leaves_one_name(union: Mounted) -> None:
    at = union.mount()
    shutil.copyfile(CLIP, at / "a.mp4")
    assert os.getxattr(at / "a.mp4", "user.vfsd.state") == b"video"
    union.wait_for(lambda: not list((union.store / "spool").iterdir()), "its private file stays")
    assert len(objects_left(union.store)) == 1
    os.unlink(at / "a.mp4")
    union.wait_for(lambda: not objects_left(union.store), "its bytes stay")


def test_commands_leave_one_name(union: Mounted) -> None:
    with Store.open(union.store) as store:
        for _ in range(2):
            store.ingest(CLIP, "a.mp4", replace=True)
        store.ingest(CLIP, "b.mp4")
        assert len(objects_left(union.store)) == 1
        assert check(store.parts) == []
        store.remove("a.mp4")
        store.remove("b.mp4")
        assert objects_left(union.store) == []
