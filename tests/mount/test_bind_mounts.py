"""Paths of a mount in bind mounts, mount namespaces and chroots.

If the mount of a store is not visible, the error says where it is and how to unmount it.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.cli.conftest import run_command
from tests.mount.conftest import Mounted
from tests.support.disks import mounted as bound
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.core.subprocess_entry import child_environment
from vfsd.disk.mount_queries import mount_at
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import BusyError, NotFoundError, StoreError, UsageError
from vfsd.maintenance.backup import back_up
from vfsd.mount import control
from vfsd.mount.mounted_path import resolve
from vfsd.storage.original_guard import require_closed

pytestmark = pytest.mark.mount

ONE, OTHER = FOLDER / "portrait.mp4", FOLDER / "traffic.mp4"
VFSD = shlex.join([sys.executable, "-m", "vfsd"])


@pytest.fixture
def shown(mounted: Mounted) -> Mounted:
    """Two videos called v.mp4, at the top and in cam1/, and a link next to the second."""
    with Store.open(mounted.store) as store:
        store.ingest(ONE, "v.mp4")
        store.ingest(OTHER, "cam1/v.mp4")
    at = mounted.mount()
    (at / "cam1/link").symlink_to("v.mp4")
    return mounted


@pytest.fixture
def binds(tmp_path: Path) -> Iterator[ExitStack]:
    """Bind mounts that end with the test."""
    with ExitStack() as stack:
        yield stack


def bind(stack: ExitStack, source: Path, place: Path) -> Path:
    if source.is_file():
        place.write_text("")
        subprocess.run(["mount", "--bind", source, place], check=True)
        stack.callback(lambda: subprocess.run(["umount", "-l", place], check=True))
        return place
    return stack.enter_context(bound(place, "--bind", source))


def in_namespace(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script with the arguments $1 and so on in a new mount namespace."""
    return subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-ec", script, "sh", *arguments],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_bind_of_root(shown: Mounted, tmp_path: Path, binds: ExitStack) -> None:
    data = bind(binds, shown.at, tmp_path / "data")
    assert run_command("info", data / "cam1/v.mp4", "--json").object["name"] == "cam1/v.mp4"
    assert run_command("ls", data).lines == ["cam1/", "v.mp4"]


def test_bind_of_directory(
    shown: Mounted, tmp_path: Path, binds: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bind(binds, shown.at / "cam1", tmp_path / "data")
    assert run_command("info", data / "v.mp4", "--json").object["name"] == "cam1/v.mp4"
    assert run_command("ls", data).lines == ["link", "v.mp4"]
    assert run_command("tag", data / "v.mp4", "--add", "mine").code == 0
    monkeypatch.chdir(data)
    assert run_command("ingest", ONE, "--to", ".", "--as", "w.mp4").code == 0
    assert run_command("ingest", ONE, "--to", "new/deep").code == 0
    assert run_command("mv", "w.mp4", "x.mp4").code == 0
    assert run_command("read", "v.mp4", tmp_path / "still.png", "--at", "0").code == 0
    assert run_command("rm", "v.mp4").code == 0
    monkeypatch.chdir(tmp_path)
    with Store.open(shown.store) as store:
        assert sorted(store) == ["cam1/new/deep/portrait.mp4", "cam1/x.mp4", "v.mp4"]
        assert store.catalog.find(tags={"mine"}).names() == []


def test_bind_of_file(shown: Mounted, tmp_path: Path, binds: ExitStack) -> None:
    single = bind(binds, shown.at / "cam1/v.mp4", tmp_path / "single.mp4")
    assert run_command("info", single, "--json").object["name"] == "cam1/v.mp4"
    # The path must also be right where the bind mount covers another file of the mount.
    covering = bind(binds, shown.at / "cam1/v.mp4", shown.at / "v.mp4")
    assert run_command("info", covering, "--json").object["name"] == "cam1/v.mp4"


def test_other_disk_in_mount(shown: Mounted, tmp_path: Path, binds: ExitStack) -> None:
    """A file system mounted over a directory of the mount does not belong to the store."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "v.mp4").write_text("x")
    covered = bind(binds, folder, shown.at / "cam1")
    for path in (covered, covered / "v.mp4", covered / "missing"):
        assert resolve([str(path)]) == [None]
    assert run_command("rm", covered / "v.mp4").code == UsageError.exit_code


def test_link_in_bind(shown: Mounted, tmp_path: Path, binds: ExitStack) -> None:
    data = bind(binds, shown.at / "cam1", tmp_path / "data")
    (tmp_path / "outside").symlink_to(data / "v.mp4")
    assert run_command("info", tmp_path / "outside", "--json").object["name"] == "cam1/v.mp4"
    (found,) = resolve([str(data / "link")])
    assert found is not None
    assert found.name == "cam1/link"  # the link itself


def test_store_at_another_path(shown: Mounted, tmp_path: Path, binds: ExitStack) -> None:
    """As with `docker run -v STORE:/store -v MOUNT/cam1:/data`."""
    data = bind(binds, shown.at / "cam1", tmp_path / "data")
    store = bind(binds, shown.store, tmp_path / "bound store")
    info = run_command("-s", store, "info", data / "v.mp4", "--json")
    assert info.object["name"] == "cam1/v.mp4"


@pytest.mark.parametrize("below", ["", "objects"])
def test_backup_into_bound_store(
    mounted: Mounted, tmp_path: Path, binds: ExitStack, below: str
) -> None:
    data = bind(binds, mounted.store / below, tmp_path / "data")
    with (
        Store.open(mounted.store) as store,
        pytest.raises(UsageError, match="must not contain each other"),
    ):
        back_up(store.parts, data / "backup")
    assert not (data / "backup").exists()


def test_path_of_another_store(shown: Mounted, tmp_path: Path, binds: ExitStack) -> None:
    data = bind(binds, shown.at / "cam1", tmp_path / "data")
    new_store(tmp_path / "other").close()
    done = run_command("-s", tmp_path / "other", "rm", data / "v.mp4")
    assert done.code == NotFoundError.exit_code
    assert str(shown.store) in done.err
    assert str(tmp_path / "other") in done.err


@pytest.mark.thorough
def test_private_namespace(shown: Mounted, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    script = f'mount --bind "$1/cam1" "$2"; {VFSD} info --json "$2/v.mp4"; {VFSD} rm "$2/v.mp4"'
    done = in_namespace(script, shown.at, tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["name"] == "cam1/v.mp4"
    with Store.open(shown.store) as store:
        assert list(store) == ["v.mp4"]


@pytest.mark.parametrize("is_copy", [False, True])
def test_another_store_at_path(shown: Mounted, tmp_path: Path, is_copy: bool) -> None:
    """In the namespace another store, or a copy of the same, has the path of the mounted one."""
    other = tmp_path / "other"
    if is_copy:
        subprocess.run(["cp", "-a", shown.store, other], check=True)
    else:
        with new_store(other) as store:
            store.ingest(ONE, "cam1/v.mp4")
    script = f'mount --bind "$1" "$2"; {VFSD} rm "$3/cam1/v.mp4"'
    done = in_namespace(script, other, shown.store, shown.at)
    assert done.returncode == StoreError.exit_code
    assert "another store here" in done.stderr
    for path in (other, shown.store):
        with Store.open(path) as store:
            assert "cam1/v.mp4" in store


def test_store_out_of_reach(shown: Mounted, tmp_path: Path) -> None:
    script = f'mount -t tmpfs none "$1"; {VFSD} rm "$2/cam1/v.mp4"'
    done = in_namespace(script, shown.store, shown.at)
    assert done.returncode == StoreError.exit_code
    assert "not there in this mount namespace" in done.stderr
    known = f'mkdir "$3"; mount --bind "$1" "$3"; mount -t tmpfs none "$1"; {VFSD} '
    for words in ('-s "$3" info "$2/cam1/v.mp4"', 'info "$2/cam1/v.mp4"'):
        done = in_namespace(
            f'export VFSD_STORE="$3"; {known} {words}', shown.store, shown.at, tmp_path / "known"
        )
        assert done.returncode == 0, done.stderr
        os.rmdir(tmp_path / "known")


@pytest.mark.thorough
def test_chroot(shown: Mounted, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    script = (
        'mount --rbind / "$1"; mount --bind "$2/cam1" "$1/mnt"; '
        f'chroot "$1" {VFSD} info --json /mnt/v.mp4; chroot "$1" {VFSD} info --json "$2/v.mp4"'
    )
    done = in_namespace(script, root, shown.at)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == [
        "cam1/v.mp4",
        "v.mp4",
    ]


@pytest.mark.thorough
def test_open_elsewhere(shown: Mounted, tmp_path: Path, binds: ExitStack) -> None:
    """Another store mounted at the same path must not be asked whether a video is open."""
    other = Mounted(tmp_path / "second")
    with Store.open(other.store) as store:
        store.ingest(OTHER, "v.mp4")
    bind(binds, other.mount(), shown.at)
    try:
        with (
            Store.open(shown.store) as store,
            pytest.raises(BusyError, match="another store here"),
        ):
            require_closed(store.parts, ["v.mp4"])
    finally:
        binds.close()
        other.unmount()


def test_unmount_of_bind(shown: Mounted, tmp_path: Path) -> None:
    data, whole = tmp_path / "data", tmp_path / "whole"
    for source, place in ((shown.at / "cam1", data), (shown.at, whole)):
        place.mkdir()
        subprocess.run(["mount", "--bind", source, place], check=True)
    try:
        control.unmount(data)
        assert (shown.at / "v.mp4").exists()
        with pytest.raises(BusyError, match=f"still shown at {whole}"):
            control.unmount(shown.at)
        assert (whole / "v.mp4").exists()
    finally:
        control.unmount(whole)


@pytest.mark.thorough
def test_mount_seen_elsewhere_only(shown: Mounted) -> None:
    """The hint does not suggest to unmount an invisible mount."""
    script = f'umount "$2"; {VFSD} mount "$1" "$2"'
    done = in_namespace(script, shown.store, shown.at)
    assert done.returncode == BusyError.exit_code
    assert "another mount namespace" in done.stderr


def test_imitated_attribute(tmp_path: Path) -> None:
    """An attribute set on a file outside of the mount does not identify a video."""
    path = tmp_path / "v.mp4"
    path.write_text("x")
    with new_store(tmp_path / "store") as store:
        found = store.parts.directory.identity
    text = {
        "store": {"id": found.id, "device": found.device, "inode": found.inode},
        "root": str(tmp_path / "store"),
        "name": "v.mp4",
    }
    try:
        os.setxattr(path, "user.vfsd.identity", json.dumps(text).encode())
    except OSError:
        pytest.skip("this disk has no attributes")
    mount = Mounted(tmp_path / "any")
    mount.mount()
    try:
        with pytest.raises(StoreError, match="through another file system"):
            resolve([str(path)])
    finally:
        mount.unmount()


# --------------------------------------------------------------------------------------------------
# If the mount of a store is not visible, the error says where it is and how to unmount it


def hint(mounted: Mounted, tmp_path: Path) -> str:
    """The hint of the error when the store is mounted a second time."""
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(BusyError, match="is mounted at") as caught:
        control.mount(mounted.store, other, log_file=tmp_path / "log2")
    return str(caught.value.hint)


def test_mount_in_sight(mounted: Mounted, tmp_path: Path) -> None:
    mounted.mount()
    assert hint(mounted, tmp_path).endswith(f": vfsd umount {mounted.at}")


def test_detached_mount(mounted: Mounted, tmp_path: Path) -> None:
    at = mounted.mount()
    pid = mounted.pid
    (at / "a").touch()
    with suppress(OSError), (at / "a").open("rb"):  # its process ends before it is closed
        subprocess.run(["umount", "-l", at], check=True)
        told = hint(mounted, tmp_path)
        os.kill(pid, signal.SIGTERM)
        directory = StoreDirectory.open(mounted.store)
        mounted.wait_for(lambda: directory.mounted_by() is None, "it goes on")
    assert told.endswith(f"`kill {pid}`")
    assert mount_at(at) is None
    assert (mounted.mount() / "a").exists()


@pytest.mark.thorough
def test_mount_in_other_namespace(mounted: Mounted, tmp_path: Path) -> None:
    alone = ["unshare", "-m", "--propagation", "private"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace can be made")
    words = ["vfsd", "mount", "-f", str(mounted.store), str(mounted.at)]
    command = [*alone, sys.executable, "-m", *words]
    directory = StoreDirectory.open(mounted.store)
    with subprocess.Popen(command, env=child_environment(), stderr=subprocess.DEVNULL) as process:
        try:
            mounted.wait_for(lambda: bool(directory.mounted_by()), "its process does not start")
            mounted.wait_for(
                lambda: "device" in (directory.mounted_by() or {}), "it is not mounted"
            )
            assert mount_at(mounted.at) is None
            assert "another mount namespace: nsenter" in hint(mounted, tmp_path)
        finally:
            process.terminate()
