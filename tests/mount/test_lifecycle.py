"""Starting and ending mounts."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from tests.support import disks
from tests.support.fs_driver import Driver
from vfsd.api.store import Store
from vfsd.cli import mount_helper
from vfsd.core.model import FileState
from vfsd.disk.mount_queries import mount_at
from vfsd.errors import (
    BusyError,
    FuseMissingError,
    MountError,
    NoStoreError,
    StoreError,
    UsageError,
    VfsdError,
)
from vfsd.maintenance import fsck
from vfsd.mount import control
from vfsd.mount.fs import Filesystem
from vfsd.mount.fuse.mount_options import described_options
from vfsd.mount.mounted_path import resolve

pytestmark = pytest.mark.mount

ROOT = Path(__file__).resolve().parents[2]
VIDEO = FOLDER / "portrait.mp4"


def gone(pid: int) -> bool:
    """Whether a process has ended, including one that is still a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def crowded() -> Iterator[None]:
    """More open files than `select` supports."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 4096:
        pytest.skip("not so many files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, before[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("crowded")
def test_mount_with_many_open_files(mounted: Mounted) -> None:
    at = mounted.mount()
    (at / "a").write_text("hello")
    control.unmount(at)
    assert not os.path.ismount(at)


def test_mount_and_unmount(
    mounted: Mounted,
) -> None:
    at = mounted.mount()
    (at / "a").write_text("hello")
    pid = mounted.pid
    assert os.path.ismount(at)
    control.unmount(at)
    assert not os.path.ismount(at)
    mounted.wait_for(lambda: gone(pid), "the process goes on")
    with Store.open(mounted.store) as store:
        assert store.parts.directory.mounted_by() is None
        assert store.node("a").state is FileState.PLAIN
    mounted.mount()
    assert (at / "a").read_text() == "hello"


def test_judged_before_unmount(mounted: Mounted) -> None:
    at = mounted.mount()
    for number in range(5):
        (at / f"{number}.mp4").write_bytes(VIDEO.read_bytes())
    control.unmount(at)
    with Store.open(mounted.store) as store:
        assert len(store) == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_unmount(mounted: Mounted, number: int) -> None:
    at = mounted.mount()
    (at / "v.mp4").write_bytes(VIDEO.read_bytes())
    pid = mounted.pid
    os.kill(pid, number)
    mounted.wait_for(lambda: gone(pid), "the process goes on")
    assert mount_at(at) is None
    with Store.open(mounted.store) as store:
        assert len(store) == 1


def test_ignored_signals(mounted: Mounted) -> None:
    at = mounted.mount()
    for number in (signal.SIGHUP, signal.SIGUSR1):
        os.kill(mounted.pid, number)
    mounted.wait_for(lambda: "most recent call first" in mounted.log.read_text(), "no stacks")
    assert os.listdir(at) == []


def test_recovery_of_killed_mount(mounted: Mounted) -> None:
    at = mounted.mount()
    (at / "done").write_text("done")
    opened = [os.open(at / name, os.O_CREAT | os.O_RDWR) for name in ("open", "unlinked")]
    os.write(opened[0], b"so far")
    os.unlink(at / "unlinked")
    time.sleep(0.2)
    pid = mounted.pid
    os.kill(pid, signal.SIGKILL)
    mounted.wait_for(lambda: gone(pid), "the process lives")
    for _ in range(2):
        with pytest.raises(OSError, match=r"Transport endpoint|Software caused"):
            os.listdir(at)
    mounted.mount()
    assert sorted(os.listdir(at)) == ["done", "open"]
    assert (at / "open").read_text() == "so far"
    assert (at / "done").read_text() == "done"
    for fd in opened:
        with contextlib.suppress(OSError):  # these belong to the dead mount
            os.close(fd)


def test_unmount_dead_mount(mounted: Mounted) -> None:
    at = mounted.mount()
    pid = mounted.pid
    os.kill(pid, signal.SIGKILL)
    mounted.wait_for(lambda: gone(pid), "the process lives")
    control.unmount(at)
    assert mount_at(at) is None


def test_unmount_busy_mount(mounted: Mounted) -> None:
    at = mounted.mount()
    with open(at / "a", "w"), pytest.raises(BusyError):
        control.unmount(at)
    assert os.path.ismount(at)


def test_second_mount_refused(mounted: Mounted, tmp_path: Path) -> None:
    mounted.mount()
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(BusyError, match=str(mounted.at)):
        control.mount(mounted.store, other, log_file=tmp_path / "log2")
    with pytest.raises(BusyError, match="already"):
        control.mount(mounted.store, mounted.at)
    assert mount_at(other) is None


@pytest.mark.parametrize(
    ("point", "error", "words"),
    [
        ("missing", MountError, "directory not found"),
        ("file", MountError, "not a directory"),
        ("full", MountError, "not empty"),
        ("store", UsageError, "inside the store"),
        ("store/spool", UsageError, "inside the store"),
        (".", UsageError, "hidden by the mount"),
    ],
)
def test_invalid_mountpoints(
    mounted: Mounted, tmp_path: Path, point: str, error: type[VfsdError], words: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full/inside").mkdir(parents=True)
    with pytest.raises(error, match=words):
        control.mount(mounted.store, tmp_path / point)


def test_invalid_stores_and_options(mounted: Mounted, tmp_path: Path) -> None:
    with pytest.raises(NoStoreError):
        control.mount(tmp_path / "missing", mounted.at)
    with pytest.raises(UsageError, match="nonsense"):
        mounted.mount("ro,nonsense")
    with pytest.raises(UsageError):
        control.unmount(mounted.at)


def test_mount_error_reported(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process in the background finds the error, and the caller receives it."""
    monkeypatch.setenv("FUSE_LIBRARY_PATH", "/nowhere/libfuse.so")
    monkeypatch.setattr(control, "require_fuse", lambda _: None)
    with pytest.raises(FuseMissingError, match="libfuse"):
        mounted.mount()
    assert mount_at(mounted.at) is None


def test_nonempty_mountpoint(mounted: Mounted) -> None:
    (mounted.at / "below").touch()
    at = mounted.mount("nonempty")
    assert os.listdir(at) == []


def test_read_only(mounted: Mounted) -> None:
    (mounted.mount() / "a").write_text("x")
    mounted.unmount()
    at = mounted.mount("ro")
    assert (at / "a").read_text() == "x"
    for attempt in (
        lambda: (at / "a").write_text("y"),
        lambda: (at / "b").touch(),
        lambda: (at / "a").unlink(),
        lambda: os.chmod(at / "a", 0o600),
    ):
        with pytest.raises(OSError, match="Read-only file system"):
            attempt()


def test_libfuse_options(mounted: Mounted) -> None:
    at = mounted.mount(
        "uid=12,gid=34,umask=077", "allow_other", "noauto,nofail,_netdev,user,x-systemd.automount"
    )
    (at / "a").touch()
    found = os.stat(at / "a")
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (12, 34, 0o700)
    found_mount = mount_at(at)
    assert found_mount is not None
    assert found_mount.is_ours


def test_all_options(mounted: Mounted) -> None:
    """All documented options, and further words that fstab lines contain."""
    together = [
        "rw,nonempty,allow_other,noforget,clone_fd,debug,async,exec,nodev,nosuid,noatime,nodiratime",
        "ro,allow_root,remember=5,auto_unmount,dev,suid",
        "noexec,sync,dirsync,uid=12,gid=34,umask=022,attr_timeout=2.5,entry_timeout=3,"
        "negative_timeout=4,max_threads=7,max_idle_threads=3,max_background=9,max_read=65536",
    ]
    described = {
        word.partition("=")[0] for some in described_options() for word in some.split(", ")
    }
    given = {word.partition("=")[0] for some in together for word in some.split(",")}
    # These have tests of their own; passthrough needs support by the kernel.
    assert described - given == {"passthrough", "log", "log_level"}
    for words in together:
        at = mounted.mount(words)
        if "ro" not in words.split(","):
            (at / "a").write_bytes(bytes(300_000))
        assert (at / "a").read_bytes() == bytes(300_000), words
        mounted.unmount()


def shown(path: Path) -> tuple[Path, str] | None:
    """The store of a path in a mount, and the name in that store."""
    (found,) = resolve([str(path)])
    return None if found is None else (found.root, found.name)


def test_unusual_paths(tmp_path: Path) -> None:
    place = Mounted(tmp_path / "with, comma and\\ blank \u00fc")
    at = place.mount()
    (at / "a").write_text("x")
    assert shown(at / "a") == (place.store, "a")
    place.unmount()


def test_store_of_path(mounted: Mounted, tmp_path: Path) -> None:
    at = mounted.mount()
    (at / "d").mkdir()
    (at / "d/v.mp4").write_bytes(VIDEO.read_bytes())
    link = tmp_path / "link"
    link.symlink_to(at / "d")
    assert shown(at) == (mounted.store, "")
    assert shown(at / "d/v.mp4") == (mounted.store, "d/v.mp4")
    assert shown(link / "v.mp4") == (mounted.store, "d/v.mp4")
    assert shown(at / "d/v.mp4@/info.json") == (mounted.store, "d/v.mp4@/info.json")
    assert shown(at / "not/there") == (mounted.store, "not/there")
    assert shown(tmp_path) is None


@pytest.mark.thorough
def test_foreground(mounted: Mounted) -> None:
    code = "import sys; from vfsd.mount.daemon import mount_in_foreground as m; m(*sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-c", code, mounted.store, mounted.at],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        mounted.wait_for(lambda: os.path.ismount(mounted.at), "it is not mounted")
        (mounted.at / "a").write_text("x")
        assert mounted.pid == process.pid
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert mount_at(mounted.at) is None


@pytest.mark.thorough
def test_open_file_limit(mounted: Mounted) -> None:
    code = "import sys; from vfsd.mount.daemon import mount_in_foreground as m; m(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(mounted.store), str(mounted.at)]
    with subprocess.Popen(
        ["sh", "-c", 'ulimit -S -n 128; exec "$@"', "sh", *command],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ):
        mounted.wait_for(lambda: os.path.ismount(mounted.at), "it is not mounted")
        names = [str(number) for number in range(200)]
        with ExitStack() as opened:
            for name in names:
                opened.enter_context(open(mounted.at / name, "w"))
            assert sorted(os.listdir(mounted.at)) == sorted(names)
        mounted.unmount()


@pytest.mark.thorough
def test_service_notification(mounted: Mounted, tmp_path: Path) -> None:
    code = "import sys; from vfsd.mount.daemon import mount_in_foreground as m; m(*sys.argv[1:])"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(tmp_path / "notify"))
        told.settimeout(60)
        with subprocess.Popen(
            [sys.executable, "-c", code, mounted.store, mounted.at],
            env=os.environ | {"PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": str(tmp_path / "notify")},
        ):
            assert told.recv(100) == b"READY=1"
            assert (mounted.at / "a").write_text("x") == 1
            mounted.unmount()
        assert told.recv(100) == b"STOPPING=1"


def run_helper(*words: str | Path) -> tuple[object, str]:
    """The exit code and the output on stderr."""
    code: object = 0
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            mount_helper.main([str(word) for word in words])
        except SystemExit as end:
            code = end.code
    return code, errors.getvalue()


@pytest.mark.thorough
def test_fstab_line(mounted: Mounted, tmp_path: Path) -> None:
    helper = [sys.executable, "-m", "vfsd.cli.mount_helper"]
    line = (
        mounted.store,
        mounted.at,
        "-s",
        "-n",
        "-o",
        "rw,noauto,nofail,user=root,x-systemd.automount",
    )
    assert run_helper(*line, "-f")[0] == 0
    assert mount_at(mounted.at) is None
    subprocess.run([*helper, *line], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    (mounted.at / "a").write_text("x")
    code, said = run_helper(*line)
    assert (code, "is mounted at" in said) == (32, True)
    mounted.unmount()
    logged = ("-o", f"log={tmp_path / 'fstab.log'},log_level=debug")
    assert run_helper(mounted.store, mounted.at, *logged)[0] == 0
    (mounted.at / "a.mp4").write_text("x")
    mounted.unmount()
    told = (tmp_path / "fstab.log").read_text()
    assert "INFO serving" in told
    assert "DEBUG " in told
    for wrong_log in ("log=", "log_level=", "log_level=loud"):
        assert run_helper(mounted.store, mounted.at, "-o", wrong_log, "-f")[0] == 1
    code, said = run_helper(mounted.store, mounted.at, "-o", "colour")
    assert (code, "unknown mount option" in said) == (1, True)
    assert run_helper(mounted.store)[0] == 1
    code, said = run_helper(tmp_path / "none", mounted.at)
    assert (code, "vfsd init" in said) == (32, True)


def test_default_log_path(
    mounted: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    control.mount(mounted.store, mounted.at)
    (log,) = (tmp_path / "state/vfsd").iterdir()
    assert log.name.startswith("store-")
    assert "serving" in log.read_text()


def test_outside_changes(mounted: Mounted) -> None:
    at = mounted.mount()
    with Store.open(mounted.store) as store:
        assert os.listdir(at) == []
        store.ingest(VIDEO, "cam/a.mp4")
        assert (at / "cam/a.mp4").read_bytes() == VIDEO.read_bytes()
        store.move("cam/a.mp4", "cam/b.mp4")
        mounted.wait_for(lambda: os.listdir(at / "cam") == ["b.mp4"], "the move is not seen")
        assert not (at / "cam/a.mp4").exists()
        with open(at / "cam/b.mp4", "rb") as file:
            store.remove("cam/b.mp4")
            assert file.read() == VIDEO.read_bytes()
        mounted.wait_for(lambda: os.listdir(at / "cam") == [], "the removal is not seen")


def test_objects_disk_not_mounted(mounted: Mounted, tmp_path: Path) -> None:
    place = mounted.mount()
    shutil.copy(VIDEO, place / "a.mp4")
    assert os.getxattr(place / "a.mp4", "user.vfsd.state") == b"video"
    objects, kept = mounted.store / "objects", tmp_path / "kept"
    objects.rename(kept)
    (objects / "tmp").mkdir(parents=True)
    other = FOLDER / "traffic.mp4"
    shutil.copy(other, place / "b.mp4")
    assert os.getxattr(place / "b.mp4", "user.vfsd.state") == b"spooled"
    assert (place / "b.mp4").read_bytes() == other.read_bytes()
    mounted.unmount()
    with pytest.raises(StoreError, match="is empty, and should hold 1 objects"):
        mounted.mount()
    shutil.rmtree(objects)
    kept.rename(objects)
    place = mounted.mount()
    assert os.getxattr(place / "b.mp4", "user.vfsd.state") == b"video"
    assert (place / "b.mp4").read_bytes() == other.read_bytes()


def test_spool_on_another_mount(mounted: Mounted, tmp_path: Path) -> None:
    """No file can have names in two mounts, even of the same disk."""
    shutil.copy(VIDEO, mounted.mount() / "a.mp4")
    mounted.unmount()
    spool = mounted.store / "spool"
    with disks.mounted(spool, "--bind", spool):
        with pytest.raises(StoreError, match="must be on one disk that is mounted once"):
            mounted.mount()
        with Store.open(mounted.store) as store:
            it = Driver(Filesystem(store.parts))
            it.write("/b.mp4", VIDEO.read_bytes())
            it.fs.close()
            with pytest.raises(StoreError, match="must be on one disk that is mounted once"):
                fsck.run(store.parts, repair=True)
    assert os.getxattr(mounted.mount() / "b.mp4", "user.vfsd.state") == b"video"


def test_spool_on_another_disk(mounted: Mounted) -> None:
    """A new video becomes an object by a hard link to its bytes."""
    with disks.another_disk(mounted.store) as elsewhere:
        shutil.move(mounted.store / "objects", elsewhere / "objects")
        (mounted.store / "objects").symlink_to(elsewhere / "objects")
        with pytest.raises(StoreError, match="must be on one disk"):
            mounted.mount()
        shutil.move(mounted.store / "spool", elsewhere / "spool")
        (mounted.store / "spool").symlink_to(elsewhere / "spool")
        clip = mounted.mount() / "a.mp4"
        shutil.copy(FOLDER / "traffic.mp4", clip)
        assert os.getxattr(clip, "user.vfsd.state") == b"video"
        mounted.unmount()
