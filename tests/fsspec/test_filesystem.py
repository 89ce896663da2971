"""What fsspec's own suites do not ask: videos, views, ranges, damage, URLs, pickles."""

from __future__ import annotations

import configparser
import errno
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sample_videos import FOLDER
from vfsd.core.model import FileState

fsspec = pytest.importorskip("fsspec")
filesystem = pytest.importorskip("vfsd.fsspec.filesystem")
VfsdFileSystem = filesystem.VfsdFileSystem

TRAFFIC = FOLDER / "traffic.mp4"
BYTES = TRAFFIC.read_bytes()


@pytest.fixture
def video(fs: Any) -> str:
    fs.put_file(str(TRAFFIC), "site/a.mp4")
    return "site/a.mp4"


def state(fs: Any, name: str) -> FileState | None:
    found: FileState | None = fs.store.node(name).state
    return found


@pytest.mark.parametrize(
    ("url", "store", "name"),
    [
        ("vfsd:///srv/videos//cam1/a.mp4", "/srv/videos", "cam1/a.mp4"),
        ("vfsd:///srv/videos//", "/srv/videos", ""),
        ("vfsd://cam1/a.mp4@/t=1-2.mp4", None, "cam1/a.mp4@/t=1-2.mp4"),
        ("vfsd:///cam1/a.mp4", None, "/cam1/a.mp4"),
        ("cam1//a.mp4", None, "cam1//a.mp4"),
    ],
)
def test_urls(url: str, store: str | None, name: str) -> None:
    assert filesystem._split_url(url) == (store, name)
    assert VfsdFileSystem._strip_protocol(url) == "/".join(one for one in name.split("/") if one)


def test_a_video_is_stored_as_one(fs: Any, video: str) -> None:
    assert state(fs, video) is FileState.VIDEO
    info = fs.info(video)
    assert (info["size"], info["type"]) == (len(BYTES), "file")
    assert info["frames"] == fs.store[video].num_frames
    assert info["digest"] == fs.checksum(video) == fs.ukey(video)
    assert fs.cat_file(video) == BYTES
    assert fs.ls("site", detail=False) == [video]
    assert fs.modified(video).tzinfo is fs.created(video).tzinfo is not None


@pytest.mark.parametrize("limits", [(0, 8), (4, 8), (-5, None), (None, -7), (3, -3), (9, 4)])
def test_ranges(fs: Any, video: str, limits: tuple[int | None, int | None]) -> None:
    assert fs.cat_file(video, *limits) == BYTES[slice(*limits)]


def test_seeks(fs: Any, video: str) -> None:
    with fs.open(video) as file:
        assert file.size == len(BYTES)
        assert file.seek(-10, os.SEEK_END) == len(BYTES) - 10
        assert file.read() == BYTES[-10:]
        file.seek(100)
        assert file.read(50) == BYTES[100:150]


def test_views(fs: Any, video: str) -> None:
    for view in ("t=1-2.mp4", "frames/000003.png", "info.json"):
        with fs.store[video].views.open(view) as file:
            expected = file.read()
        path = f"{video}@/{view}"
        assert fs.cat_file(path) == expected
        assert fs.info(path)["size"] == len(expected)
        with fsspec.open(fs.unstrip_protocol(path)) as opened:
            assert opened.read() == expected
    assert fs.isdir(f"{video}@")
    assert fs.isdir(f"{video}@/frames")
    assert f"{video}@/info.json" in fs.ls(f"{video}@", detail=False)
    assert fs.find("") == [video]
    assert not fs.exists(f"{video}@/t=1-.webm")
    with pytest.raises(OSError, match="is a view"):
        fs.pipe_file(f"{video}@/t=1-2.mp4", b"")


def test_spans_of_a_timeline(fs: Any, video: str) -> None:
    start = datetime(2026, 5, 1, 10, tzinfo=UTC)
    path = "site@/t=2026-05-01T10:00:00.5Z-10:00:01.5Z.mp4"
    assert not fs.exists("site@")
    fs.store.set_captured(video, start)
    span = start + timedelta(seconds=0.5), start + timedelta(seconds=1.5)
    with fs.store.timeline("site").open(span=span) as file:
        expected = file.read()
    assert fs.cat_file(path) == expected
    assert fs.info(path)["size"] == len(expected)
    names = ("README.txt", "timeline.json", "why")
    assert fs.ls("site@", detail=False) == [f"site@/{name}" for name in names]
    assert fs.isdir("site@")
    assert not fs.exists("site@/t=2026-05-01T11:00:00Z-11:00:01Z.mp4")
    before = fs.ukey(path)
    fs.store.set_captured(video, start + timedelta(seconds=0.04))
    assert fs.ukey(path) != before
    assert fs.find("") == [video]
    with pytest.raises(OSError, match="is a view"):
        fs.pipe_file(path, b"")


def test_overwrite(fs: Any, video: str) -> None:
    before, key = fs.ukey(video), fs.store.node(video).object_key
    fs.pipe_file(video, b"no video")
    assert state(fs, video) is FileState.PLAIN
    assert fs.ukey(video) != before
    assert not fs.store.parts.objects.exists(key)
    with fs.open(video, "ab") as file:
        file.write(b" at all")
    assert fs.cat_file(video) == b"no video at all"
    fs.put_file(str(TRAFFIC), video)
    assert fs.cat_file(video) == BYTES
    assert [path for _, path in fs.store.parts.directory.spooled()] == []


def test_copies_share_an_object(fs: Any, video: str) -> None:
    fs.cp_file(video, "b.mp4")
    fs.mv("b.mp4", "new/c.mp4")
    assert fs.store.node("new/c.mp4").object_key == fs.store.node(video).object_key
    assert not fs.exists("b.mp4")
    fs.mv("new", "site")
    assert fs.find("") == [video, "site/new/c.mp4"]
    fs.rm("site", recursive=True)
    assert fs.ls("") == []


def test_a_failed_write_stores_nothing(fs: Any) -> None:
    fs.pipe_file("a.txt", b"old")
    for mode, data in (("wb", b"new"), ("w", "new")):
        with suppress(KeyError), fsspec.open(fs.unstrip_protocol("a.txt"), mode) as file:
            file.write(data)
            raise KeyError
    file = fs.open("b.txt", "wb")
    file.write(b"half")
    del file
    assert fs.find("") == ["a.txt"]
    assert fs.cat_file("a.txt") == b"old"
    assert fs.store.parts.objects.leftovers() == []


def test_a_failed_commit_leaves_no_private_file(fs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    parts = fs.store.parts
    monkeypatch.setattr(type(parts.directory), "sync_spooled", fail)
    with pytest.raises(OSError, match="full"):
        fs.pipe_file("a.txt", b"x")
    assert list(parts.directory.spooled()) == []
    assert not fs.exists("a.txt")


def test_transactions(fs: Any) -> None:
    with fs.transaction:
        fs.pipe_file("a.txt", b"x")
        assert not fs.exists("a.txt")
    assert fs.cat_file("a.txt") == b"x"


def test_a_broken_file(fs: Any, video: str) -> None:
    path = fs.store.parts.objects.path(fs.store.node(video).object_key)
    fs.close()
    data = bytearray(BYTES)
    data[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    assert fs.cat_file(video, 0, 8) == BYTES[:8]
    with pytest.raises(OSError, match="damaged") as caught:
        fs.cat_file(video, -8)
    assert caught.value.errno == errno.EIO
    with pytest.raises(OSError, match="damaged"):
        fs.cp_file(video, "copy.mp4")
    assert not fs.exists("copy.mp4")


def test_a_cut_file_is_plain(fs: Any) -> None:
    fs.pipe_file("cut.mp4", BYTES[: len(BYTES) // 2])
    assert state(fs, "cut.mp4") is FileState.PLAIN
    assert fs.info("cut.mp4")["reason"]
    assert fs.cat_file("cut.mp4") == BYTES[: len(BYTES) // 2]


def test_errors(fs: Any, video: str) -> None:
    with pytest.raises(FileNotFoundError):
        fs.open("missing")
    with pytest.raises(IsADirectoryError):
        fs.open("site")
    with pytest.raises(IsADirectoryError):
        fs.rm("site")
    with pytest.raises(FileExistsError):
        fs.mkdir("site")
    with pytest.raises(FileNotFoundError):
        fs.mkdir("x/y", create_parents=False)
    fs.store[video].policy.hold("evidence")
    with pytest.raises(PermissionError):
        fs.rm(video)
    with pytest.raises(PermissionError):
        fs.pipe_file(video, b"x")
    assert fs.cat_file(video, 4, 8) == b"ftyp"


def test_read_only(fs: Any, video: str) -> None:
    other = VfsdFileSystem(store=fs.root, read_only=True)
    try:
        assert other.cat_file(video, 4, 8) == b"ftyp"
        with pytest.raises(OSError, match="read-only") as caught:
            other.pipe_file("a.txt", b"x")
        assert caught.value.errno == errno.EROFS
    finally:
        other.close()


def test_pickles(fs: Any, video: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VFSD_STORE", fs.root)
    by_variable = fsspec.filesystem("vfsd")
    assert by_variable == fs
    assert hash(by_variable) == hash(fs)
    assert by_variable.store is fs.store
    monkeypatch.delenv("VFSD_STORE")
    file = fsspec.open(fs.unstrip_protocol(video))
    code = "import pickle, sys; fs, file = pickle.load(sys.stdin.buffer)\n"
    code += "with file as f: print(f.read(8) == fs.cat_file(file.path, 0, 8), len(fs.find('')))"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps((by_variable, file)), capture_output=True
    )
    assert done.stdout.split() == [b"True", b"1"], done.stderr.decode()


def test_entry_point() -> None:
    setup = configparser.ConfigParser()
    setup.read(FOLDER.parent / "setup.cfg")
    specs = setup["options.entry_points"]["fsspec.specs"]
    assert specs.split() == ["vfsd", "=", "vfsd.fsspec:VfsdFileSystem"]


def test_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VFSD_STORE", raising=False)
    with pytest.raises(ValueError, match="no store is given"):
        VfsdFileSystem(skip_instance_cache=True)


def test_pandas(fs: Any) -> None:
    pandas = pytest.importorskip("pandas")
    fs.pipe_file("t.csv", b"a,b\n1,2\n")
    assert pandas.read_csv(fs.unstrip_protocol("t.csv")).b.tolist() == [2]


def test_duckdb(fs: Any) -> None:
    duckdb = pytest.importorskip("duckdb")
    fs.pipe_file("t.csv", b"a,b\n1,2\n")
    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        assert connection.sql("select b from 'vfsd://t.csv'").fetchall() == [(2,)]
