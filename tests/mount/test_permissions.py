"""Permissions of other users in a mount with allow_other."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from tests.support.selection import one_in
from tests.support.stores import new_store
from tests.support.syscalls import in_another_process
from vfsd.errors import UsageError

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch to another user"),
]

_ANN, _BEN = 12345, 12346
_TEAM = 12400


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory, fuse: None) -> Iterator[Mounted]:
    place = Mounted(tmp_path_factory.mktemp("open"))
    place.mount("allow_other,dev,suid")
    for folder in place.at.parents:  # so that other users can reach it
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
            os.chmod(folder, 0o755)
    yield place
    place.unmount()
    assert "ERROR" not in place.log.read_text()


@pytest.fixture
def all_may(open_to_all: Mounted, request: pytest.FixtureRequest) -> Path:
    """An empty directory that all users may write."""
    path = open_to_all.at / str(request.node.name)[:100]
    path.mkdir()
    os.chmod(path, 0o777)
    return path


def as_user(uid: int, code: str, *arguments: object, groups: tuple[int, ...] = ()) -> str:
    """The value of a Python expression for another user, or the name of an errno."""
    program = f"""
import errno, os, stat, sys
os.setgroups({list(groups)})
os.setgid({uid})
os.setuid({uid})
os.umask(0)
a = sys.argv[1:]
try:
    print({code})
except OSError as error:
    print(errno.errorcode[error.errno])
"""
    return in_another_process(program, *arguments)


def test_owner_of_created_files(all_may: Path) -> None:
    as_user(_ANN, "os.close(os.open(a[0], os.O_CREAT | os.O_WRONLY, 0o640))", all_may / "f")
    as_user(_ANN, "os.mkdir(a[0], 0o750)", all_may / "d")
    as_user(_ANN, "os.symlink('f', a[0])", all_may / "l")
    as_user(_ANN, "os.mkfifo(a[0])", all_may / "p")
    for name in "fdlp":
        found = os.lstat(all_may / name)
        assert (found.st_uid, found.st_gid) == (_ANN, _ANN)
    assert as_user(_BEN, "os.open(a[0], os.O_RDONLY)", all_may / "f") == "EACCES"
    assert as_user(_BEN, "os.listdir(a[0])", all_may / "d") == "EACCES"
    assert as_user(_BEN, "os.mknod(a[0], stat.S_IFCHR, 259)", all_may / "null") == "EPERM"


def test_no_changes_by_others(all_may: Path) -> None:
    (all_may / "f").write_bytes(b"x")
    for code in (
        "os.chmod(a[0], 0o777)",
        f"os.chown(a[0], {_ANN}, {_ANN})",
        "os.utime(a[0], (1, 1))",
    ):
        assert as_user(_ANN, code, all_may / "f") == "EPERM"
    for code in (
        "os.truncate(a[0], 0)",
        "os.open(a[0], os.O_WRONLY)",
        "os.setxattr(a[0], 'user.k', b'')",
        "os.utime(a[0])",
    ):
        assert as_user(_ANN, code, all_may / "f") == "EACCES"
    assert (all_may / "f").read_bytes() == b"x"


def test_setid_cleared_at_once(all_may: Path) -> None:
    """stat(1) asks for the mode alone, as does the kernel before it runs a program.  Without an
    invalidation it would return the cached mode for a second."""
    path = all_may / "program"
    as_user(_ANN, "os.close(os.open(a[0], os.O_CREAT | os.O_WRONLY, 0o777))", path)
    for change in (
        "(f := os.open(a[0], os.O_WRONLY), os.write(f, b'y'), os.close(f))",
        "os.truncate(a[0], 3)",
        "(f := os.open(a[0], os.O_WRONLY), os.posix_fallocate(f, 0, 5000), os.close(f))",
        "os.close(os.open(a[0], os.O_WRONLY | os.O_TRUNC))",
    ):
        told = "os.execvp('stat', ['stat', '-c', '%a', a[0]])"
        assert as_user(_ANN, f"(os.chmod(a[0], 0o6777), {change}, {told})", path) == "777"


def test_sticky_directory(all_may: Path) -> None:
    os.chmod(all_may, 0o1777)
    for name in ("f", "g"):
        as_user(_ANN, "os.mknod(a[0], 0o666)", all_may / name)
    as_user(_BEN, "os.mknod(a[0], 0o666)", all_may / "own")
    assert as_user(_BEN, "os.unlink(a[0])", all_may / "f") == "EPERM"
    assert as_user(_BEN, "os.rename(a[0], a[0] + 'x')", all_may / "f") == "EPERM"
    assert as_user(_BEN, "os.rename(a[0], a[1])", all_may / "own", all_may / "f") == "EPERM"
    assert as_user(_BEN, "os.unlink(a[0])", all_may / "own") == "None"
    assert as_user(_ANN, "os.unlink(a[0])", all_may / "g") == "None"
    assert os.listdir(all_may) == ["f"]


def test_setgid_directory_of_team(all_may: Path) -> None:
    os.chown(all_may, 0, _TEAM)
    os.chmod(all_may, 0o2777)
    as_user(_ANN, "os.mkdir(a[0], 0o755)", all_may / "d", groups=(_TEAM,))
    as_user(_ANN, "os.mknod(a[0], 0o664)", all_may / "d" / "f", groups=(_TEAM,))
    assert (all_may / "d").stat().st_gid == (all_may / "d" / "f").stat().st_gid == _TEAM
    assert (all_may / "d").stat().st_mode & stat.S_ISGID
    # A user outside of the group must not make a program that runs as the group.
    os.chown(all_may / "d" / "f", _ANN, _TEAM)
    as_user(_ANN, "os.chmod(a[0], 0o2775)", all_may / "d" / "f")
    assert not (all_may / "d" / "f").stat().st_mode & stat.S_ISGID


def test_supplementary_groups(all_may: Path) -> None:
    (all_may / "f").write_bytes(b"team")
    os.chown(all_may / "f", 0, _TEAM)
    os.chmod(all_may / "f", 0o640)
    code = "open(a[0]).read()"
    assert as_user(_ANN, code, all_may / "f", groups=(7, 8, _TEAM)) == "team"
    assert as_user(_ANN, code, all_may / "f", groups=(7, 8)) == "EACCES"


@pytest.mark.parametrize("flags", ["os.O_WRONLY", "os.O_RDWR"])
def test_write_clears_privileges(all_may: Path, flags: str) -> None:
    """A write removes set-uid, set-gid and capabilities, so that new code does not inherit them."""
    path = all_may / "program"
    path.write_bytes(b"#!")
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    os.setxattr(path, "security.capability", capability)
    os.chmod(path, 0o6777)
    as_user(_ANN, f"os.write(os.open(a[0], {flags}), b'x')", path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o777
    with pytest.raises(OSError, match="No data") as failed:
        os.getxattr(path, "security.capability")
    assert failed.value.errno == errno.ENODATA


def test_trusted_attributes(all_may: Path) -> None:
    path = all_may / "f"
    path.write_bytes(b"")
    os.setxattr(path, "trusted.k", b"v")
    os.setxattr(path, "user.k", b"v")
    assert "trusted.k" in os.listxattr(path)
    listed = as_user(_ANN, "*os.listxattr(a[0])", path).split()
    assert "user.k" in listed
    assert "trusted.k" not in listed
    assert as_user(_ANN, "os.getxattr(a[0], 'trusted.k')", path) == "ENODATA"
    assert as_user(_ANN, "os.setxattr(a[0], 'trusted.k', b'')", path) == "EPERM"


def test_view_access(all_may: Path) -> None:
    path = all_may / "v.mp4"
    path.write_bytes((FOLDER / "portrait.mp4").read_bytes())
    os.chmod(path, 0o600)
    assert os.getxattr(path, "user.vfsd.state") == b"video"
    frame = f"{path}@/frames/000000.png"
    assert as_user(_ANN, "len(open(a[0], 'rb').read())", frame) == "EACCES"
    assert as_user(_ANN, "os.listdir(a[0])", f"{path}@") == "EACCES"
    os.chmod(path, 0o644)
    end = time.monotonic() + 20  # the kernel caches the modes of views for a second
    while (read := as_user(_ANN, "len(open(a[0], 'rb').read())", frame)) == "EACCES":
        assert time.monotonic() < end
        time.sleep(0.1)
    assert int(read) > 100


@pytest.mark.parametrize(
    "name", one_in(3, ["traffic.mp4", "transport.ts", "mjpeg.avi", "open-gop.mkv"])
)
def test_ingest_from_private_mount(mounted: Mounted, tmp_path: Path, name: str) -> None:
    """The examiner has no access to the mount: it may only read the descriptor that it receives."""
    mounted.mount()
    shutil.copy(FOLDER / name, mounted.at / "film")
    with new_store(tmp_path / "other") as other:
        video = other.ingest(mounted.at / "film", name)
        assert not video.verify()  # nothing had to be corrected
        assert video.read(frames=[0]).data.any()
        with pytest.raises(UsageError, match="is in a mount of vfsd"):
            other.ingest(mounted.at / "film", "linked", link=True)
