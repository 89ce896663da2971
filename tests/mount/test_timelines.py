"""Spans of time across the videos of a directory, below ``DIRECTORY@/`` of a mount."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from tests.mount.conftest import Mounted
from tests.support.clips import pictures
from tests.support.syscalls import in_another_process
from vfsd.api.store import Store
from vfsd.core.recordings import timeline_rows

pytestmark = pytest.mark.mount

START = datetime(2026, 5, 1, 10, tzinfo=UTC)
RATE, SECONDS = 10, 2


def record(store: Store, name: str, at: float | None, width: int = 96) -> None:
    frames = [one.to_ndarray() for one in pictures(RATE * SECONDS, width, 64, seed=len(name))]
    store.write(name, np.stack(frames), fps=RATE, quality=20)
    if at is not None:
        store.set_captured(name, START + timedelta(seconds=at))


@pytest.fixture
def cameras(mounted: Mounted) -> Mounted:
    """Two videos one after the other, a third after a gap of four seconds, and one of no time."""
    with Store.open(mounted.store) as store:
        for name, at in (("a/1.mp4", 0), ("a/b/20.mp4", 2), ("a/b/300.mp4", 8), ("a/x.mp4", None)):
            record(store, name, at)
        record(store, "other/1.mp4", None)
    return mounted


def failing(path: Path) -> str:
    try:
        path.stat()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def test_files_of_a_directory(cameras: Mounted) -> None:
    with Store.open(cameras.store) as store:
        line = store.timeline("a")
        rows = [row._asdict() for row in timeline_rows(line.recordings, 1)]
        span = START + timedelta(seconds=0.55), START + timedelta(seconds=8.95)
        wanted = line.open(span=span).read()
        first = line.open(span=(START, START + timedelta(seconds=4))).read()
    at = cameras.mount()
    assert sorted(os.listdir(at)) == ["a", "other"]
    assert sorted(os.listdir(at / "a@")) == ["README.txt", "timeline.json", "why"]
    assert json.loads((at / "a@/timeline.json").read_text()) == rows
    assert [row["kind"] for row in rows] == ["video", "video", "gap", "video", "unknown"]
    shown = at / "a@/t=2026-05-01T10:00:00.55Z-10:00:08.95Z.mp4"
    assert shown.stat().st_size == len(wanted)
    assert shown.read_bytes() == wanted
    probe = ["ffprobe", "-v", "error", "-count_packets", "-show_entries", "stream=nb_read_packets"]
    counted = subprocess.run([*probe, "-of", "csv=p=0", shown], capture_output=True, text=True)
    # The file begins at 0.6 s, and ends before 9.0 s.
    assert (counted.stdout.strip(), counted.stderr) == (str(14 + 20 + 10), "")
    for name in (
        "t=2026-05-01T10-00-00Z-10-00-04Z.mp4",
        "t=2026-05-01T12:00:00+02:00-2026-05-01T10:00:04Z.mp4",
        "t=2026-05-01T05-00-00-05-00-05-00-04.mp4",
    ):
        assert (at / "a@" / name).read_bytes() == first
    for name in [row["name"] for row in rows if row["kind"] == "video"]:
        assert str(name) in (at / "a@/why" / f"{shown.name}.txt").read_text()
    readme = (at / "a@/README.txt").read_text()
    assert "t=2026-05-01T10:00:00Z-2026-05-01T10:00:10Z.mp4" in readme
    assert failing(at / "a@/t=2026-05-01T10:00:00Z-2026-05-01T10:00:10Z.mp4") == ""


def test_refusals(cameras: Mounted) -> None:
    at = cameras.mount()
    gap = "t=2026-05-01T10:00:04Z-10:00:08Z.mp4"
    assert failing(at / "a@" / gap) == "ENOENT"
    why = (at / "a@/why" / f"{gap}.txt").read_text()
    assert "no video at 2026-05-01T10:00:04+00:00" in why
    assert failing(at / "a@/t=2026-05-01T10:00:00Z-10:61:00Z.mp4") == "EINVAL"
    assert failing(at / "a@/nosuch") == "ENOENT"
    assert failing(at / "other@") == "ENOENT"
    with pytest.raises(OSError, match="Read-only file system"):
        (at / "a@/new.mp4").write_bytes(b"")
    whole = "t=2026-05-01T10:00:00Z-10:00:14Z.mp4"
    assert failing(at / "a@" / whole) == ""
    with Store.open(cameras.store) as store:
        record(store, "a/wide.mp4", 12, width=128)
    cameras.wait_for(lambda: failing(at / "a@" / whole) == "EINVAL", "the new video is not seen")
    assert "different sizes" in (at / "a@/why" / f"{whole}.txt").read_text()
    with Store.open(cameras.store) as store:
        store.set_captured("other/1.mp4", START)
    cameras.wait_for((at / "other@").is_dir, "the new time is not seen")
    # A real file has precedence.
    with Store.open(cameras.store) as store:
        record(store, "other@", None)
    cameras.wait_for((at / "other@").is_file, "the real file is not seen")


READ = """
import os, sys
os.setgroups([]); os.setgid(12345); os.setuid(12345)
try:
    print(len(open(sys.argv[1], "rb").read()))
except OSError as error:
    print(-error.errno)
"""


@pytest.mark.thorough
def test_readers_may_read_all_videos(cameras: Mounted) -> None:
    if os.geteuid():
        pytest.skip("only root can switch to another user")
    at = cameras.mount("allow_other", "default_permissions")
    for folder in (at, *at.parents):
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
            os.chmod(folder, 0o755)
    shown = at / "a@/t=2026-05-01T10:00:00Z-10:00:04Z.mp4"
    for name, mode in (("a/b/20.mp4", 0o644), ("a/b", 0o755), ("a", 0o755)):
        os.chmod(at / name, mode)
        cameras.wait_for(lambda: int(in_another_process(READ, shown)) > 0, "it is unreadable")
        os.chmod(at / name, mode & 0o770)
        cameras.wait_for(
            lambda: int(in_another_process(READ, shown)) == -errno.EACCES, "it is readable"
        )
        os.chmod(at / name, mode)
