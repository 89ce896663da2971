"""A user who may not read a video may not read its views."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from tests.support.syscalls import in_another_process

pytestmark = pytest.mark.mount

ANSWERS = """
import os, sys
os.setgroups([]); os.setgid(12345); os.setuid(12345)
name = sys.argv[1]
def answer(ask, *words):
    try:
        ask(*words)
    except OSError as error:
        return error.errno
    return 0
read = lambda path: open(path, "rb").read(1)
print(
    answer(read, name),
    answer(os.listdir, name + "@"),
    answer(os.listdir, name + "@/frames"),
    answer(os.stat, name + "@/info.json"),
    answer(read, name + "@/info.json"),
    answer(read, name + "@/frames/000000.png"),
    answer(read, name + "@/t=0-0.1.mp4"),
    answer(os.getxattr, name, "user.vfsd.frames"),
    answer(open, name + "@/160x120.yuv", "wb"),
)
"""


def answers(path: Path) -> list[int]:
    """The errno, or 0, of each operation of an unrelated user."""
    return [int(word) for word in in_another_process(ANSWERS, path).split()]


@pytest.fixture
def shared_with_others(mounted: Mounted) -> Mounted:
    """A mount with allow_other that other users can reach."""
    if os.geteuid():
        pytest.skip("only root can switch to another user")
    at = mounted.mount("allow_other", "attr_timeout=100", "entry_timeout=100")
    os.chmod(at, 0o755)
    for folder in at.parents:
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
            os.chmod(folder, 0o755)
    return mounted


def test_view_permissions(shared_with_others: Mounted) -> None:
    at = shared_with_others.at
    for name, mode in (("open.mp4", 0o644), ("closed.mp4", 0o600), ("group.mp4", 0o640)):
        shutil.copyfile(FOLDER / "portrait.mp4", at / name)
        os.chmod(at / name, mode)
        assert os.getxattr(at / name, "user.vfsd.state") == b"video"
    assert answers(at / "open.mp4") == [0] * 8 + [errno.EACCES]
    for name in ("closed.mp4", "group.mp4"):
        assert answers(at / name) == [errno.EACCES] * 9
    closed = at / "closed"
    closed.mkdir()
    shutil.copyfile(FOLDER / "portrait.mp4", closed / "v.mp4")
    os.chmod(closed, 0o700)
    assert answers(closed / "v.mp4") == [errno.EACCES] * 9
    assert os.stat(f"{at}/closed.mp4@/info.json").st_mode & 0o777 == 0o400
    assert os.stat(f"{at}/closed.mp4@").st_mode & 0o777 == 0o500
    assert Path(f"{at}/closed.mp4@/info.json").read_bytes()  # its owner may


def test_chmod_applies_at_once(shared_with_others: Mounted) -> None:
    video = shared_with_others.at / "v.mp4"
    shutil.copyfile(FOLDER / "portrait.mp4", video)
    view = Path(f"{video}@/info.json")
    assert may_read(view)
    video.chmod(0o600)
    assert not may_read(view)
    video.chmod(0o644)
    assert view.read_bytes()  # makes the kernel update its cache
    assert may_read(view)


def may_read(path: Path) -> bool:
    """Whether an unrelated user may read the file."""
    code = """
import os, sys
os.setgroups([]); os.setgid(12345); os.setuid(12345)
try:
    open(sys.argv[1], "rb").close()
except PermissionError:
    print("no")
"""
    return in_another_process(code, path) != "no"
