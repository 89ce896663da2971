"""A handle must never read the bytes of another file that has taken its name."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from tests.support.selection import one_in
from vfsd.api.store import Store

OLD, NEW = FOLDER / "traffic.mp4", FOLDER / "variable-rate.mp4"
VIEW = "v.mp4@/frames=0-20,size=160x120.rgb"
SHORT, LONG = FOLDER / "mjpeg.avi", FOLDER / "traffic.mp4"
PICTURES = "v.mp4@/frames=0-5.rgb"
"""A view of raw frames; its size differs between the two videos."""
BLOCK = 64 << 10
PAGE = 4 << 10
FRESH = ("attr_timeout=100", "entry_timeout=0")
"""Names are looked up each time, but times are cached.  If a time changed, the kernel would drop
all cached pages."""

Replace = Callable[[Mounted], None]


def rename_over(mounted: Mounted) -> None:
    shutil.copy(NEW, mounted.at / "new.mp4")
    (mounted.at / "new.mp4").rename(mounted.at / "v.mp4")


def move_away(mounted: Mounted) -> None:
    shutil.copy(NEW, mounted.at / "new.mp4")
    (mounted.at / "v.mp4").rename(mounted.at / "old.mp4")
    (mounted.at / "new.mp4").rename(mounted.at / "v.mp4")


def remove_and_copy(mounted: Mounted) -> None:
    (mounted.at / "v.mp4").unlink()
    shutil.copy(NEW, mounted.at / "v.mp4")


def ingest(mounted: Mounted, source: Path = NEW) -> None:
    with Store.open(mounted.store) as store, noticed(mounted, "v.mp4"):
        store.ingest(source, "v.mp4", replace=True)


def move_inside(mounted: Mounted) -> None:
    with Store.open(mounted.store) as store, noticed(mounted, "v.mp4"):
        store.ingest(NEW, "new.mp4")
        store.move("new.mp4", "v.mp4", replace=True)


@contextmanager
def noticed(mounted: Mounted, name: str) -> Iterator[None]:
    """Wait at the end of the block until the mount sees another file under that name."""
    before = (mounted.at / name).stat().st_ino
    yield
    mounted.wait_for(lambda: (mounted.at / name).stat().st_ino != before, f"{name} is the old one")


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    try:
        yield fd
    finally:
        os.close(fd)


def view_of(mounted: Mounted, source: Path) -> bytes:
    name = f"alone-{source.name}"
    shutil.copy(source, mounted.at / name)
    return (mounted.at / VIEW.replace("v.mp4", name)).read_bytes()


@pytest.mark.parametrize(
    ("replace", "mode"),
    one_in(
        4,
        [
            (rename_over, "ordinary"),
            (rename_over, "passthrough"),
            (move_away, "ordinary"),
            (remove_and_copy, "ordinary"),
            (ingest, "ordinary"),
            (ingest, "passthrough"),
            (move_inside, "ordinary"),
        ],
    ),
)
def test_open_view(
    mounted: Mounted, replace: Replace, mode: str, request: pytest.FixtureRequest
) -> None:
    place = mounted
    by_kernel = [request.getfixturevalue("passthrough")] if mode == "passthrough" else []
    place.mount(*FRESH, *by_kernel)
    shutil.copy(OLD, place.at / "v.mp4")
    old, new = view_of(place, OLD), view_of(place, NEW)
    assert len(old) == len(new)
    with opened(place.at / VIEW) as first:
        assert os.pread(first, 100, 0) == old[:100]
        replace(place)
        with opened(place.at / VIEW) as second:
            for at in range(0, len(old), BLOCK):
                assert os.pread(first, BLOCK, at) == old[at : at + BLOCK], at
                assert os.pread(second, BLOCK, at) == new[at : at + BLOCK], at
            for at in range(0, len(old), BLOCK):
                assert os.pread(first, BLOCK, at) == old[at : at + BLOCK], at
        assert (place.at / VIEW).read_bytes() == new
    for _ in range(2):
        assert (place.at / VIEW).read_bytes() == new


@pytest.mark.parametrize("replace", [ingest, move_inside])
def test_open_file(mounted: Mounted, replace: Replace) -> None:
    mounted.mount(*FRESH)
    shutil.copy(OLD, mounted.at / "v.mp4")
    old, new = OLD.read_bytes(), NEW.read_bytes()
    common = range(0, min(len(old), len(new)) - PAGE, PAGE)
    with opened(mounted.at / "v.mp4") as first:
        assert os.pread(first, 100, 0) == old[:100]
        replace(mounted)
        with opened(mounted.at / "v.mp4") as second:
            for at in common:
                assert os.pread(first, PAGE, at) == old[at : at + PAGE], at
                assert os.pread(second, PAGE, at) == new[at : at + PAGE], at
    assert (mounted.at / "v.mp4").read_bytes() == new


def test_view_of_unlinked_video(mounted: Mounted) -> None:
    mounted.mount()
    expected = view_of(mounted, OLD)
    (mounted.at / f"alone-{OLD.name}").unlink()
    shutil.copy(OLD, mounted.at / "v.mp4")
    view = mounted.at / VIEW.replace("160x120", "80x60")
    with opened(mounted.at / VIEW) as first, opened(view) as never_read:
        (mounted.at / "v.mp4").unlink()
        assert os.pread(first, len(expected), 0) == expected
        assert os.fstat(never_read).st_size == len(expected) // 4
    objects = mounted.store / "objects"
    mounted.wait_for(
        lambda: not any(path.is_file() for path in objects.rglob("*/*")), "its bytes are kept"
    )


def test_cached_pages_after_moves(mounted: Mounted) -> None:
    """Cached pages must not be used for another file that had the same name before."""
    mounted.mount(*FRESH)
    shutil.copy(OLD, mounted.at / "a.mp4")
    shutil.copy(NEW, mounted.at / "b.mp4")
    for name in ("a.mp4", "b.mp4"):
        (mounted.at / name).read_bytes()
    with Store.open(mounted.store) as store:
        store.move("a.mp4", "away.mp4")  # the kernel has cached its bytes as a.mp4
    mounted.wait_for(lambda: not (mounted.at / "a.mp4").exists(), "it has not moved")
    (mounted.at / "b.mp4").rename(mounted.at / "a.mp4")
    with Store.open(mounted.store) as store, noticed(mounted, "a.mp4"):
        store.move("a.mp4", "c.mp4")
        store.move("away.mp4", "a.mp4")
    assert (mounted.at / "a.mp4").read_bytes() == OLD.read_bytes()
    assert (mounted.at / "c.mp4").read_bytes() == NEW.read_bytes()


def alone(mounted: Mounted, name: str, source: Path) -> bytes:
    """The bytes under that name if v.mp4 is a copy of `source`."""
    shutil.copy(source, mounted.at / source.name)
    return (mounted.at / name.replace("v.mp4", source.name)).read_bytes()


@pytest.mark.parametrize("name", ["v.mp4", PICTURES])
def test_replaced_by_shorter_file(mounted: Mounted, name: str) -> None:
    mounted.mount(*FRESH)
    old, new = alone(mounted, name, LONG), alone(mounted, name, SHORT)
    shutil.copy(LONG, mounted.at / "v.mp4")
    with opened(mounted.at / name) as first:
        assert os.pread(first, 100, 0) == old[:100]
        ingest(mounted, SHORT)
        os.stat(mounted.at / name)
        assert os.pread(first, len(old) - 100, 100) == old[100:]
        assert (mounted.at / name).read_bytes() == new
        os.stat(mounted.at / name)
        assert os.pread(first, 100, len(old) - 100) == old[-100:]
    # The kernel reports a closed file with some delay.
    mounted.wait_for(lambda: (mounted.at / name).stat().st_size == len(new), "the old size stays")


@pytest.mark.parametrize("name", ["v.mp4", PICTURES])
def test_copy_of_shorter_file(mounted: Mounted, name: str, tmp_path: Path) -> None:
    """cp relies on the size if it expects holes in the file."""
    mounted.mount(*FRESH)
    new = alone(mounted, name, SHORT)
    shutil.copy(LONG, mounted.at / "v.mp4")
    with opened(mounted.at / name):
        ingest(mounted, SHORT)
        subprocess.run(["cp", mounted.at / name, tmp_path / "copy"], check=True)
    assert (tmp_path / "copy").read_bytes() == new


@pytest.mark.parametrize("name", ["v.mp4", PICTURES])
def test_sendfile_refused(by_path: None, mounted: Mounted, name: str, tmp_path: Path) -> None:
    """sendfile and private mappings always use the kernel's cache."""
    mounted.mount(*FRESH)
    old, new = alone(mounted, name, LONG), alone(mounted, name, SHORT)
    shutil.copy(LONG, mounted.at / "v.mp4")
    with opened(mounted.at / name) as first, (tmp_path / "sent").open("wb") as sent:
        assert os.pread(first, len(old), 0) == old
        ingest(mounted, SHORT)
        with opened(mounted.at / name) as second:
            with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
                os.sendfile(sent.fileno(), second, 0, PAGE)
            for at in (len(new), len(new) // PAGE * PAGE + PAGE):
                with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
                    os.sendfile(sent.fileno(), second, at, PAGE)
            assert os.pread(first, PAGE, 0) == old[:PAGE]
            assert os.pread(second, PAGE, 0) == new[:PAGE]
        for copy in (tmp_path / "copy", mounted.at / "copy"):
            subprocess.run(["cp", mounted.at / name, copy], check=True)
            assert copy.read_bytes() == new
        shutil.copyfile(mounted.at / name, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == new
        assert os.pread(first, len(old), 0) == old


@pytest.mark.parametrize("name", ["v.mp4", PICTURES])
def test_copy_to_other_mount(mounted: Mounted, name: str, tmp_path: Path) -> None:
    """Between FUSE mounts the kernel copies by itself, through its cache."""
    mounted.mount(*FRESH)
    new = alone(mounted, name, SHORT)
    shutil.copy(LONG, mounted.at / "v.mp4")
    other = Mounted(tmp_path / "other")
    try:
        other.mount()
        with opened(mounted.at / name):
            ingest(mounted, SHORT)
            subprocess.run(["cp", mounted.at / name, other.at / "copy"], check=True)
        assert (other.at / "copy").read_bytes() == new
    finally:
        other.unmount()


@pytest.mark.parametrize("name", ["v.mp4", PICTURES])
def test_sendfile_after_close(mounted: Mounted, name: str, tmp_path: Path) -> None:
    mounted.mount(*FRESH)
    old, new = alone(mounted, name, LONG), alone(mounted, name, SHORT)
    shutil.copy(LONG, mounted.at / "v.mp4")
    first = os.open(mounted.at / name, os.O_RDONLY)
    ingest(mounted, SHORT)
    with opened(mounted.at / name) as second, (tmp_path / "sent").open("wb+") as sent:
        assert os.pread(first, len(old), 0) == old
        os.close(first)

        def is_sent() -> bool:
            """The kernel reports the close with some delay, and keeps cached pages until then."""
            sent.seek(0)
            with suppress(OSError):
                os.sendfile(sent.fileno(), second, 0, PAGE)
            return os.pread(sent.fileno(), PAGE, 0) == new[:PAGE]

        mounted.wait_for(is_sent, "it is not sent")
        with mmap.mmap(second, PAGE, access=mmap.ACCESS_COPY) as mapped:
            assert mapped[:] == new[:PAGE]


@pytest.mark.parametrize("name", ["v.mp4", PICTURES])
def test_read_past_end_of_mapping(by_path: None, mounted: Mounted, name: str) -> None:
    mounted.mount(*FRESH)
    old, new = alone(mounted, name, SHORT), alone(mounted, name, LONG)
    shutil.copy(SHORT, mounted.at / "v.mp4")
    with opened(mounted.at / name) as first:
        assert os.pread(first, 100, 0) == old[:100]
        ingest(mounted, LONG)
        assert (mounted.at / name).stat().st_size == len(new)
        last = len(old) // PAGE * PAGE
        assert b"".join(os.pread(first, PAGE, at) for at in range(0, last, PAGE)) == old[:last]
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            os.pread(first, PAGE, last)
        assert (mounted.at / name).read_bytes() == new


@pytest.mark.parametrize("mode", ["ab", "r+b", "wb"])
def test_append_after_replacement(by_path: None, mounted: Mounted, mode: str) -> None:
    mounted.mount()
    shutil.copy(LONG, mounted.at / "v.mp4")
    with opened(mounted.at / "v.mp4") as old:
        assert os.pread(old, 100, 0) == LONG.read_bytes()[:100]
        ingest(mounted, SHORT)
        with pytest.raises(OSError, match="Text file busy"):
            (mounted.at / "v.mp4").open(mode)
        with Store.open(mounted.store) as store, noticed_gone(mounted, "v.mp4"):
            store.remove("v.mp4")
        with pytest.raises(OSError, match="No such file" if mode == "r+b" else "Text file busy"):
            (mounted.at / "v.mp4").open(mode)
        assert os.listdir(mounted.at) == []
    shutil.copy(SHORT, mounted.at / "v.mp4")
    with (mounted.at / "v.mp4").open("ab") as file:
        file.write(b"more")
    assert (mounted.at / "v.mp4").read_bytes() == SHORT.read_bytes() + b"more"


@contextmanager
def noticed_gone(mounted: Mounted, name: str) -> Iterator[None]:
    yield
    mounted.wait_for(lambda: not (mounted.at / name).exists(), f"{name} is still there")
