"""A mount with a stopped process: commands report it and do not hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from vfsd.api.store import Store
from vfsd.cli import doctor
from vfsd.core.subprocess_entry import child_environment
from vfsd.disk import mount_queries
from vfsd.disk.mount_queries import mount_at
from vfsd.errors import BusyError
from vfsd.maintenance.backup import back_up
from vfsd.mount import control
from vfsd.mount.fs.inode_metadata import TUNER
from vfsd.web.metrics import mount_stats

pytestmark = pytest.mark.mount


@pytest.fixture
def stopped(mounted: Mounted) -> Iterator[Mounted]:
    with Store.open(mounted.store) as store:
        store.ingest(FOLDER / "portrait.mp4", "a.mp4")
    mounted.mount("attr_timeout=0,entry_timeout=0")
    pid = mounted.pid
    os.kill(pid, signal.SIGSTOP)
    mounted.wait_for(lambda: state_of(pid) == "T", "it goes on")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mount_queries, "ANSWER_SECONDS", 0.5)  # there will be none
            yield mounted
    finally:
        os.kill(pid, signal.SIGCONT)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_doctor_reports_no_answer(stopped: Mounted) -> None:
    (found,) = (
        one
        for one in doctor.machine_checks()
        if one.check == "mount" and str(stopped.at) in one.message
    )
    assert (found.status, "does not answer" in found.message) == (doctor.FAIL, True)
    assert "kill -9" in (found.advice or "")
    checks = {one.check: one for one in doctor.store_checks(stopped.store)}
    assert str(stopped.at) in checks["mounted"].message
    assert "tuner" not in checks
    assert mount_stats(stopped.store) is None


def test_replacement_refused(stopped: Mounted) -> None:
    with Store.open(stopped.store) as store:
        video = store["a.mp4"]
        video.policy.set("original=replaceable,psnr=30")
        with pytest.raises(BusyError, match="does not answer"):
            video.policy.replace_original()


def test_backup_without_mount(stopped: Mounted, tmp_path: Path) -> None:
    with Store.open(stopped.store) as store:
        assert back_up(store.parts, tmp_path / "copy").videos == 1


@pytest.mark.parametrize("by_link", [False, True])
def test_mount_and_unmount_errors(stopped: Mounted, tmp_path: Path, by_link: bool) -> None:
    at = stopped.at
    if by_link:
        at = tmp_path / "link"
        at.symlink_to(stopped.at)
    with pytest.raises(BusyError, match="does not answer") as raised:
        control.unmount(at)
    assert "umount -l" in (raised.value.hint or "")
    assert mount_at(stopped.at) is not None
    with pytest.raises(BusyError, match="does not answer"):
        control.mount(stopped.store, at, log_file=tmp_path / "log2")


def test_command_does_not_wait(stopped: Mounted) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vfsd", "umount", stopped.at],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == BusyError.exit_code
    assert "does not answer" in done.stderr


def test_answering_mount(mounted: Mounted) -> None:
    at = mounted.mount()
    mount_queries.require_answer(at)
    assert mount_queries.attribute(at, TUNER) == os.getxattr(at, TUNER)
    with pytest.raises(FileNotFoundError):
        mount_queries.attribute(at / "nothing", TUNER)


@pytest.mark.parametrize("how", ["whole", "relative", "link"])
def test_names_of_mountpoint(
    mounted: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    at = mounted.mount()
    named = at
    if how == "whole":  # from a directory that is gone
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
    elif how == "relative":
        monkeypatch.chdir(at.parent)
        named = Path(at.name)
    else:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "link").symlink_to(at)
        named = Path("link")
    control.unmount(named)
    assert mount_at(at) is None
