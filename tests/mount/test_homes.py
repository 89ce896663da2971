"""Several homes on one catalog: mounts that write at once, lost hosts, and leases."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from sample_videos import FOLDER
from tests.support.shared_mounts import MountedHome
from vfsd.api.store import Store
from vfsd.errors import BusyError
from vfsd.maintenance import fsck
from vfsd.maintenance.homes import forget_home, list_homes, private_files
from vfsd.mount import control
from vfsd.storage.homes import join_store

CLIP = FOLDER / "traffic.mp4"
_REASON = "user.vfsd.reason"
_STATE = "user.vfsd.state"


class Shared:
    """A store on PostgreSQL with two homes, `a` and `b`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self._engine = sa.create_engine(url)
        Store.create(folder / "a" / "store", catalog_url=url).close()
        join_store(folder / "b" / "store", url, None)
        self.a, self.b = MountedHome(folder / "a"), MountedHome(folder / "b")

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(statement)]

    def execute(self, statement: str) -> None:
        with self._engine.begin() as connection:
            connection.exec_driver_sql(statement)

    def nodes(self) -> list[tuple[object, ...]]:
        """Everything that another home must not change of a file."""
        return self.rows(
            "SELECT ino, state, size, nlink, generation, reason, home FROM nodes "
            "WHERE ino > 1 ORDER BY ino"
        )

    def expire_leases(self) -> None:
        self.execute("UPDATE mounts SET beat = beat - interval '5 minutes'")

    def close(self) -> None:
        for host in (self.a, self.b):
            host.unmount()
        self._engine.dispose()


@pytest.fixture
def shared_store(tmp_path: Path, own_database: str) -> Iterator[Shared]:
    found = Shared(tmp_path, own_database)
    yield found
    found.close()


def _large_video() -> bytes:
    """A video of 15 MB: a clip, and a box that players skip."""
    padding = 15 << 20
    return CLIP.read_bytes() + padding.to_bytes(4, "big") + b"free" + os.urandom(padding - 8)


def _state(path: Path) -> str:
    return os.getxattr(path, _STATE).decode()


def _is_video(path: Path) -> Callable[[], bool]:
    return lambda: _state(path) == "video"


def _errno_of(action: Callable[[], object]) -> int | None:
    try:
        action()
    except OSError as error:
        return error.errno
    return None


def _check(host: MountedHome, *, repair: bool = True) -> list[str]:
    with Store.open(host.store) as store:
        found = [one.message for one in fsck.run(store.parts, repair=repair, deep=True)]
        fsck.collect(store.parts)
    return found


def test_home_mounts_while_another_one_writes(shared_store: Shared) -> None:
    a, b = shared_store.a, shared_store.b
    data = _large_video()
    a.mount()
    (a.at / "done.txt").write_bytes(b"a note")
    (a.at / "done.mp4").write_bytes(CLIP.read_bytes())
    a.wait_for(_is_video(a.at / "done.mp4"), "not classified")
    assert _state(a.at / "done.txt") == "plain"
    with open(a.at / "live.mp4", "wb") as live, open(a.at / "gone.bin", "wb+") as gone:
        live.write(data[: len(data) // 2])
        live.flush()
        gone.write(b"unlinked, and still open")
        gone.flush()
        (a.at / "gone.bin").unlink()
        before = shared_store.nodes()
        b.mount()
        assert shared_store.nodes() == before
        assert sorted(os.listdir(b.at)) == ["done.mp4", "done.txt", "live.mp4"]
        assert (b.at / "done.mp4").read_bytes() == CLIP.read_bytes()
        assert _errno_of((b.at / "live.mp4").read_bytes) == errno.EIO
        assert os.getxattr(b.at / "live.mp4", _REASON).startswith(b"is being written by ")
        assert _errno_of((b.at / "done.txt").read_bytes) == errno.EIO
        assert f"is in home {a.home} on ".encode() in os.getxattr(b.at / "done.txt", _REASON)
        assert _check(b) == []
        assert shared_store.nodes() == before
        live.write(data[len(data) // 2 :])
        gone.seek(0)
        assert gone.read() == b"unlinked, and still open"
    a.wait_for(_is_video(a.at / "live.mp4"), "not classified")
    assert (a.at / "live.mp4").read_bytes() == data
    b.wait_for(lambda: _errno_of((b.at / "live.mp4").read_bytes) is None, "not seen")
    assert (b.at / "live.mp4").read_bytes() == data
    assert (a.at / "done.txt").read_bytes() == b"a note"
    for host in (a, b):
        host.unmount()
        assert _check(host, repair=False) == []
    assert "ERROR" not in a.log.read_text()


def test_hosts_with_names_and_networks_of_their_own(shared_store: Shared) -> None:
    a, b = shared_store.a, shared_store.b
    namespace = ["unshare", "--uts", "--net"]
    if subprocess.run([*namespace, "true"], capture_output=True).returncode:
        pytest.skip("only root may make namespaces here")
    for host, name in ((a, "host-a"), (b, "host-b")):
        mount = shlex.join([sys.executable, "-m", "vfsd", "-s", str(host.store), "mount"])
        command = f"hostname {name} && {mount} {host.at}"
        subprocess.run([*namespace, "sh", "-c", command], check=True)
    (b.at / "note.txt").write_bytes(b"of b")
    with open(a.at / "live.bin", "wb") as live:
        live.write(b"of a")
        live.flush()
        b.wait_for((b.at / "live.bin").exists, "not seen")
        assert os.getxattr(b.at / "live.bin", _REASON) == b"is being written by host-a"
    assert _state(b.at / "note.txt") == "plain"
    a.wait_for((a.at / "note.txt").exists, "not seen")
    reason = f"is in home {b.home} on host-b"
    a.wait_for(lambda: os.getxattr(a.at / "note.txt", _REASON).decode() == reason, "not seen")
    with Store.open(a.store) as store:
        found = [one.home.mount for one in list_homes(store.parts)]
    assert [(one.host, one.place) for one in found if one] == [
        ("host-a", str(a.at)),
        ("host-b", str(b.at)),
    ]


def test_checks_of_one_home_while_the_other_writes(shared_store: Shared) -> None:
    a, b = shared_store.a, shared_store.b
    data = _large_video()
    a.mount()
    b.mount()
    with (
        open(b.at / "live.mp4", "wb") as live,
        open(b.at / "b.bin", "wb+") as of_b,
        open(a.at / "a.bin", "wb+") as of_a,
    ):
        for file, text in ((of_a, b"of a"), (of_b, b"of b")):
            file.write(text)
            file.flush()
        (a.at / "a.bin").unlink()
        (b.at / "b.bin").unlink()
        live.write(data[:1000])
        live.flush()
        assert _check(a) == []
        of_a.close()
        a.unmount()
        assert _check(a) == []  # unmounted, so it looks for more
        live.write(data[1000:])
        of_b.seek(0)
        assert of_b.read() == b"of b"
    b.wait_for(_is_video(b.at / "live.mp4"), "not classified")
    assert (b.at / "live.mp4").read_bytes() == data
    b.unmount()  # deletes what is pending
    assert _check(b) == []


def test_killed_mount_is_recovered_by_its_own_home(shared_store: Shared) -> None:
    a, b = shared_store.a, shared_store.b
    a.mount()
    b.mount()
    live = os.open(b.at / "live.bin", os.O_CREAT | os.O_WRONLY)
    os.write(live, b"half of it")
    os.fsync(live)
    before = shared_store.nodes()
    b.kill()
    assert _check(a) == []
    a.unmount()
    a.mount()
    assert shared_store.nodes() == before
    assert os.getxattr(a.at / "live.bin", _REASON).startswith(b"is being written by ")
    assert _errno_of((a.at / "live.bin").read_bytes) == errno.EIO
    assert _errno_of(lambda: os.write(live, b"x")) == errno.ENOTCONN
    assert _errno_of(lambda: os.close(live)) in (None, errno.ENOTCONN)
    b.mount()  # at once: the lock of the directory shows that the mount with the lease is dead
    b.wait_for(lambda: _state(b.at / "live.bin") == "plain", "not classified")
    assert (b.at / "live.bin").read_bytes() == b"half of it"


def test_files_of_another_home_are_not_changed(shared_store: Shared) -> None:
    a, b = shared_store.a, shared_store.b
    a.mount()
    b.mount()
    theirs, mine = b.at / "note.txt", b.at / "mine.txt"
    (a.at / "note.txt").write_bytes(b"of a")
    mine.write_bytes(b"of b")
    assert _state(a.at / "note.txt") == "plain"
    note = f"SELECT size, generation, state FROM nodes WHERE home = '{a.home}'"
    before = shared_store.rows(note)
    assert _errno_of(lambda: theirs.write_bytes(b"x")) == errno.EBUSY
    assert _errno_of(lambda: os.open(theirs, os.O_RDWR)) == errno.EBUSY
    assert _errno_of(lambda: os.truncate(theirs, 0)) == errno.EBUSY
    assert _errno_of(lambda: mine.replace(theirs)) == errno.EBUSY
    with Store.open(b.store) as store, pytest.raises(BusyError, match="is in home"):
        store.ingest(CLIP, "note.txt", replace=True)
    theirs.chmod(0o600)
    os.utime(theirs, (1, 2))
    theirs.rename(b.at / "renamed.txt")
    assert (a.at / "renamed.txt").read_bytes() == b"of a"
    assert shared_store.rows(note) == before
    (b.at / "renamed.txt").unlink()
    a.wait_for(lambda: not (a.at / "renamed.txt").exists(), "not seen")


def test_video_written_again_on_another_host(shared_store: Shared) -> None:
    a, b = shared_store.a, shared_store.b
    a.mount()
    b.mount()
    (a.at / "v.mp4").write_bytes(CLIP.read_bytes())
    a.wait_for(_is_video(a.at / "v.mp4"), "not classified")
    b.wait_for(lambda: (b.at / "v.mp4").exists(), "not seen")
    with open(b.at / "v.mp4", "r+b") as file:
        assert _errno_of(lambda: os.open(a.at / "v.mp4", os.O_RDWR)) == errno.EBUSY
        file.write(b"other bytes")
        file.flush()
        (a.at / "new.bin").write_bytes(b"a replacement")
        assert _errno_of(lambda: (a.at / "new.bin").replace(a.at / "v.mp4")) == errno.EBUSY
    assert _state(b.at / "v.mp4") == "plain"
    assert (b.at / "v.mp4").read_bytes().startswith(b"other bytes")
    a.wait_for(lambda: _errno_of((a.at / "v.mp4").read_bytes) == errno.EIO, "not seen")


def test_home_that_is_gone_is_forgotten(shared_store: Shared) -> None:
    a, b = shared_store.a, shared_store.b
    b.mount()
    (b.at / "note.txt").write_bytes(b"lost")
    (b.at / "v.mp4").write_bytes(CLIP.read_bytes())
    b.wait_for(_is_video(b.at / "v.mp4"), "not classified")
    live = os.open(b.at / "live.bin", os.O_CREAT | os.O_WRONLY)
    b.kill()
    shutil.rmtree(b.store)
    with Store.open(a.store) as store:
        with pytest.raises(BusyError, match="is mounted at"):
            forget_home(store.parts, b.home)
        shared_store.expire_leases()
        assert [(one.is_own, one.files) for one in list_homes(store.parts)] == [
            (True, 0),
            (False, 2),
        ]
        assert [name for name, _ in private_files(store.parts, b.home)] == ["live.bin", "note.txt"]
        assert not list(fsck.run(store.parts, repair=True))
        forget_home(store.parts, b.home)
        assert [one.home.id for one in list_homes(store.parts)] == [a.home]
        assert list(store) == ["v.mp4"]
        assert not list(fsck.run(store.parts, deep=True))
    a.mount()
    assert os.listdir(a.at) == ["v.mp4"]
    assert _errno_of(lambda: os.write(live, b"x")) == errno.ENOTCONN
    assert _errno_of(lambda: os.close(live)) in (None, errno.ENOTCONN)


_LEASE = 1.5
_TAKE_OVER = """
import sys
from pathlib import Path
from vfsd.catalog import homes
sys.stdin.read()
homes.LEASE_SECONDS = float(sys.argv[1])
from vfsd.mount.daemon import mount_in_foreground
mount_in_foreground(sys.argv[2], sys.argv[3], [], log=Path(sys.argv[4]))
"""


def test_paused_mount_cannot_publish(shared_store: Shared, tmp_path: Path) -> None:
    """The directory is on a disk of the network without locks, and two hosts mount it."""
    a = shared_store.a
    a.mount()
    first = a.pid
    other = tmp_path / "other"
    other.mkdir()
    # Before the file is open: closing the descriptor in the new process would wait for the mount.
    places = map(str, (a.store, other, tmp_path / "log"))
    command = [sys.executable, "-c", _TAKE_OVER, str(_LEASE), *places]
    taker = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert taker.stdin is not None
    live = os.open(a.at / "live.bin", os.O_CREAT | os.O_WRONLY)
    os.write(live, b"written before the pause")
    (a.store / "mount.lock").unlink()
    shared_store.execute("UPDATE mounts SET machine = 'another'")
    with pytest.raises(BusyError, match=r"mounted at .* which was last heard from"):
        control.mount(a.store, other)
    os.kill(first, signal.SIGSTOP)
    try:
        time.sleep(_LEASE + 0.2)
        taker.stdin.close()
        a.wait_for(lambda: os.path.ismount(other), "no takeover")
        # The new mount classified what it found.
        a.wait_for(lambda: _state(other / "live.bin") == "plain", "not classified")
        before = shared_store.nodes()
    finally:
        os.kill(first, signal.SIGCONT)
    # It has slept for less than two beats of 10 s, so only the transaction can tell.
    assert _errno_of((a.at / "new.bin").touch) == errno.EIO
    assert _errno_of((a.at / "live.bin").unlink) == errno.EIO
    os.write(live, b"; and after it")
    assert _errno_of(lambda: os.close(live)) == errno.EIO
    assert shared_store.nodes() == before
    (ino,) = (row[0] for row in before)
    private = (a.store / "spool" / str(ino)).read_bytes()
    assert private.startswith(b"written before the pause")
    control.unmount(other)
    assert taker.wait(30) == 0
