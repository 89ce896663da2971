"""A mount that cannot examine files does not start, and reports the reason."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.cli.conftest import run_command
from tests.mount.conftest import Mounted
from tests.support.broken_pyav import environment
from tests.support.selection import one_in
from vfsd.disk.mount_queries import mount_at
from vfsd.errors import ExaminerError, MountError

pytestmark = pytest.mark.mount


def run(env: dict[str, str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vfsd", *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("kind", "how", "code", "cause"),
    one_in(
        4,
        [
            ("unloadable", [], MountError.exit_code, "undefined symbol"),
            ("unloadable", ["-f"], ExaminerError.exit_code, "undefined symbol"),
            ("other keywords", [], ExaminerError.exit_code, "unexpected keyword argument"),
            ("other keywords", ["-f"], ExaminerError.exit_code, "unexpected keyword argument"),
        ],
    ),
)
def test_mount_refuses_broken_pyav(
    mounted: Mounted, tmp_path: Path, kind: str, how: list[str], code: int, cause: str
) -> None:
    env = environment(tmp_path / "path", kind)
    done = run(env, "mount", "--log", mounted.log, *how, mounted.store, mounted.at)
    assert done.returncode == code
    assert mount_at(mounted.at) is None
    assert done.stderr.count("\n") == 2
    assert cause in done.stderr
    assert "vfsd doctor" in done.stderr


def test_read_only_mount_needs_no_examiner(mounted: Mounted, tmp_path: Path) -> None:
    env = environment(tmp_path / "path", "other keywords")
    done = run(env, "mount", "-o", "ro", "--log", mounted.log, mounted.store, mounted.at)
    assert (done.returncode, done.stderr) == (0, "")
    mounted.unmount()


def test_info_names_reason(
    mounted: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyAV breaks under a running mount, as during an upgrade, and the next worker fails."""
    folder = tmp_path / "path"
    env = environment(folder, "other keywords")
    cause = "unexpected keyword argument"
    init = folder / "av/__init__.py"
    broken = init.read_text()
    monkeypatch.setenv("PYTHONPATH", env["PYTHONPATH"])
    init.rename(folder / "away")
    shutil.rmtree(folder / "av")  # a worker may have compiled it
    at = mounted.mount()
    (folder / "av").mkdir()
    init.write_text(broken)
    _end_workers(mounted.pid)
    unseen = struct.pack(">I4s8x", 16, b"free")  # no earlier test has examined these bytes
    (at / "v.mp4").write_bytes((FOLDER / "portrait.mp4").read_bytes() + unseen)
    mounted.wait_for(lambda: cause in _attribute(at / "v.mp4", "reason"), "no reason")
    assert cause in run_command("info", at / "v.mp4").out
    init.unlink()
    shutil.rmtree(folder / "av")  # a worker may have compiled it
    mounted.wait_for(lambda: _attribute(at / "v.mp4", "state") == "video", "no video")
    assert cause not in run_command("info", at / "v.mp4").out


def _attribute(path: Path, name: str) -> str:
    try:
        return os.getxattr(path, f"user.vfsd.{name}").decode()
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        return ""


def _end_workers(pid: int) -> None:
    """Kill the idle processes that examine files for a mount."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"sandbox_start" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
