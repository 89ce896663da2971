"""The log file of a mount in the background: its place, its size, and messages that name it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import run_command
from tests.mount.conftest import Mounted
from tests.support import disks
from vfsd.core.subprocess_entry import child_environment
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import BusyError, MountError, UsageError
from vfsd.mount import control, mount_log

pytestmark = pytest.mark.mount


def doctor(mounted: Mounted) -> list[str]:
    found = run_command("-s", mounted.store, "doctor", "--json").objects
    return [one["message"] for one in found if one["check"] == "mount log"]


@pytest.mark.thorough
def test_log_is_named(mounted: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert doctor(mounted) == []
    done = run_command("mount", mounted.store, mounted.at, "--json")
    (log,) = (tmp_path / "state/vfsd").iterdir()
    assert done.object["log"] == str(log)
    assert doctor(mounted)[0].startswith(f"{log} (")
    mounted.unmount()
    assert doctor(mounted)[0].startswith(f"{log} (")
    done = run_command("mount", mounted.store, mounted.at)
    assert str(log) in done.out
    mounted.unmount()
    other = tmp_path / "other.log"
    assert str(other) in run_command("mount", "--log", other, mounted.store, mounted.at).out
    assert doctor(mounted)[0].startswith(f"{other} (")


@pytest.mark.parametrize(("variable", "inside"), [("HOME", ""), ("XDG_STATE_HOME", "state")])
def test_default_log_outside_mount_point(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch, variable: str, inside: str
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv(variable, str(mounted.at / inside))
    log = control.mount(mounted.store, mounted.at)
    assert log == mounted.store / "mount.log"
    assert "serving" in log.read_text()
    mounted.unmount()
    assert os.listdir(mounted.at) == []


def test_default_log_without_home(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may have a home directory that it cannot write."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc/nowhere")
    log = control.mount(mounted.store, mounted.at)
    assert log == mounted.store / "mount.log"


def test_default_log_in_no_other_mount(
    mounted: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Mounted(tmp_path / "other")
    monkeypatch.setenv("XDG_STATE_HOME", str(mounted.mount()))
    try:
        assert control.mount(other.store, other.at) == other.store / "mount.log"
        assert os.listdir(mounted.at) == []
    finally:
        other.unmount()


def test_default_log_is_no_link(
    mounted: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store from an untrusted source must not choose a file to be appended to."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (mounted.store / "mount.log").symlink_to(victim)
    monkeypatch.setenv("XDG_STATE_HOME", str(mounted.at))
    with pytest.raises(MountError, match="link"):
        control.mount(mounted.store, mounted.at)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize(("by_link", "how"), [(True, []), (False, ["-f"])])
def test_named_log_below_mount_point(
    mounted: Mounted, tmp_path: Path, by_link: bool, how: list[str]
) -> None:
    folder = mounted.at
    if by_link:
        folder = tmp_path / "link"
        folder.symlink_to(mounted.at)
    done = run_command("mount", *how, "--log", folder / "log", mounted.store, mounted.at)
    assert done.code == UsageError.exit_code
    assert "below the mount point" in done.err
    assert os.listdir(mounted.at) == []


def test_busy_error_names_log(mounted: Mounted) -> None:
    mounted.mount()
    pid = mounted.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(BusyError) as caught:
            control.unmount(mounted.at)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert f"its log is {mounted.log}" in (caught.value.hint or "")


def test_lock_names_log(mounted: Mounted) -> None:
    mounted.mount()
    assert (StoreDirectory.open(mounted.store).mounted_by() or {})["log"] == str(mounted.log)


_CHILD = """
import os, subprocess, sys, time
from contextlib import suppress
from pathlib import Path
from vfsd.mount.mount_log import LogSizeLimiter

path, most = Path(sys.argv[1]), int(sys.argv[2])
limit = LogSizeLimiter(path, most, 0.01)
child = subprocess.Popen(["sh", "-c", "yes child 2>&1 | head -n 20000 >&2"])
for number in range(20000):
    with suppress(OSError):
        os.write(2, b"parent" + os.linesep.encode())
child.wait()
deadline = time.monotonic() + 10
while os.fstat(2).st_size > most and time.monotonic() < deadline:
    time.sleep(0.01)
limit.close()
os.write(2, b"end")
"""


def test_log_stays_short(tmp_path: Path) -> None:
    """This includes lines of all processes that append to the log."""
    log, most = tmp_path / "log", 10_000
    with open(log, "ab") as output:
        subprocess.run(
            [sys.executable, "-c", _CHILD, log, str(most)],
            env=child_environment(),
            stderr=output,
            check=True,
        )
    assert log.stat().st_size <= most + 1000
    assert log.read_bytes().endswith(b"end")
    assert b"parent" in (tmp_path / "log.1").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["log", "log.1"]


def test_log_stays_short_on_full_disk(tmp_path: Path) -> None:
    with disks.mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=64k", "tmpfs") as disk:
        log = disk / "log"
        log.write_bytes(b"x" * 40_000)
        with open(log, "ab") as output:
            subprocess.run(
                [sys.executable, "-c", _CHILD, log, "10000"],
                env=child_environment(),
                stderr=output,
                check=True,
            )
        assert log.stat().st_size < 40_000
        assert log.read_bytes().endswith(b"end")


def test_default_log_is_limited(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(mounted.root))
    log = control.mount(mounted.store, mounted.at)
    mounted.unmount()
    with log.open("ab") as file:
        file.truncate(mount_log.MAX_BYTES + 1)
    control.mount(mounted.store, mounted.at)
    mounted.wait_for(lambda: log.stat().st_size < mount_log.MAX_BYTES, "it is as long as before")
    assert log.with_name(f"{log.name}.1").stat().st_size > mount_log.MAX_BYTES
