"""The adapter to libfuse's low-level interface, where one file is one inode to the kernel."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from tests.support.fs_driver import failing
from vfsd.api.store import Store
from vfsd.core.model import Node
from vfsd.mount.fs import Attributes, ViewPath
from vfsd.mount.fuse.kernel_nodes import KernelNodes
from vfsd.mount.fuse.libfuse import INTERFACE_VARIABLE, load

_LIBC = ctypes.CDLL(None, use_errno=True)
_NOAPPEND = 0x20  # RWF_NOAPPEND


@pytest.fixture(scope="module")
def inodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    if load().major < 3:
        pytest.skip("libfuse 3 is not installed")
    place = Mounted(tmp_path_factory.mktemp("inodes"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(INTERFACE_VARIABLE, "inodes")
        place.mount()
    yield place
    place.unmount()
    log = place.log.read_text()
    assert "ERROR" not in log
    assert "Traceback" not in log


@pytest.fixture
def at(inodes: Mounted, request: pytest.FixtureRequest) -> Path:
    path = inodes.at / str(request.node.name)
    path.mkdir()
    return path


def test_unlinked_while_open(at: Path) -> None:
    with (at / "a").open("w+b", buffering=0) as file:
        file.write(b"abc")
        (at / "a").unlink()
        assert os.listdir(at) == []
        at.rmdir()
        found = os.fstat(file.fileno())
        assert (found.st_nlink, found.st_size) == (0, 3)
        os.fchmod(file.fileno(), 0o600)
        file.truncate(2)
        assert os.pread(file.fileno(), 9, 0) == b"ab"
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600


def test_replaced_while_open(at: Path) -> None:
    (at / "a").write_bytes(b"old" * 5000)
    (at / "b").write_bytes(b"new")
    with (at / "a").open("r+b", buffering=0) as file:
        (at / "b").rename(at / "a")
        assert os.listdir(at) == ["a"]
        assert os.fstat(file.fileno()).st_nlink == 0
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0:3] = b"OLD"
            assert file.read() == b"OLD" + b"old" * 4999
        assert (at / "a").read_bytes() == b"new"


def test_moved_while_open(at: Path) -> None:
    (at / "d").mkdir()
    with (at / "d/a").open("w+b", buffering=0) as file:
        (at / "d").rename(at / "e")
        (at / "e/a").rename(at / "e/b")
        file.write(b"x")
        assert os.fstat(file.fileno()).st_ino == (at / "e/b").stat().st_ino
        assert (at / "e/b").read_bytes() == b"x"


def test_hard_links_are_one_file(at: Path) -> None:
    (at / "a").write_bytes(bytes(8192))
    os.link(at / "a", at / "b")
    with (at / "a").open("r+b") as one, (at / "b").open("r+b") as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with mmap.mmap(one.fileno(), 0) as here, mmap.mmap(other.fileno(), 0) as there:
            here[4096:4100] = b"here"
            assert there[4096:4100] == b"here"
    (at / "a").unlink()
    assert (at / "b").stat().st_nlink == 1


def test_appends_by_flags(at: Path) -> None:
    """RWF_APPEND and RWF_NOAPPEND choose the place of one write."""
    (at / "a").write_bytes(b"0123")
    plain, appending = os.open(at / "a", os.O_RDWR), os.open(at / "a", os.O_RDWR | os.O_APPEND)
    os.write(appending, b"45")
    assert os.pwritev(plain, [b"67"], 0, os.RWF_APPEND) == 2
    vector = (ctypes.c_void_p * 2)(ctypes.cast(ctypes.c_char_p(b"XY"), ctypes.c_void_p).value, 2)
    if _LIBC.pwritev2(appending, vector, 1, ctypes.c_long(0), _NOAPPEND) == 2:
        assert (at / "a").read_bytes() == b"XY234567"  # Linux 6.9
    os.close(plain)
    os.close(appending)


def test_appended_lines_of_many_names(at: Path) -> None:
    (at / "log0").touch()
    for number in (1, 2, 3):
        os.link(at / "log0", at / f"log{number}")

    def append(number: int) -> None:
        with (at / f"log{number}").open("ab", buffering=0) as file:
            for _ in range(200):
                file.write(bytes([48 + number]) * 99 + b"\n")

    threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (at / "log3").read_bytes().splitlines()
    assert sorted(lines) == sorted(bytes([48 + n]) * 99 for n in range(4) for _ in range(200))


def test_listing_with_attributes(at: Path) -> None:
    for number in range(300):
        (at / f"{number:03}").write_bytes(bytes(number))
    with os.scandir(at) as found:
        sizes = {entry.name: entry.stat().st_size for entry in found}
    assert sizes == {f"{number:03}": number for number in range(300)}
    for number in range(0, 300, 2):
        (at / f"{number:03}").unlink()
    assert sorted(os.listdir(at)) == [f"{number:03}" for number in range(1, 300, 2)]


def test_view_of_replaced_video(inodes: Mounted, at: Path) -> None:
    """Both versions of a view can be read at once, also by sendfile and in mappings."""
    shutil.copy(FOLDER / "traffic.mp4", at / "v.mp4")
    name = at / "v.mp4@/frames=0-5.rgb"
    old = name.read_bytes()
    with name.open("rb") as first, Store.open(inodes.store) as store:
        assert os.pread(first.fileno(), 100, 0) == old[:100]
        inside = str((at / "v.mp4").relative_to(inodes.at))
        store.ingest(FOLDER / "mjpeg.avi", inside, replace=True)
        inodes.wait_for(lambda: name.stat().st_size != len(old), "the view has the old size")
        new = name.read_bytes()
        assert len(new) != len(old)
        with name.open("rb") as second:
            with mmap.mmap(first.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                assert mapped[:] == old
            with mmap.mmap(second.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                assert mapped[:] == new
        assert os.pread(first.fileno(), len(old), 0) == old


def test_write_after_replacement(inodes: Mounted, at: Path) -> None:
    """A file that another process has replaced can be read and its successor be written."""
    shutil.copy(FOLDER / "traffic.mp4", at / "v.mp4")
    with (at / "v.mp4").open("rb", buffering=0) as old, Store.open(inodes.store) as store:
        inode = os.fstat(old.fileno()).st_ino
        inside = str((at / "v.mp4").relative_to(inodes.at))
        store.ingest(FOLDER / "mjpeg.avi", inside, replace=True)
        inodes.wait_for(lambda: (at / "v.mp4").stat().st_ino != inode, "the old file is shown")
        with (at / "v.mp4").open("ab") as new:
            assert new.tell() == (FOLDER / "mjpeg.avi").stat().st_size
            new.write(b"more")
        assert old.read() == (FOLDER / "traffic.mp4").read_bytes()
    assert (at / "v.mp4").read_bytes() == (FOLDER / "mjpeg.avi").read_bytes() + b"more"


def test_file_handles(inodes: Mounted, at: Path) -> None:
    """The handle of a file is valid until the file is deleted."""
    if os.geteuid() != 0:
        pytest.skip("only root can open file handles")
    (at / "a").write_bytes(b"abc")
    handle = _handle(at / "a")
    root = os.open(inodes.at, os.O_RDONLY)
    Path("/proc/sys/vm/drop_caches").write_text("2")  # the kernel forgets the file
    fd = _open_handle(root, handle)
    assert os.read(fd, 9) == b"abc"
    os.close(fd)
    (at / "a").unlink()
    assert failing(_open_handle, root, handle) == "ESTALE"
    os.close(root)


def _handle(path: Path) -> bytes:
    handle = ctypes.create_string_buffer(8 + 128)
    ctypes.c_uint.from_buffer(handle).value = 128
    mount = ctypes.c_int()
    if _LIBC.name_to_handle_at(-100, os.fsencode(path), handle, ctypes.byref(mount), 0) != 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return bytes(handle)


def _open_handle(mount: int, handle: bytes) -> int:
    found = _LIBC.open_by_handle_at(mount, ctypes.create_string_buffer(handle), os.O_RDONLY)
    if found < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return int(found)


@given(
    st.lists(
        st.tuples(st.sampled_from(["look", "forget", "open", "close", "write"]), st.integers(0, 2)),
        max_size=60,
    )
)
def test_nodes_leave_nothing(steps: list[tuple[str, int]]) -> None:
    """Views with open handles or lookups keep their nodes; nothing else remains."""
    nodes = KernelNodes()
    video = Node(7, 0o100644, 0, 0, 1, 0, 0, 0, 0)
    known: Counter[int] = Counter()
    handles: dict[int, int] = {}
    for number, (step, which) in enumerate(steps):
        view = ViewPath(video, f"view{which}")
        found = Attributes(view.ino, 0o100444, 1, 0, 0, 0, 100 + number % 2, 1, 0, 0, 0)
        if step == "look":
            known[nodes.looked_up(view, found)] += 1
            continue
        of_view = [node for node in known if nodes.place(node) == view]
        if step == "forget" and of_view:
            nodes.forget(of_view[0], known.pop(of_view[0]))
        elif step in ("open", "write") and of_view:
            node = nodes.view(of_view[-1])
            assert node is not None
            told = None if step == "write" else found
            if nodes.opened(node, number, f"version {number % 3}", told):
                handles[number] = of_view[-1]
                assert nodes.place(of_view[-1]) == view
        elif step == "close" and handles:
            handle, node_id = handles.popitem()
            nodes.released(node_id, handle)
        for node_id in {*known, *handles.values()}:
            assert nodes.place(node_id) is not None
    for node_id, count in known.items():
        nodes.forget(node_id, count)
    for handle, node_id in handles.items():
        nodes.released(node_id, handle)
    assert len(nodes) == 0
    assert not nodes._views
    assert not nodes._newest


def test_listed_files_are_looked_up() -> None:
    nodes = KernelNodes()
    before = nodes.changes
    nodes.looked_up_files([5, 6], before)
    assert nodes.is_fresh(5)
    nodes.names_changed()
    nodes.looked_up_files([6, 7], before)  # the listing is older than the change
    assert [nodes.is_fresh(each) for each in (5, 6, 7)] == [False] * 3
    nodes.forget(6, 1)
    assert len(nodes) == 3
    for each in (5, 6, 7):
        nodes.forget(each, 1)
    assert len(nodes) == 0


@pytest.mark.thorough
def test_lookups_are_forgotten(inodes: Mounted, at: Path) -> None:
    """Nothing keeps a lookup count once the kernel has forgotten all inodes."""
    if os.geteuid() != 0:
        pytest.skip("only root can drop the kernel's caches")
    shutil.copy(FOLDER / "traffic.mp4", at / "v.mp4")
    for number in range(2000):
        (at / str(number)).write_bytes(b"")
    with ExitStack() as stack:
        for number in range(50):
            stack.enter_context((at / str(number)).open())
            (at / str(number)).unlink()
        subprocess.run(["ls", "-lR", at], check=True, stdout=subprocess.DEVNULL)
        (at / "v.mp4@/frames=0-5.rgb").read_bytes()
        assert (inodes.standing.inodes or 0) > 1900

    def is_forgotten() -> bool:
        Path("/proc/sys/vm/drop_caches").write_text("2")
        return (inodes.standing.inodes or 0) < 10

    inodes.wait_for(is_forgotten, "the kernel has not forgotten its inodes")
