"""Linked files that are in a mount of vfsd when they are indexed, or later."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.cli.conftest import run_command
from tests.mount.conftest import Mounted
from tests.support.disks import mounted as bound
from vfsd.api.store import Store
from vfsd.errors import IntegrityError, UsageError

pytestmark = pytest.mark.mount

CLIP = FOLDER / "portrait.mp4"


@pytest.fixture
def shown(mounted: Mounted) -> Mounted:
    with Store.open(mounted.store) as store:
        store.ingest(CLIP, "cam1/v.mp4")
    mounted.mount()
    return mounted


@pytest.fixture
def binds() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def refuse(root: Path, path: Path) -> None:
    """Check that the API and the command refuse to link the file, and do not change the store."""
    with Store.open(root) as store:
        before = list(store)
        with pytest.raises(UsageError, match="is in a mount of vfsd"):
            store.ingest(path, "linked.mp4", link=True)
        assert list(store) == before
    done = run_command("-s", root, "ingest", "--link", path, "--as", "linked.mp4")
    assert done.code == UsageError.exit_code
    assert "leave out --link" in done.err


def read_soon(path: Path) -> type[Exception] | None:
    """Read a file in a thread with a timeout, since a deadlock cannot be interrupted."""
    failed: list[type[Exception] | None] = []

    def read() -> None:
        try:
            path.read_bytes()
        except OSError as error:
            failed.append(type(error))
        else:
            failed.append(None)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(30)
    assert failed, "it hangs"
    return failed[0]


def test_own_mount(shown: Mounted, tmp_path: Path, binds: ExitStack) -> None:
    path = shown.at / "cam1/v.mp4"
    refuse(shown.store, path)
    (tmp_path / "link").symlink_to(path)
    refuse(shown.store, tmp_path / "link")
    data = binds.enter_context(bound(tmp_path / "data", "--bind", shown.at / "cam1"))
    refuse(shown.store, data / "v.mp4")
    done = run_command("-s", shown.store, "ingest", "--link", "--replace", path, "--as", "w.mp4")
    assert done.code == UsageError.exit_code
    assert path.read_bytes() == CLIP.read_bytes()


def test_another_mount(shown: Mounted, tmp_path: Path) -> None:
    other = Mounted(tmp_path / "other")
    refuse(other.store, shown.at / "cam1/v.mp4")


def test_stacked_mount(shown: Mounted, tmp_path: Path) -> None:
    """Another file system shows the contents of the mount."""
    if shutil.which("mergerfs") is None:
        pytest.skip("mergerfs is not installed")
    over = tmp_path / "over"
    over.mkdir()
    subprocess.run(["mergerfs", shown.at, over], check=True)
    try:
        refuse(shown.store, over / "cam1/v.mp4")
    finally:
        subprocess.run(["umount", "-l", over], check=True)


@pytest.mark.parametrize("how", ["mounted over", "bound over", "link"])
def test_path_comes_to_lie_in_mount(
    mounted: Mounted, tmp_path: Path, binds: ExitStack, how: str
) -> None:
    """An indexed file is refused once its path leads into the mount, even to itself."""
    folder = mounted.at if how == "mounted over" else tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    shutil.copy2(CLIP, folder / "v.mp4")
    with Store.open(mounted.store) as store:
        store.ingest(folder / "v.mp4", "v.mp4", link=True)
        assert store["v.mp4"][0].data.any()
    at = mounted.mount("nonempty")
    if how == "bound over":
        assert read_soon(at / "v.mp4") is None
        binds.enter_context(bound(folder, "--bind", at))
    elif how == "link":
        folder.rename(tmp_path / "aside")
        folder.symlink_to(at)
    assert read_soon(at / "v.mp4") is OSError
    with Store.open(mounted.store) as store, pytest.raises(IntegrityError, match="mount of vfsd"):
        store["v.mp4"].read(frames=[0])
    os.unlink(at / "v.mp4")
    assert os.listdir(at) == []


def test_own_files_elsewhere(tmp_path: Path, mounted: Mounted, binds: ExitStack) -> None:
    """The store recognizes its own files in a bind mount and under another name."""
    with Store.open(mounted.store) as store:
        key = store.ingest(CLIP, "v.mp4").info.digest
        object_ = store.parts.objects.path(key)
        bind = binds.enter_context(bound(tmp_path / "b", "--bind", mounted.store / "objects"))
        os.link(object_, tmp_path / "hard.mp4")
        for path in (bind / key[:2] / key[2:], tmp_path / "hard.mp4"):
            with pytest.raises(UsageError, match="store's own files"):
                store.ingest(path, "linked.mp4", link=True)
        assert list(store) == ["v.mp4"]
