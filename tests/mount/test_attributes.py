"""Times, modes, owners, extended attributes and locks through the kernel."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from tests.support.syscalls import in_another_process

pytestmark = pytest.mark.mount

VIDEO = (FOLDER / "portrait.mp4").read_bytes()


def test_times(here: Path) -> None:
    path = here / "a"
    path.write_text("x")
    os.utime(path, ns=(1_234_567_890_123_456_789, 987_654_321_987_654_321))
    found = os.stat(path)
    assert (found.st_atime_ns, found.st_mtime_ns) == (
        1_234_567_890_123_456_789,
        987_654_321_987_654_321,
    )
    subprocess.run(["touch", "-m", "-d", "@5", path], check=True)
    assert (os.stat(path).st_atime_ns, os.stat(path).st_mtime) == (1_234_567_890_123_456_789, 5)
    subprocess.run(["touch", "-a", "-d", "@7", path], check=True)
    assert (os.stat(path).st_atime, os.stat(path).st_mtime) == (7, 5)
    subprocess.run(["touch", path], check=True)
    assert abs(os.stat(path).st_mtime - time.time()) < 10


def test_explicit_time_after_judgement(here: Path) -> None:
    path = here / "v.mp4"
    with open(path, "wb") as file:
        file.write(VIDEO)
        file.flush()
        os.utime(file.fileno(), (5, 6))
    before = os.stat(path)
    assert os.getxattr(path, "user.vfsd.state") == b"video"
    after = os.stat(path)
    assert (after.st_atime, after.st_mtime) == (5, 6)
    for field in ("st_ino", "st_ctime_ns", "st_size", "st_mode", "st_nlink"):
        assert getattr(before, field) == getattr(after, field)


def test_modes_and_owners(here: Path) -> None:
    path = here / "a"
    before = os.umask(0o027)
    try:
        path.touch()
        (here / "d").mkdir()
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640
    assert stat.S_IMODE(os.stat(here / "d").st_mode) == 0o750
    with open(path) as file:
        os.fchmod(file.fileno(), 0o4755)
        os.fchown(file.fileno(), 12, 34)
    found = os.stat(path)
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12, 34, 0o755)
    os.chown(path, -1, 35)
    assert (os.stat(path).st_uid, os.stat(path).st_gid) == (12, 35)


def test_permissions(mounted: Mounted) -> None:
    at = mounted.mount("allow_other")
    (at / "secret").write_text("x")
    os.chmod(at / "secret", 0o600)
    os.chmod(at, 0o755)
    for folder in at.parents:  # so that other users can reach it
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
            os.chmod(folder, 0o755)
    code = "import os,sys; os.setuid(12345); print(os.access(sys.argv[1], os.R_OK))"
    assert in_another_process(code, at / "secret") == "False"
    os.chmod(at / "secret", 0o644)
    assert in_another_process(code, at / "secret") == "True"


def test_xattrs(here: Path) -> None:
    path = here / "a"
    path.touch()
    os.setxattr(path, "user.k", b"v")
    assert os.getxattr(path, "user.k") == b"v"
    assert "user.k" in os.listxattr(path)
    with pytest.raises(FileExistsError):
        os.setxattr(path, "user.k", b"w", os.XATTR_CREATE)
    os.removexattr(path, "user.k")
    with pytest.raises(OSError, match="No data available"):
        os.getxattr(path, "user.k")
    with pytest.raises(OSError, match="not supported"):
        os.setxattr(path, "system.posix_acl_access", b"x" * 28)
    os.setxattr(path, "user.large", b"x" * 65536)
    assert os.getxattr(path, "user.large") == b"x" * 65536


def test_statfs(here: Path, shared: Mounted) -> None:
    found, below = os.statvfs(here), os.statvfs(shared.store)
    assert (found.f_blocks, found.f_namemax) == (below.f_blocks, 255)
    assert found.f_bavail > 0


@pytest.mark.parametrize("take", [fcntl.flock, fcntl.lockf])
def test_locks(here: Path, take: Callable[..., None]) -> None:
    path = here / "a"
    path.touch()
    code = f"""
import fcntl, sys
try:
    fcntl.{take.__name__}(open(sys.argv[1], "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("got it")
except OSError:
    print("locked")
"""
    with open(path, "r+") as file:
        take(file, fcntl.LOCK_EX)
        assert in_another_process(code, path) == "locked"
    assert in_another_process(code, path) == "got it"
