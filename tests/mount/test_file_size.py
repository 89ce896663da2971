"""The ends of files while the kernel has an outdated size cached for their names."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from tests.support.replaceable_clips import rich_clip
from tests.support.selection import one_in
from vfsd.api.store import Store

SHORT, MIDDLE, LONG = FOLDER / "odd-size.webm", FOLDER / "transport.ts", FOLDER / "traffic.mp4"
APPEND = os.O_CREAT | os.O_APPEND
MIB = 1 << 20
BLOCK = 4 << 10


@pytest.fixture(scope="module")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A mount with a long entry timeout, so that the kernel does not look up names again."""
    yield from mounted_with(tmp_path_factory.mktemp("remembering"), "entry_timeout=100")


@pytest.fixture(scope="module")
def looks_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    yield from mounted_with(tmp_path_factory.mktemp("looks-up"), "entry_timeout=0")


@pytest.fixture
def looking(looks_up: Mounted) -> Mounted:
    """An empty mount without an entry timeout, so that the kernel looks up names each time."""
    for path in looks_up.at.iterdir():
        path.unlink()
    return looks_up


def mounted_with(root: Path, option: str) -> Iterator[Mounted]:
    place = Mounted(root)
    place.mount("attr_timeout=100", option)
    yield place
    place.unmount()


def replace(mounted: Mounted, name: str, source: Path) -> None:
    """Replace a video by another process, so that the mount notices but the kernel does not."""
    with Store.open(mounted.store) as store:
        store.ingest(source, name, replace=True)
    let_see(mounted)


def remove(mounted: Mounted, name: str) -> None:
    with Store.open(mounted.store) as store:
        store.remove(name)
    let_see(mounted)


def let_see(mounted: Mounted) -> None:
    """Change names through the mount, which makes the mount read the changes of other processes."""
    (mounted.at / "changed").mkdir()
    (mounted.at / "changed").rmdir()


def move(mounted: Mounted, old: str, new: str) -> None:
    with Store.open(mounted.store) as store:
        store.move(old, new)


@pytest.mark.parametrize("access", one_in(2, [os.O_WRONLY, os.O_RDWR]))
@pytest.mark.parametrize("other", [SHORT, LONG])
def test_append_after_name_reused(looking: Mounted, access: int, other: Path) -> None:
    at = looking.at
    recording = os.open(at / "v.ts", access | APPEND)
    os.write(recording, MIDDLE.read_bytes())
    move(looking, "v.ts", "old.ts")
    replace(looking, "v.ts", other)
    for part in (b"one", b"two" * 2000):
        (at / "v.ts").stat()
        assert os.write(recording, part) == len(part)
    os.close(recording)
    assert (at / "old.ts").read_bytes() == MIDDLE.read_bytes() + b"one" + b"two" * 2000
    assert (at / "v.ts").read_bytes() == other.read_bytes()


def test_read_append_after_name_reused(
    looking: Mounted,
) -> None:
    path = looking.at / "v.ts"
    recording = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(recording, bytes(10_000))
    move(looking, "v.ts", "old.ts")
    replace(looking, "v.ts", LONG)
    assert path.stat().st_size == LONG.stat().st_size
    os.pwrite(recording, b"more" * 8192, 8192)
    os.posix_fadvise(recording, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(recording, 16_384, 12_288) == b"more" * 4096
    os.close(recording)


@pytest.mark.parametrize("access", one_in(2, [os.O_WRONLY, os.O_RDWR]))
def test_append_by_two_names(here: Path, access: int) -> None:
    (here / "a.log").write_bytes(b"0123456789")
    os.link(here / "a.log", here / "b.log")
    logs = [os.open(here / name, access | APPEND) for name in ("a.log", "b.log")]
    expected = b"0123456789"
    for number in range(20):
        line = str(number).encode() * (100 * number)
        assert os.write(logs[number % 2], line) == len(line)
        expected += line
        for log in logs if access == os.O_RDWR else []:
            assert os.pread(log, 1 << 20, 0) == expected
    for log in logs:
        os.close(log)
    for name in ("a.log", "b.log"):
        assert (here / name).read_bytes() == expected


def test_concurrent_append_by_two_names(here: Path) -> None:
    """This includes lines that cross a page boundary."""
    (here / "a.log").touch()
    os.link(here / "a.log", here / "b.log")
    lines = {"a.log": b"a" * 99 + b"\n", "b.log": b"b" * 99 + b"\n"}

    def append(name: str) -> None:
        with (here / name).open("a+b", buffering=0) as log:
            for _ in range(2000):
                log.write(lines[name])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(append, lines))
    found = (here / "a.log").read_bytes().splitlines(keepends=True)
    assert Counter(found) == dict.fromkeys(lines.values(), 2000)


def test_seek_end(looking: Mounted) -> None:
    at = looking.at
    with (at / "v.ts").open("w+b", buffering=0) as file:
        file.write(MIDDLE.read_bytes())
        move(looking, "v.ts", "old.ts")
        replace(looking, "v.ts", LONG)
        assert (at / "v.ts").stat().st_size == LONG.stat().st_size
        assert file.seek(0, os.SEEK_END) == MIDDLE.stat().st_size
        file.write(b"more")
    assert (at / "old.ts").read_bytes() == MIDDLE.read_bytes() + b"more"


@pytest.mark.parametrize("synced", one_in(4, [0, os.O_DSYNC, os.O_SYNC]))
@pytest.mark.parametrize("names", [["f"], ["f", "g"]])
def test_large_direct_append(here: Path, names: list[str], synced: int) -> None:
    """The kernel may send them in parallel."""
    with mmap(-1, 8 * MIB) as parts:
        parts[:] = b"".join(bytes([number]) * MIB for number in range(8))
        (here / "f").touch()
        for name in names[1:]:
            os.link(here / "f", here / name)
        files = [os.open(here / one, os.O_RDWR | APPEND | os.O_DIRECT | synced) for one in names]
        for number in range(2):
            assert os.write(files[-number % len(files)], parts) == 8 * MIB
        for file in files:
            os.close(file)
        assert (here / "f").read_bytes() == parts[:] * 2


def past_all_caches(path: Path, access: int) -> int:
    return os.open(path, access | APPEND | os.O_DIRECT)


def append_block(file: int, letter: bytes) -> None:
    with mmap(-1, BLOCK) as block:
        block[:] = letter * BLOCK
        assert os.write(file, block) == BLOCK


@pytest.mark.parametrize("access", one_in(2, [os.O_WRONLY, os.O_RDWR]))
def test_append_by_removed_name(here: Path, access: int) -> None:
    log = past_all_caches(here / "a.log", access)
    append_block(log, b"1")
    os.link(here / "a.log", here / "b.log")
    with (here / "b.log").open("ab") as other:
        other.write(b"2" * BLOCK)
    (here / "b.log").unlink()
    append_block(log, b"3")
    os.close(log)
    assert (here / "a.log").read_bytes() == b"1" * BLOCK + b"2" * BLOCK + b"3" * BLOCK


def test_append_by_other_name(
    remembering: Mounted,
) -> None:
    path, moved = remembering.at / "a.log", remembering.at / "b.log"
    path.write_bytes(b"1" * BLOCK)
    assert path.stat().st_size == BLOCK
    move(remembering, path.name, moved.name)
    let_see(remembering)
    with moved.open("ab") as other:
        other.write(b"2" * BLOCK)
    move(remembering, moved.name, path.name)
    let_see(remembering)
    log = past_all_caches(path, os.O_WRONLY)
    append_block(log, b"3")
    os.close(log)
    assert path.read_bytes() == b"1" * BLOCK + b"2" * BLOCK + b"3" * BLOCK


@pytest.mark.parametrize("access", [os.O_WRONLY, os.O_RDWR])
def test_append_after_move(looking: Mounted, access: int) -> None:
    log = past_all_caches(looking.at / "a.log", access)
    append_block(log, b"1")
    move(looking, "a.log", "b.log")
    let_see(looking)
    with (looking.at / "b.log").open("ab") as other:
        other.write(b"2" * BLOCK)
    append_block(log, b"3")
    os.close(log)
    assert (looking.at / "b.log").read_bytes() == b"1" * BLOCK + b"2" * BLOCK + b"3" * BLOCK


def test_append_after_move_and_truncate(
    looking: Mounted,
) -> None:
    log = past_all_caches(looking.at / "a.log", os.O_WRONLY)
    append_block(log, b"1")
    move(looking, "a.log", "b.log")
    let_see(looking)
    os.truncate(looking.at / "b.log", 100)
    append_block(log, b"2")
    os.close(log)
    assert (looking.at / "b.log").read_bytes() == b"1" * 100 + b"2" * BLOCK


def test_mapping_of_appended_file(here: Path) -> None:
    with (here / "f").open("a+b", buffering=0) as file:
        file.write(bytes(8192))
        with mmap(file.fileno(), 8192) as mapped:
            mapped[4096:4100] = b"here"
        file.write(b"more")
    assert (here / "f").read_bytes() == bytes(4096) + b"here" + bytes(4092) + b"more"


def by_path(path: Path) -> bytes:
    return path.read_bytes()


def made_if_missing(path: Path) -> bytes:
    with open(os.open(path, os.O_RDWR | os.O_CREAT), "rb") as file:
        return file.read()


def from_its_folder(path: Path) -> bytes:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with open(os.open(path.name, os.O_RDONLY, dir_fd=folder), "rb") as file:
            return file.read()
    finally:
        os.close(folder)


def through_a_link(path: Path) -> bytes:
    link = path.with_name("link")
    link.unlink(missing_ok=True)
    link.symlink_to(path.name)
    return link.read_bytes()


def by_sendfile(path: Path) -> bytes:
    """Read a file by sendfile, which ends at the size that the kernel has cached."""
    source, target = os.open(path, os.O_RDONLY), os.memfd_create("copy")
    try:
        while os.sendfile(target, source, os.lseek(target, 0, os.SEEK_CUR), MIB):
            pass
        return os.pread(target, os.fstat(target).st_size, 0)
    finally:
        os.close(source)
        os.close(target)


def from_a_descriptor(path: Path) -> bytes:
    """Read a file through an O_PATH descriptor, so that its name is not looked up again."""
    place = os.open(path, os.O_PATH)
    try:
        return Path(f"/proc/self/fd/{place}").read_bytes()
    finally:
        os.close(place)


@pytest.mark.parametrize(
    "read",
    one_in(
        3,
        [by_path, made_if_missing, from_its_folder, through_a_link, by_sendfile, from_a_descriptor],
    ),
)
def test_read_replaced_file(remembering: Mounted, read: Callable[[Path], bytes]) -> None:
    path = remembering.at / "v.mp4"
    for source in (SHORT, LONG, MIDDLE, LONG):
        replace(remembering, path.name, source)
        assert read(path) == source.read_bytes()
        assert path.stat().st_size == source.stat().st_size


def test_send_view_of_replaced_file(remembering: Mounted) -> None:
    view = remembering.at / "v.mp4@/full.mkv"
    for source in (SHORT, LONG, MIDDLE, LONG):
        replace(remembering, "v.mp4", source)
        sent = by_sendfile(view)
        assert sent == view.read_bytes()
        assert len(sent) == view.stat().st_size


@pytest.mark.parametrize(("before", "after"), [(LONG, SHORT), (SHORT, LONG)])
def test_append_to_replaced_file(remembering: Mounted, before: Path, after: Path) -> None:
    path = remembering.at / f"only-once-{before.name}"  # which the kernel has not cached yet
    replace(remembering, path.name, before)
    assert path.stat().st_size == before.stat().st_size
    replace(remembering, path.name, after)
    with path.open("ab") as file:
        assert file.tell() == after.stat().st_size
        file.write(b"more")
    assert path.read_bytes() == after.read_bytes() + b"more"


def test_create_removed_file(remembering: Mounted) -> None:
    path = remembering.at / "v.mp4"
    replace(remembering, path.name, LONG)
    assert path.exists()
    remove(remembering, path.name)
    with path.open("ab") as file:
        file.write(b"more")
    assert path.read_bytes() == b"more"
    remove(remembering, path.name)
    with pytest.raises(FileNotFoundError):
        path.open("rb")


def test_create_removed_file_repeatedly(remembering: Mounted) -> None:
    path = remembering.at / "v.mp4"
    for text in (b"one", b"two", b"three"):
        replace(remembering, path.name, LONG)
        assert path.exists()
        remove(remembering, path.name)
        with path.open("ab") as file:
            file.write(text)
        assert path.read_bytes() == text
        path.unlink()


def test_old_attributes_dropped(
    remembering: Mounted,
) -> None:
    path = remembering.at / "v.ts"
    with path.open("wb", buffering=0) as file:
        file.write(SHORT.read_bytes())
        move(remembering, "v.ts", "old.ts")
        replace(remembering, "v.ts", LONG)
        assert path.read_bytes() == LONG.read_bytes()
        file.truncate(100)
    os.close(os.open(path, os.O_WRONLY))  # this waits until the old file is released
    assert path.read_bytes() == LONG.read_bytes()
    assert path.with_name("old.ts").read_bytes() == SHORT.read_bytes()[:100]


def test_mode_of_replaced_file(remembering: Mounted) -> None:
    path = remembering.at / "v.mp4"
    replace(remembering, path.name, LONG)
    path.chmod(0o600)
    replace(remembering, path.name, SHORT)
    with path.open("wb"):
        assert path.stat().st_mode & 0o777 == SHORT.stat().st_mode & 0o777
    assert path.read_bytes() == b""


def test_append_to_shrunk_original(remembering: Mounted, tmp_path: Path) -> None:
    """The inode stays the same."""
    source = rich_clip(tmp_path / "rich.mp4")
    path = remembering.at / "rich.mp4"
    with Store.open(remembering.store) as store:
        store.ingest(source, path.name)
        assert path.stat().st_size == source.stat().st_size
        video = store[path.name]
        video.policy.set("original=replaceable,psnr=30")
        video.policy.replace_original(codec="h264")
    let_see(remembering)
    with path.open("ab") as file:
        end = file.tell()
        file.write(b"more")
    assert end < source.stat().st_size
    assert path.stat().st_size == end + 4


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
