"""The choice between the bindings to libfuse, and a mount with each of them."""

from __future__ import annotations

import ctypes.util
import os
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from vfsd.errors import FuseMissingError, UsageError
from vfsd.mount.fuse.libfuse import BINDING_VARIABLE, load

pytestmark = pytest.mark.mount

VIDEO = (FOLDER / "portrait.mp4").read_bytes()


def has_libfuse2() -> bool:
    return bool(ctypes.util.find_library("fuse"))


def test_prefers_mfusepy() -> None:
    if not ctypes.util.find_library("fuse3"):
        pytest.skip("libfuse 3 is not installed")
    binding = load()
    assert (binding.name, binding.major) == ("mfusepy", 3)
    assert "FUSE_LIBRARY_NAME" not in os.environ


def test_unknown_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINDING_VARIABLE, "pyfuse3")
    with pytest.raises(UsageError, match="pyfuse3"):
        load()


@pytest.mark.skipif(has_libfuse2(), reason="fusepy finds its library here")
def test_fusepy_without_library(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINDING_VARIABLE, "fusepy")
    with pytest.raises(FuseMissingError) as caught:
        mounted.mount()
    assert caught.value.hint


@pytest.mark.skipif(not has_libfuse2(), reason="libfuse 2 is not installed")
@pytest.mark.parametrize("name", ["fusepy", "mfusepy"])
def test_libfuse_2(mounted: Mounted, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pytest.importorskip({"fusepy": "fuse", "mfusepy": "mfusepy"}[name])
    monkeypatch.setenv(BINDING_VARIABLE, name)
    monkeypatch.setenv("FUSE_LIBRARY_NAME", "fuse")
    at = mounted.mount()
    use(at)
    mounted.unmount()
    mounted.mount("ro")
    assert (at / "v.mp4").read_bytes() == VIDEO
    assert f"libfuse 2.9 through {name}" in mounted.log.read_text()


def use(at: Path) -> None:
    """Use some operations of each kind."""
    (at / "v.mp4").write_bytes(VIDEO)
    assert os.getxattr(at / "v.mp4", "user.vfsd.state") == b"video"
    assert (at / "v.mp4@/info.json").read_bytes().startswith(b"{")
    name = os.fsdecode(b"caf\xe9")
    (at / "d").mkdir()
    (at / "d" / name).write_text("x")
    os.symlink(name, at / "d/link")
    os.link(at / "d" / name, at / "d/hard")
    assert (at / "d/link").read_text() == "x"
    assert sorted(os.listdir(at / "d")) == sorted([name, "hard", "link"])
    os.utime(at / "v.mp4", ns=(5, 6))
    os.setxattr(at / "v.mp4", "user.k", b"v")
    assert os.listxattr(at / "v.mp4")[0] == "user.k"
    os.removexattr(at / "v.mp4", "user.k")
    with open(at / "open", "w+") as file:
        os.unlink(at / "open")
        file.write("still")
        file.seek(0)
        assert file.read() == "still"
        assert sorted(os.listdir(at)) == ["d", "v.mp4"]
    (at / "old").write_text("old")
    with open(at / "old") as file:
        os.rename(at / "d/hard", at / "old")
        assert file.read() == "old"
    assert (at / "old").read_text() == "x"
    os.truncate(at / "old", 0)
    os.chmod(at / "old", 0o600)
    os.chown(at / "old", 1, 2)
    found = os.stat(at / "old")
    assert (found.st_size, found.st_uid, found.st_gid, found.st_mode & 0o777) == (0, 1, 2, 0o600)
    assert os.stat(at / "v.mp4").st_mtime_ns == 6
    assert os.statvfs(at).f_blocks > 0
    os.mkfifo(at / "fifo")
    folder = os.open(at, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    (at / "d/link").unlink()
    (at / "d" / name).unlink()
    (at / "d").rmdir()
