"""``vfsd mount`` and ``umount``, and paths inside a mount."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.cli.conftest import Result, Run, run_command
from tests.support.unprivileged import run_unprivileged
from vfsd.disk.mount_queries import mount_at
from vfsd.errors import BusyError

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(
        not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="/dev/fuse cannot be opened"
    ),
]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def mounted(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The store of `place`, mounted there at ``mnt``."""
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    # Background work has tests of its own.
    assert run_command("--store", "videos", "config", "tune", "false").code == 0
    assert run_command("--store", "videos", "config", "compress", "false").code == 0
    done = run_command("mount", "videos", "mnt")
    assert done.code == 0, done.err
    yield place / "mnt"
    monkeypatch.chdir(place)
    if (
        mount_at(place / "mnt") is not None
    ):  # also a dead one, although `os.path.ismount` is false then
        done = unmounted("umount", "mnt")
        assert done.code == 0, done.err


def unmounted(*words: str | Path) -> Result:
    """Tries again while another process, which looks at all mounts, keeps this one busy."""
    end = time.monotonic() + 60
    while (done := run_command(*words)).code == BusyError.exit_code and time.monotonic() < end:
        time.sleep(0.1)
    return done


def test_mount_and_umount(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    done = run_command("mount", "videos", "mnt", "--json")
    assert done.code == 0, done.err
    made = done.object
    assert made["store"] == str(place / "videos")
    assert made["mountpoint"] == str(place / "mnt")
    assert os.path.exists(f"/proc/{made['pid']}")
    shown = (place / "mnt/cam1/traffic.mp4").read_bytes()
    ended = unmounted("umount", "mnt", "--json")
    assert shown == (FOLDER / "traffic.mp4").read_bytes()
    assert (ended.code, ended.object["mountpoint"]) == (0, str(place / "mnt"))
    assert not os.path.ismount(place / "mnt")


def test_path_in_a_mount_selects_its_store(mounted: Path) -> None:
    inside = run_command("info", mounted / "cam1/traffic.mp4", "--json").object
    assert inside["name"] == "cam1/traffic.mp4"
    assert run_command("ls", mounted).lines == ["cam1/"]
    assert run_command("find", "--store", "videos").lines == [
        "cam1/open-gop.mkv",
        "cam1/traffic.mp4",
    ]


def test_mountpoint_is_accepted_as_the_store(mounted: Path) -> None:
    done = run_command("-s", str(mounted), "stats", "--json")
    assert (done.code, done.object["mount"] is not None) == (0, True)


def test_path_in_the_mount_of_another_store_is_refused(mounted: Path, place: Path) -> None:
    run_command("init", place / "other")
    name = mounted / "cam1/traffic.mp4"
    assert run_command("-s", place / "videos", "info", name).code == 0
    assert run_command("-s", place / "other", "info", name).code == 3
    assert run_command("mv", name, "/nowhere/x.mp4").code == 2


def test_relative_path_in_a_mount(
    mounted: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VFSD_STORE", str(place / "nowhere"))
    monkeypatch.chdir(mounted / "cam1")
    assert run_command("ls").lines == ["open-gop.mkv", "traffic.mp4"]
    assert run_command("info", "traffic.mp4", "--json").object["name"] == "cam1/traffic.mp4"
    assert run_command("ls", "..").lines == ["cam1/"]
    assert run_command("ingest", place / "footage/portrait.mp4").code == 0
    assert run_command("mv", "portrait.mp4", "../b/c.mp4").code == 0
    assert (mounted / "b/c.mp4").read_bytes() == (FOLDER / "portrait.mp4").read_bytes()


def test_symbolic_link_is_not_followed(mounted: Path) -> None:
    (mounted / "link").symlink_to("cam1/traffic.mp4")
    assert run_command("info", mounted / "link", "--json").object["kind"] == "symlink"
    assert run_command("rm", mounted / "link").code == 0
    assert (mounted / "cam1/traffic.mp4").exists()


def test_mounted_files_that_are_not_videos_have_a_reason(mounted: Path) -> None:
    with open(mounted / "cam1/notes.txt", "w", encoding="utf-8") as file:
        file.write("no video")
        assert "1 file is pending" in run_command("--store", mounted, "find").err
    end = time.monotonic() + 20
    while (found := run_command("info", mounted / "cam1/notes.txt", "--json").object)[
        "kind"
    ] == "pending":
        assert time.monotonic() < end
        time.sleep(0.05)
    assert (found["kind"], found["size"]) == ("file", 8)
    assert found["reason"]


def test_second_mount_of_a_store_is_refused(mounted: Path, place: Path) -> None:
    (place / "mnt2").mkdir()
    done = run_command("mount", "videos", "mnt2")
    assert done.code == 12
    assert "mounted at" in done.err


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("nowhere", "mnt"), 10),
        (("videos", "mnt", "third"), 2),
        (("videos", "mnt", "-o", "no-such-word"), 2),
        (("videos", "footage"), 21),
        (("videos", "videos/cache"), 2),
    ],
)
def test_invalid_mounts_are_refused(place: Path, args: tuple[str, ...], code: int) -> None:
    done = run_command("mount", *args)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("vfsd: ")


def test_unwritable_log_is_reported_with_a_hint(place: Path) -> None:
    (place / "taken").touch()
    done = run_command("mount", "videos", "mnt", "--log", "taken/log")
    assert done.code == 21
    assert "the log" in done.err
    assert "--log" in done.err.splitlines()[-1]


def test_umount_of_an_unmounted_directory_is_refused(place: Path) -> None:
    assert run_command("umount", "mnt").code == 2


@pytest.mark.thorough
def test_umount_of_a_mount_in_use_is_refused(mounted: Path) -> None:
    with open(mounted / "cam1/traffic.mp4", "rb"):
        assert run_command("umount", mounted).code == 12
    assert os.path.ismount(mounted)


@pytest.mark.thorough
def test_unreadable_store_still_shows_its_mount(place: Path, mounted: Path) -> None:
    """Unmounting works as well, for root without its rights over files."""
    (place / "videos").chmod(0)
    try:
        done = run_unprivileged("umount", mounted)
        assert "vfsd-store.json" not in done.err
        assert done.code == 0 or f"{mounted} cannot be unmounted" in done.err
    finally:
        (place / "videos").chmod(0o700)


def test_foreground_mount_ends_with_its_process(place: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "vfsd", "mount", "-f", "videos", "mnt", "-o", "log=here.log"],
        env=environment,
        stdout=subprocess.PIPE,
    ) as process:
        end = time.monotonic() + 60
        while not os.path.ismount(place / "mnt"):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    assert not os.path.ismount(place / "mnt")
    assert "INFO serving" in (place / "here.log").read_text()


@pytest.mark.thorough
def test_doctor_reports_the_mount_and_dead_mounts(run: Run, mounted: Path) -> None:
    found = {f["check"]: f for f in run("doctor", "--json").objects}
    assert (found["tuner"]["status"], found["tuner"]["message"]) == ("ok", "off")
    assert str(mounted) in found["mounted"]["message"]
    pid = int(found["mounted"]["message"].split()[-1])
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.02)
    done = run("doctor", "--json")
    (dead,) = (f for f in done.objects if f["check"] == "mount" and str(mounted) in f["message"])
    assert (done.code, dead["status"]) == (30, "fail")
    assert dead["advice"] == f"vfsd umount {mounted}"
    assert unmounted("umount", mounted).code == 0
    assert not os.path.ismount(mounted)
