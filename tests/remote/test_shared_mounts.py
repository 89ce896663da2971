"""Two mounts on two hosts that write one store: close-to-open, one writer, and failures."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from blake3 import blake3

from tests.support.http_proxy import HttpProxy
from tests.support.postgresql import PostgresqlServer, running_postgresql
from tests.support.seaweedfs import SeaweedServer
from tests.support.shared_mounts import MountedHome, SharedMounts, shared_mounts
from vfsd.api.store import Store
from vfsd.maintenance import fsck
from vfsd.maintenance.homes import list_homes

CLIP = Path(__file__).parents[2] / "sample_videos" / "traffic.mp4"
_REASON = "user.vfsd.reason"
_STATE = "user.vfsd.state"


@pytest.fixture
def pair(
    tmp_path: Path,
    own_database: str,
    seaweedfs: SeaweedServer,
    s3_proxy: HttpProxy,
    credentials: None,
    mountable: None,
) -> Iterator[SharedMounts]:
    with shared_mounts(tmp_path, own_database, seaweedfs, s3_proxy) as made:
        yield made


def _errno_of(action: Callable[[], object]) -> int | None:
    try:
        action()
    except OSError as error:
        return error.errno
    return None


def _state(path: Path) -> str:
    return os.getxattr(path, _STATE).decode()


def _findings(host: MountedHome) -> list[str]:
    with Store.open(host.store) as store:
        return [one.message for one in fsck.run(store.parts, repair=False, deep=True)]


def _exchange(pair: SharedMounts, rounds: int, seed: int) -> int:
    """Write on one host and read on the other one; return how many reads were stale."""
    draw = random.Random(seed)
    clip = CLIP.read_bytes()
    stale = 0
    for number in range(rounds):
        writer, reader = draw.sample(pair.both, 2)
        kind = draw.random()
        if kind < 0.6:
            data = draw.randbytes(draw.choice((0, 1, 100, 4096, 16_384)))
        elif kind < 0.9:
            data = draw.randbytes(draw.choice((16_385, 70_000, 300_000)))
        else:
            data = clip + draw.randbytes(8)
        name = f"file{draw.randrange(6)}"
        if draw.random() < 0.2:  # as rsync does
            (writer.at / f"{name}.new").write_bytes(data)
            (writer.at / f"{name}.new").replace(writer.at / name)
        else:
            (writer.at / name).write_bytes(data)
        seen = (reader.at / name).read_bytes()
        stale += seen != data
        assert len(seen) == os.stat(reader.at / name).st_size == len(data), number
    return stale


def test_reader_on_another_host_sees_what_was_closed(pair: SharedMounts) -> None:
    assert _exchange(pair, 60, 1) == 0
    for host in pair.both:
        host.unmount()
        assert _findings(host) == []
        assert "ERROR" not in host.log.read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2, 6))
def test_thousand_rounds_across_hosts(pair: SharedMounts, seed: int) -> None:
    assert _exchange(pair, 250, seed) == 0


def test_file_has_one_writer(pair: SharedMounts) -> None:
    a, b = pair.both
    (a.at / "note").write_bytes(b"of a")
    with (a.at / "note").open("r+b"):
        assert _errno_of(lambda: os.open(b.at / "note", os.O_WRONLY)) == errno.EBUSY
        assert _errno_of(lambda: os.truncate(b.at / "note", 0)) == errno.EBUSY
        assert (b.at / "note").read_bytes() == b"of a"
    (b.at / "note").write_bytes(b"of b")
    assert (a.at / "note").read_bytes() == b"of b"
    with (b.at / "note").open("ab") as file:
        file.write(b", twice")
        file.flush()
        assert _errno_of((a.at / "note").read_bytes) == errno.EIO
        assert os.getxattr(a.at / "note", _REASON).startswith(b"is being written by ")
        assert _errno_of(lambda: (a.at / "note").write_bytes(b"")) == errno.EBUSY
        (a.at / "other").write_bytes(b"a replacement")
        assert _errno_of(lambda: (a.at / "other").replace(a.at / "note")) == errno.EBUSY
        with (b.at / "note").open("ab") as again:  # on one host, there may be several
            again.write(b".")
    assert (a.at / "note").read_bytes() == b"of b, twice."
    assert _state(a.at / "note") == _state(b.at / "note") == "plain"
    assert pair.rows("SELECT * FROM writers") == []


def test_bytes_follow_each_kind_of_change(pair: SharedMounts) -> None:
    a, b = pair.both
    large = os.urandom(200_000)
    (a.at / "f").write_bytes(large)
    os.truncate(b.at / "f", 70_000)
    assert (a.at / "f").read_bytes() == large[:70_000]
    with (a.at / "f").open("r+b") as file:  # the bytes are only in the bucket
        file.seek(10)
        file.write(b"changed")
    changed = large[:10] + b"changed" + large[17:70_000]
    assert (b.at / "f").read_bytes() == changed
    (b.at / "f").rename(b.at / "g")
    os.link(b.at / "g", b.at / "h")
    assert (a.at / "g").read_bytes() == (a.at / "h").read_bytes() == changed
    (a.at / "h").write_bytes(b"through a link")
    assert (b.at / "g").read_bytes() == b"through a link"
    (b.at / "g").unlink()
    assert (a.at / "h").read_bytes() == b"through a link"
    assert _errno_of((a.at / "g").read_bytes) == errno.ENOENT
    (a.at / "d").mkdir()
    (b.at / "d" / "v.mp4").write_bytes(CLIP.read_bytes())
    assert _state(a.at / "d" / "v.mp4") == "video"
    assert (a.at / "d" / "v.mp4").read_bytes() == CLIP.read_bytes()
    with (a.at / "d" / "v.mp4").open("r+b") as video:
        video.truncate(100)
    assert (b.at / "d" / "v.mp4").read_bytes() == CLIP.read_bytes()[:100]
    os.mknod(b.at / "empty")
    a.wait_for(lambda: _errno_of((a.at / "empty").read_bytes) is None, "not published")


def test_open_reader_does_not_keep_old_bytes(pair: SharedMounts) -> None:
    a, b = pair.both
    for size in (5000, 100_000):
        first, second = os.urandom(size), os.urandom(size)
        (a.at / "f").write_bytes(first)
        with (b.at / "f").open("rb", buffering=0) as before:
            assert before.read(size // 2) == first[: size // 2]
            (a.at / "f").write_bytes(second)
            assert (b.at / "f").read_bytes() == second
            before.seek(0)
            assert before.read() == second


def test_descriptor_that_a_child_closes_can_be_written(pair: SharedMounts) -> None:
    a, b = pair.both
    expected = b""
    with (a.at / "log").open("wb", buffering=0) as file:
        for number in range(5):
            line = f"{number}: {'x' * 5000}\n".encode()
            file.write(line)
            expected += line
            os.close(os.dup(file.fileno()))
            assert (b.at / "log").read_bytes() == expected
    (a.at / "log").open("ab").close()
    assert (b.at / "log").read_bytes() == expected


def test_many_writers_on_one_host(pair: SharedMounts) -> None:
    a, b = pair.both
    (a.at / "f").write_bytes(bytes(64_000))

    def write(part: int) -> None:
        for number in range(10):
            with (a.at / "f").open("r+b", buffering=0) as file:
                file.seek(part * 8000)
                file.write(bytes([part, number]) * 4000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert (b.at / "f").read_bytes() == b"".join(bytes([part, 9]) * 4000 for part in range(8))


def test_file_of_a_killed_mount_is_taken_over(pair: SharedMounts) -> None:
    a, b = pair.both
    names = ("taken", "renamed", "left", "v.mp4")
    for name in names:
        (a.at / name).write_bytes(b"before")
    written = {name: os.urandom(50_000) for name in names}
    files = [(a.at / name).open("r+b") for name in names]
    for file, data in zip(files, written.values(), strict=True):
        file.write(data)
        file.flush()
    a.kill()
    for file in files:
        _errno_of(file.close)
    assert _errno_of((b.at / "taken").read_bytes) == errno.EIO
    assert _errno_of(lambda: (b.at / "taken").write_bytes(b"of b")) == errno.EBUSY
    pair.expire_lease(a)
    assert _errno_of(lambda: os.open(b.at / "taken", os.O_RDWR)) == errno.EBUSY
    (b.at / "taken").write_bytes(b"of b")
    (b.at / "new").write_bytes(b"by a rename")
    (b.at / "new").replace(b.at / "renamed")
    assert sorted(os.listdir(b.at)) == sorted(names)
    a.mount()
    a.wait_for(lambda: _state(a.at / "left") == "plain", "not published")
    assert (a.at / "taken").read_bytes() == (b.at / "taken").read_bytes() == b"of b"
    assert (a.at / "renamed").read_bytes() == b"by a rename"
    # As after the crash of any other file system.
    assert (b.at / "left").read_bytes() == written["left"]
    assert [one.read_bytes() for one in (a.store / "kept").iterdir()] == [written["taken"]]


def test_paused_mount_cannot_publish(pair: SharedMounts) -> None:
    a, b = pair.both
    data = os.urandom(100_000)
    file = os.open(a.at / "f", os.O_CREAT | os.O_WRONLY)
    mine = os.open(a.at / "mine", os.O_CREAT | os.O_WRONLY)
    for one in (file, mine):
        os.write(one, data)
    with a.paused():
        pair.expire_lease(a)
        (b.at / "f").write_bytes(b"of b")
        assert (b.at / "f").read_bytes() == b"of b"
    os.write(file, b"late")
    assert _errno_of(lambda: os.close(file)) == errno.EIO
    os.close(mine)  # its lease is valid again, and this one was not taken over
    assert (a.at / "f").read_bytes() == (b.at / "f").read_bytes() == b"of b"
    assert (b.at / "mine").read_bytes() == data
    assert [one.read_bytes() for one in (a.store / "kept").iterdir()] == [data + b"late"]
    (a.at / "f").write_bytes(b"of a")
    assert (b.at / "f").read_bytes() == b"of a"
    with Store.open(a.store) as store:
        assert [one.kept for one in list_homes(store.parts)] == [1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("ends", [False, True])
def test_silent_bucket_is_an_error_and_loses_nothing(pair: SharedMounts, ends: bool) -> None:
    a, b = pair.both
    data = os.urandom(9 << 20)
    (a.at / "large").write_bytes(data)
    pair.proxy.faults.silent = True
    changed = b"changed" + data[7:]
    file = os.open(a.at / "large", os.O_WRONLY | os.O_TRUNC)
    os.write(file, changed)
    began = time.monotonic()
    assert _errno_of(lambda: os.close(file)) == errno.EIO
    assert time.monotonic() - began < 25
    (a.at / "small").write_bytes(b"needs no bucket")
    assert (b.at / "small").read_bytes() == b"needs no bucket"
    with Store.open(b.store) as store:
        assert [one.waiting for one in list_homes(store.parts)] == [1, 0]
    for host in pair.both:
        assert sorted(os.listdir(host.at)) == ["large", "small"]
        assert os.stat(host.at / "large").st_size == len(data)
        assert _state(host.at / "large") == "waits for upload"
    assert os.getxattr(b.at / "large", _REASON).startswith(b"waits for upload on ")
    assert _errno_of((b.at / "large").read_bytes) == errno.EIO
    assert (a.at / "large").read_bytes() == changed
    if ends:
        a.kill()
        a.mount()
    pair.proxy.reset()
    end = time.monotonic() + 90
    while _errno_of((b.at / "large").read_bytes) is not None:
        assert time.monotonic() < end
        time.sleep(0.2)
    assert (b.at / "large").read_bytes() == changed
    assert not list((a.store / "spool").iterdir())


@pytest.mark.slow
def test_file_of_a_mount_that_is_killed_while_it_uploads_is_kept(pair: SharedMounts) -> None:
    a, b = pair.both
    before, after = os.urandom(200_000), os.urandom(9 << 20)
    (a.at / "f").write_bytes(before)
    assert (b.at / "f").read_bytes() == before
    pair.proxy.faults.silent = True
    file = os.open(a.at / "f", os.O_WRONLY | os.O_TRUNC)
    os.write(file, after)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(_errno_of, lambda: os.close(file))
        a.wait_for(lambda: pair.rows("SELECT * FROM uploads") != [], "the upload does not begin")
        a.kill()
        assert closing.result() is not None
    assert _errno_of((b.at / "f").read_bytes) == errno.EIO  # neither old bytes nor a part
    pair.proxy.reset()
    a.mount()
    end = time.monotonic() + 90
    while _errno_of((b.at / "f").read_bytes) is not None:
        assert time.monotonic() < end
        time.sleep(0.2)
    assert (a.at / "f").read_bytes() == (b.at / "f").read_bytes() == after
    for host in pair.both:
        host.unmount()
        assert not list((host.store / "spool").iterdir())
        assert _findings(host) == []


@pytest.mark.slow
def test_catalog_that_is_away_is_an_error(
    tmp_path: Path,
    postgresql: PostgresqlServer,
    seaweedfs: SeaweedServer,
    s3_proxy: HttpProxy,
    credentials: None,
    mountable: None,
) -> None:
    with (
        running_postgresql() as server,
        shared_mounts(tmp_path, server.new_database(), seaweedfs, s3_proxy) as pair,
    ):
        a, b = pair.both
        (a.at / "f").write_bytes(b"before")
        assert (b.at / "f").read_bytes() == b"before"
        file = os.open(a.at / "f", os.O_WRONLY | os.O_APPEND)
        os.write(file, b" and after")
        server.stop()
        began = time.monotonic()
        assert _errno_of(lambda: os.close(file)) == errno.EIO
        assert _errno_of((b.at / "f").read_bytes) == errno.EIO
        assert _errno_of(lambda: (b.at / "new").touch()) == errno.EIO
        for host in pair.both:
            _errno_of(partial(os.listdir, host.at))
        assert time.monotonic() - began < 25
        server.start()
        end = time.monotonic() + 90
        while _errno_of((b.at / "f").read_bytes) is not None:
            assert time.monotonic() < end
            time.sleep(0.2)
        assert (b.at / "f").read_bytes() == b"before and after"


@pytest.mark.slow
def test_catalog_that_is_stopped_is_an_error_in_time(
    tmp_path: Path,
    postgresql: PostgresqlServer,
    seaweedfs: SeaweedServer,
    s3_proxy: HttpProxy,
    credentials: None,
    mountable: None,
) -> None:
    """The kernel still takes the packets of a stopped server, so no connection breaks."""
    with (
        running_postgresql() as server,
        shared_mounts(tmp_path, server.new_database(), seaweedfs, s3_proxy) as pair,
    ):
        a, b = pair.both
        large = os.urandom(100_000)
        actions: dict[str, tuple[Callable[[], object], set[int | None]]] = {}
        for size, name in ((100, "small"), (100_000, "large")):
            (a.at / name).write_bytes(b"before")
            file = os.open(a.at / name, os.O_WRONLY | os.O_TRUNC)
            os.write(file, large[:size])
            actions[f"close of {name}"] = partial(os.close, file), {errno.EIO}
        for name in ("left", "right"):
            (a.at / name).write_bytes(name.encode())
        os.rename(a.at / "left", a.at / "renamed")
        actions |= {
            "open": ((b.at / "small").read_bytes, {errno.EIO}),
            "create": ((b.at / "new").touch, {errno.EIO}),
            "rename": (partial(os.rename, a.at / "right", a.at / "moved"), {errno.EIO}),
            "unlink": ((a.at / "renamed").unlink, {errno.EIO}),
            "listdir": (partial(os.listdir, b.at), {None, errno.EIO}),
            "stat": ((b.at / "other").stat, {errno.ENOENT, errno.EIO}),
        }

        def timed(action: Callable[[], object]) -> tuple[int | None, float]:
            began = time.monotonic()
            return _errno_of(action), time.monotonic() - began

        with server.paused(), ThreadPoolExecutor(len(actions)) as pool:
            told = {what: pool.submit(timed, one) for what, (one, _) in actions.items()}
            for what, (_, allowed) in actions.items():
                found, seconds = told[what].result()
                assert found in allowed, what
                assert seconds < 20, what
            assert timed((b.at / "again").touch)[1] < 20
        end = time.monotonic() + 90
        for name, size in (("small", 100), ("large", 100_000)):
            while _errno_of((b.at / name).read_bytes) is not None:
                assert time.monotonic() < end
                time.sleep(0.2)
            assert (a.at / name).read_bytes() == (b.at / name).read_bytes() == large[:size]
        (b.at / "new").write_bytes(b"later")
        assert (a.at / "new").read_bytes() == b"later"
        for host in pair.both:
            host.unmount()
            assert not list((host.store / "spool").iterdir())
            assert _findings(host) == []


def test_programs_read_and_write_files_of_other_hosts(pair: SharedMounts) -> None:
    fsspec = pytest.importorskip("fsspec")
    large = os.urandom(100_000)
    (pair.a.at / "small").write_bytes(b"of a")
    (pair.a.at / "large").write_bytes(large)
    files = fsspec.filesystem("vfsd", store=str(pair.b.store), skip_instance_cache=True)
    assert files.cat("small") == b"of a"
    assert files.cat("large") == large
    assert {one["name"]: one["size"] for one in files.ls("")} == {"small": 4, "large": 100_000}
    assert files.checksum("large") == blake3(large).hexdigest()
    files.pipe("small", large)
    files.pipe("large", b"of b")
    assert (pair.a.at / "small").read_bytes() == large
    assert (pair.a.at / "large").read_bytes() == b"of b"
