"""Originals with bytes changed on disk: damaged frames are refused, all others are unchanged."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import struct
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.fs_driver import Driver
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.catalog import ROOT
from vfsd.core.damaged_frames import damaged_frames_of
from vfsd.core.frames import Frame
from vfsd.core.model import Access, ByteLocation, FileState
from vfsd.derive.tile_encoder import TileSettings
from vfsd.disk.checksums import (
    BLOCK_BYTES,
    SUM_BYTES,
    BlockChecksummer,
    BlockChecksums,
    ChecksummedFile,
    VerifyProgress,
)
from vfsd.disk.object_store import ObjectStore, digest
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import DamagedFileError, IntegrityError
from vfsd.maintenance import fsck
from vfsd.maintenance.backup import back_up
from vfsd.maintenance.scrub import ByteRateLimiter, Scrubber, ScrubCheckpoint, ScrubDamage
from vfsd.mount.fs import Filesystem
from vfsd.write.unfinished_files import classify_spooled_file

CLIP = FOLDER / "traffic.mp4"
SIZE = CLIP.stat().st_size
LAST = range(SIZE // BLOCK_BYTES * BLOCK_BYTES, SIZE)
"""The bytes of the last block, which the frames from 106 on need."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("integrity") / "store"
    with new_store(path) as store:
        store.ingest(CLIP, "cam/a.mp4").verify()
    return path


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


@pytest.fixture(scope="module")
def exact(made: Path) -> np.ndarray:
    with Store.open(made, read_only=True) as store:
        return store["cam/a.mp4"].read().data


def flip(path: Path, at: int) -> None:
    """Flip a bit of that byte and keep the file's times, like bit rot."""
    found = path.stat()
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.seek(at)
        (value,) = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ 4]))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def object_of(store: Store) -> Path:
    return store.parts.originals.path_of(store["cam/a.mp4"].original)


def damaged(place: Path, at: int = LAST[100]) -> Path:
    with Store.open(place, read_only=True) as store:
        path = object_of(store)
    flip(path, at)
    return path


def lost_frames(video: Video) -> list[int]:
    lost = []
    for number in range(len(video)):
        try:
            video.frames([number], psnr=math.inf)
        except DamagedFileError:
            lost.append(number)
    return lost


def scrubbed(store: Store, *sources: Path) -> list[ScrubDamage]:
    others = [ObjectStore(StoreDirectory.open(path)) for path in sources]
    return list(Scrubber(store.parts, sources=others).run())


# ------------------------------------------------------------------------------------------- sums


def test_checksums_are_independent_of_chunk_sizes() -> None:
    data = os.urandom(3 * BLOCK_BYTES + 17)
    found = set()
    for step in (1 << 20, BLOCK_BYTES, 1000, 7777):
        summer = BlockChecksummer()
        for at in range(0, len(data), step):
            summer.update(data[at : at + step])
        found.add(summer.finish())
    (sums,) = found
    assert len(sums) == 4
    for number in range(4):
        own = sums.bytes_of(number)
        assert sums.is_right(number, data[own.start : own.stop])
        assert not sums.is_right(number, data[own.start : own.stop - 1])
    assert len(BlockChecksummer().finish()) == 0
    with pytest.raises(IntegrityError):
        BlockChecksums(sums.size, sums.block, sums.sums[:-1])


@pytest.mark.parametrize("how", ["ingest", "link", "write", "settled"])
def test_every_ingest_path_adds_checksums(tmp_path: Path, how: str) -> None:
    with new_store(tmp_path / "store") as store:
        if how == "write":
            store.write("a.mp4", np.zeros((3, 32, 32, 3), np.uint8), fps=5)
        elif how == "settled":
            with store.catalog.writing() as change:
                node = change.tree.create(
                    ROOT, "a.mp4", 0o100644, uid=0, gid=0, now_ns=1, state=FileState.SPOOLED
                )
            shutil.copy(CLIP, store.parts.directory.spool_file(node.ino))
            fsck.run(store.parts, repair=True)
        else:
            store.ingest(CLIP, "a.mp4", link=how == "link")
        original = store["a.mp4"].original
        with store.catalog.reading() as seen:
            known = seen.integrity.checksums(original.place)
        assert known is not None
        with open(store.parts.originals.path_of(original), "rb") as file:
            assert known.sums == digest(file.fileno()).sums
        assert (known.mtime_ns is None) == (how != "link")
        store.remove("a.mp4")
        with store.catalog.reading() as seen:
            assert seen.integrity.with_checksums() == set()


# ---------------------------------------------------------------------------------------- readers


@pytest.mark.parametrize("clip", one_in(3, ["traffic.mp4", "transport.ts", "variable-rate.mkv"]))
def test_damaged_frames_are_refused_and_others_are_exact(tmp_path: Path, clip: str) -> None:
    with new_store(tmp_path / "store") as store:
        video = store.ingest(FOLDER / clip, "a")
        video.verify()
        exact = video.read().data
        path, size = store.parts.originals.path_of(video.original), video.original.size
    at = size - 200
    flip(path, at)
    with Store.open(tmp_path / "store") as store:
        video = store["a"]
        lost = lost_frames(video)
        assert 0 < len(lost) < len(video)
        for number in sorted(set(range(len(video))) - set(lost)):
            assert np.array_equal(video.frames([number]).data[0], exact[number])
        came: list[Frame] = []
        with pytest.raises(DamagedFileError) as caught:
            came.extend(video.iterate())
        assert [frame.index for frame in came] == list(range(lost[0]))
        assert all(np.array_equal(frame.data, exact[frame.index]) for frame in came)
        assert caught.value.ranges == (range(size // BLOCK_BYTES * BLOCK_BYTES, size),)
        told = {number for part in caught.value.frames or () for number in part}
        if video.original.access is Access.EXTENT:
            assert sorted(told) == lost
        assert told >= set(lost)  # packet positions after a demuxer's parser are not exact
        for word in ("a is damaged", str(at // BLOCK_BYTES * BLOCK_BYTES), str(lost[-1])):
            assert word in str(caught.value)


def test_damage_is_recorded_until_it_is_repaired(place: Path, exact: np.ndarray) -> None:
    path = damaged(place)
    with Store.open(place) as store, pytest.raises(DamagedFileError):
        store["cam/a.mp4"].read()
    with Store.open(place, read_only=True) as store:
        info = store.catalog.video("cam/a.mp4")
        frames = store.catalog.unreadable_frames(info)
        assert frames[-1].stop == len(exact)
        (found,) = fsck.run(store.parts)
        assert (found.check, found.repaired) == ("damage", False)
        assert "cam/a.mp4 is damaged" in found.message
    flip(path, LAST[100])
    with Store.open(place) as store:
        (found,) = fsck.run(store.parts, repair=True)
        assert (found.check, found.repaired) == ("damage", True)
        assert fsck.run(store.parts, deep=True) == []
        assert np.array_equal(store["cam/a.mp4"].read().data, exact)


@pytest.mark.parametrize("known", one_in(3, [False, True]))
@pytest.mark.parametrize("how", ["read", "stream", "view"])
def test_tiles_serve_frames_lost_in_the_original(
    place: Path, exact: np.ndarray, how: str, known: bool
) -> None:
    """Where the original is readable, reads use it, since it costs less than raw tiles."""
    with Store.open(place) as store:
        video = store["cam/a.mp4"]
        video.budget.set("none")
        video.tiles.retile("uniform:1x1", span=(3, None), settings=TileSettings("lossless"))
    damaged(place)
    if known:
        with Store.open(place) as store, pytest.raises(DamagedFileError):
            store["cam/a.mp4"].read(psnr=math.inf)
    with Store.open(place) as store:
        video = store["cam/a.mp4"]
        if how == "read":
            found = video.read().data
        elif how == "stream":
            found = np.stack([frame.data for frame in video.iterate()])
        else:
            path = place.parent / "out.rgb"
            video.save(path, codec=None)
            found = np.frombuffer(path.read_bytes(), np.uint8).reshape(exact.shape)
        assert np.array_equal(found, exact)
        with pytest.raises(DamagedFileError):
            video.read(psnr=math.inf)


def test_transient_read_errors_are_not_damage(
    place: Path, exact: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pread
    failed: list[int] = []

    def stammering(fd: int, size: int, at: int) -> bytes:
        """Large reads fail, or return zeros; single blocks can be read."""
        if size <= BLOCK_BYTES:
            return real(fd, size, at)
        failed.append(at)
        if len(failed) % 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(size)

    with Store.open(place) as store:
        video = store["cam/a.mp4"]
        monkeypatch.setattr("vfsd.disk.checksums.os.pread", stammering)
        assert np.array_equal(video.read().data, exact)
        monkeypatch.undo()
        assert failed
        with store.catalog.reading() as seen:
            assert seen.integrity.damaged() == []


def test_unreadable_disk_is_not_recorded_as_damage(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int, size: int, at: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Store.open(place) as store:
        video = store["cam/a.mp4"]
        monkeypatch.setattr("vfsd.disk.checksums.os.pread", broken)
        with pytest.raises(DamagedFileError, match="cannot be read from the disk"):
            video.read(span=(0, 1))
        monkeypatch.undo()
        with store.catalog.reading() as seen:
            assert seen.integrity.damaged() == []


def test_open_reader_uses_the_restored_copy(place: Path, exact: np.ndarray, tmp_path: Path) -> None:
    with Store.open(place) as store:
        back_up(store.parts, tmp_path / "backup")
        path = object_of(store)
        video = store["cam/a.mp4"]
        with closing(store.parts.originals.file_of(video.original).open()) as file:
            flip(path, LAST[100])
            with pytest.raises(DamagedFileError):
                file.read_some(LAST.start, 10)
            (found,) = scrubbed(store, tmp_path / "backup")
            assert (found.kind, found.repaired) == ("original", "put back")
            assert file.read_some(LAST.start, 10) == CLIP.read_bytes()[LAST.start :][:10]


def test_damaged_file_is_not_read_during_its_repair(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = CLIP.read_bytes()[LAST.start :][:10]
    read: list[bytes] = []
    damaged: list[DamagedFileError] = []

    def look(file: ChecksummedFile) -> None:
        buffer = bytearray(10)
        try:
            read.append(file.read_some(LAST.start, 10))
            file.readinto(memoryview(buffer), LAST.start)
            read.append(bytes(buffer))
        except DamagedFileError as error:
            damaged.append(error)

    with Store.open(place) as store:
        back_up(store.parts, tmp_path / "backup")
        path = object_of(store)
        stored = store.parts.originals.file_of(store["cam/a.mp4"].original)
        with closing(stored.open()) as file:
            flip(path, LAST[100])
            with pytest.raises(DamagedFileError):
                file.read_some(LAST.start, 10)
            assert [one.repaired for one in scrubbed(store, tmp_path / "backup")] == ["put back"]
            with closing(stored.open()) as good:  # who has read all of the copy by now
                assert good.read_some(LAST.start, 10) == right
            exchange = os.dup2
            others = [threading.Thread(target=look, args=(file,)) for _ in range(2)]

            def slowly(*args: Any, **options: Any) -> int:
                others[0].start()
                others[0].join(0.2)
                done = exchange(*args, **options)
                others[1].start()
                others[1].join(0.2)
                return done

            with monkeypatch.context() as patched:
                patched.setattr("vfsd.disk.checksums.os.dup2", slowly)
                assert file.read_some(LAST.start, 10) == right
            for other in others:
                other.join()
    assert (read, damaged) == ([right] * 4, [])


def test_reused_inode_number_is_detected(tmp_path: Path) -> None:
    """File systems reuse inode numbers of deleted files, and users can set any times."""
    padded = [CLIP.read_bytes() + _padding(byte) for byte in (b"a", b"b")]
    with new_store(tmp_path / "store") as store:
        for name, data in zip(("a.mp4", "b.mp4"), padded, strict=True):
            (tmp_path / name).write_bytes(data)
            store.ingest(tmp_path / name)
        gone, other = (
            store.parts.originals.path_of(store[name].original) for name in ("a.mp4", "b.mp4")
        )
        with closing(store.parts.originals.file_of(store["a.mp4"].original).open()) as file:
            assert file.read_some(0, 100) == padded[0][:100]
        found = gone.stat()
        gone.chmod(0o600)
        gone.write_bytes(padded[1])
        os.utime(gone, ns=(found.st_atime_ns, found.st_mtime_ns))
        gone.rename(other)
        with closing(store.parts.originals.file_of(store["b.mp4"].original).open()) as file:
            buffer = bytearray(len(padded[1]))
            assert file.readinto(memoryview(buffer), 0) == len(buffer)
        assert buffer == padded[1]


def _padding(byte: bytes) -> bytes:
    """An empty free box."""
    return struct.pack(">I4s", 8 + BLOCK_BYTES, b"free") + byte * BLOCK_BYTES


def test_linked_files_are_verified_until_they_change(tmp_path: Path) -> None:
    mine = Path(shutil.copy(CLIP, tmp_path / "mine.mp4"))
    with new_store(tmp_path / "store") as store:
        store.ingest(mine, "a", link=True).verify()
        flip(mine, LAST[100])
    with Store.open(tmp_path / "store") as store:
        with pytest.raises(DamagedFileError, match="a is damaged"):
            store["a"].frames([119])
        (found,) = scrubbed(store)
        assert (found.kind, found.repaired, found.ranges) == ("linked", None, (LAST,))
    os.utime(mine)
    with Store.open(tmp_path / "store") as store:
        with pytest.raises(IntegrityError, match="has changed since it was indexed"):
            store["a"].frames([0])
        (found,) = scrubbed(store)
        assert "has changed since it was indexed" in found.message
    shutil.copyfile(CLIP, mine)  # its bytes are unchanged, and only its time differs
    with Store.open(tmp_path / "store") as store:
        assert scrubbed(store) == []
        assert len(store["a"].read()) == 120


def test_repeated_ingest_repairs_damage(place: Path, exact: np.ndarray) -> None:
    damaged(place)
    with Store.open(place) as store:
        with pytest.raises(DamagedFileError):
            store["cam/a.mp4"].read()
        again = store.ingest(CLIP, "b.mp4")
        assert np.array_equal(again.read().data, exact)
        assert np.array_equal(store["cam/a.mp4"].read().data, exact)
        assert fsck.run(store.parts, deep=True) == []


@pytest.mark.parametrize("how", one_in(2, ["ingest", "stream", "mount", "settled"]))
def test_repeated_ingest_does_not_trust_existing_bytes(
    place: Path, exact: np.ndarray, how: str
) -> None:
    """A change on the disk is not detected before the data is read."""
    path = damaged(place)
    with Store.open(place) as store, open(path, "rb") as early:
        if how == "ingest":
            store.ingest(CLIP, "b.mp4")
        elif how == "stream":
            store.write("b.mp4", CLIP.read_bytes())
        else:
            fs = Filesystem(store.parts)
            if how == "settled":
                fs._classifier.close(0)
            Driver(fs).write("/b.mp4", CLIP.read_bytes())
            fs.close()
            if how == "settled":
                assert classify_spooled_file(store.parts, store.node("b.mp4")) is not None
        store.remove("cam/a.mp4")
        assert np.array_equal(store["b.mp4"].read().data, exact)
        assert fsck.run(store.parts, deep=True) == []
        assert path.read_bytes() == CLIP.read_bytes() != early.read()
        assert store.parts.objects.temporary_files() == []


@pytest.mark.thorough
def test_replacement_does_not_reuse_a_damaged_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same original was replaced before, and the result has changed on the disk since."""
    put = ObjectStore.adopt

    def adopt(self: ObjectStore, source: Path, key: str) -> None:
        early = self.path(key)
        if not early.exists():
            early.parent.mkdir(exist_ok=True)
            early.write_bytes(bytes(source.stat().st_size))
        put(self, source, key)

    with new_store(tmp_path / "store") as store:
        video = store.ingest(CLIP, "a.mp4")
        video.policy.set("original=replaceable,psnr=34")
        with monkeypatch.context() as patch:
            patch.setattr(ObjectStore, "adopt", adopt)
            video.policy.replace_original(codec="h264")
        assert len(store["a.mp4"].read()) == len(video)
        assert fsck.run(store.parts, deep=True) == []


def test_recorded_damage_is_removed_with_its_bytes(place: Path) -> None:
    damaged(place)
    with Store.open(place) as store:
        with pytest.raises(DamagedFileError):
            store["cam/a.mp4"].read()
        with store.catalog.reading() as seen:
            assert seen.integrity.damaged()
        store.write("b.mp4", CLIP.read_bytes())
        with store.catalog.reading() as seen:
            assert seen.integrity.inspections() == {}
        assert scrubbed(store) == []


def test_damaged_frames_are_those_that_need_the_packets(made: Path) -> None:
    with Store.open(made, read_only=True) as store:
        video = store["cam/a.mp4"]
        table = context_of(video).table
        for first in range(0, SIZE, 7001):
            hit = range(first, min(SIZE, first + 900))
            expected = set()
            for frame in range(len(table)):
                run = table.decode_run(frame)
                own = next(iter(run.wanted))
                columns = table.columns(run.first_packet, run.end_packet)
                for row, packet in enumerate(range(run.first_packet, run.end_packet)):
                    at, size = int(columns.position[row]), int(columns.size[row])
                    is_needless = columns.flags[row] & 4 and packet < own
                    if at < hit.stop and hit.start < at + size and not is_needless:
                        expected.add(frame)
            found = damaged_frames_of(table, Access.EXTENT, [hit])
            assert {frame for part in found for frame in part} == expected


# ------------------------------------------------------------------------------------------ scrub


def test_scrub_finds_repairs_and_reports_damage(place: Path, tmp_path: Path) -> None:
    with Store.open(place) as store:
        video = store["cam/a.mp4"]
        segments = video.tiles.retile("uniform:2x2")
        assert scrubbed(store) == []
        flip(object_of(store), LAST[100])
        flip(store.parts.objects.path(segments[0].object_key), 3000)
        store.parts.objects.path(segments[1].object_key).unlink()
        found = {(one.kind, one.repaired, one.names) for one in scrubbed(store)}
        assert found == {
            ("tiles", "dropped", ("cam/a.mp4",)),
            ("original", None, ("cam/a.mp4",)),
        }
        assert store.catalog.segments(video.info) == segments[2:]
        (left,) = scrubbed(store)
        assert left.frames is not None
        assert (left.ranges, left.frames[-1].stop) == ((LAST,), 120)
        shutil.copy(CLIP, object_of(store))
        assert scrubbed(store) == []
        assert fsck.run(store.parts, deep=True) == []


def test_scrub_adds_missing_and_corrects_wrong_checksums(place: Path) -> None:
    with Store.open(place) as store:
        where = store["cam/a.mp4"].original.place
        with store.catalog.reading() as seen:
            good = seen.integrity.checksums(where)
        assert good is not None
        with store.catalog.writing() as change:
            change.integrity.drop_checksums(where)
        assert scrubbed(store) == []
        for change_of in (good.sums.sums[:-1] + b"x", bytes(len(good.sums.sums))):
            with store.catalog.reading() as seen:
                assert seen.integrity.checksums(where) == good
            with store.catalog.writing() as change:
                wrong = BlockChecksums(good.sums.size, good.sums.block, change_of)
                change.integrity.put_checksums(where, wrong)
            (found,) = scrubbed(store)
            assert found.repaired == "recomputed"


def test_interrupted_scrub_resumes(place: Path) -> None:
    with Store.open(place) as store:
        store["cam/a.mp4"].tiles.retile("uniform:2x2")

        def stop(done: int, total: int) -> None:
            if done > total // 2:
                raise EnoughError

        first = Scrubber(store.parts, on_progress=stop)
        count = first.planned[0]
        with pytest.raises(EnoughError):
            list(first.run())
        second = Scrubber(store.parts)
        assert second.is_resumed
        assert 0 < second.planned[0] < count
        assert list(second.run()) == []
        third = Scrubber(store.parts)
        assert not third.is_resumed
        assert third.planned[0] == count
        assert list(third.run()) == []
        assert Scrubber(store.parts, older_than=3600).planned == (0, 0)


class EnoughError(Exception):
    """Raised by tests to interrupt a scrub."""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A store with one video of several chunks."""
    clip = tmp_path / "large.mp4"
    clip.write_bytes(
        CLIP.read_bytes() + struct.pack(">I4s", 5 << 20, b"free") + bytes((5 << 20) - 8)
    )
    with new_store(tmp_path / "large") as store:
        store.ingest(clip, "a.mp4")
    return tmp_path / "large"


def interrupted(store: Store, after: int) -> Scrubber:
    """Interrupt a scrub after that many bytes of its work."""

    def stop(done: int, total: int) -> None:
        if done >= after:
            raise EnoughError

    scrubber = Scrubber(store.parts, on_progress=stop)
    with pytest.raises(EnoughError):
        list(scrubber.run())
    return scrubber


def test_scrub_resumes_within_a_file(large: Path) -> None:
    with Store.open(large) as store:
        path = store.parts.originals.path_of(store["a.mp4"].original)
        size = path.stat().st_size
        interrupted(store, 2 << 20)
        interrupted(store, 1 << 20)
        last = Scrubber(store.parts)
        assert last.is_resumed
        assert last.planned == (1, size - (3 << 20))
        assert list(last.run()) == []
        assert not store.parts.directory.scrub_note.exists()
        again = Scrubber(store.parts)
        assert (again.is_resumed, again.planned) == (False, (1, size))


@pytest.mark.parametrize("place", [1000, 4 << 20])
def test_resumed_scrub_finds_damage_in_both_parts(large: Path, place: int) -> None:
    with Store.open(large) as store:
        flip(store.parts.originals.path_of(store["a.mp4"].original), place)
        interrupted(store, 2 << 20)
        first = place // BLOCK_BYTES * BLOCK_BYTES
        (found,) = scrubbed(store)
        assert found.ranges == (range(first, first + BLOCK_BYTES),)


@pytest.mark.thorough
@pytest.mark.parametrize("place", [1000, 4 << 20])
def test_resumed_scrub_detects_wrong_checksums(large: Path, place: int) -> None:
    with Store.open(large) as store:
        original = store["a.mp4"].original
        with store.catalog.writing() as change:
            known = change.integrity.checksums(original.place)
            assert known is not None
            sums = bytearray(known.sums.sums)
            sums[SUM_BYTES * (place // BLOCK_BYTES)] ^= 4
            wrong = BlockChecksums(known.sums.size, known.sums.block, bytes(sums))
            change.integrity.put_checksums(original.place, wrong)
        interrupted(store, 2 << 20)
        (found,) = scrubbed(store)
        assert found.repaired == "recomputed"
        assert fsck.run(store.parts, deep=True) == []


def test_interrupted_second_check_resumes(large: Path) -> None:
    """Otherwise a file that takes longer than any run would never be reported."""
    with Store.open(large) as store:
        path = store.parts.originals.path_of(store["a.mp4"].original)
        flip(path, 1000)
        interrupted(store, 2 << 20)
        size = path.stat().st_size
        chunks = -(-size // (1 << 20))
        read: list[int] = []

        def stop(done: int, total: int) -> None:
            read.append(done)
            if len(read) == chunks:  # 2 of them were read before
                raise EnoughError

        with pytest.raises(EnoughError):
            list(Scrubber(store.parts, on_progress=stop).run())
        last = Scrubber(store.parts)
        assert last.planned == (1, size - (2 << 20))
        (found,) = last.run()
        assert found.ranges == (range(BLOCK_BYTES),)


def test_progress_record_of_a_widely_damaged_file_is_short(large: Path) -> None:
    with Store.open(large) as store:
        original = store["a.mp4"].original
        path, size = store.parts.originals.path_of(original), original.size
        path.chmod(0o600)
        with open(path, "r+b") as file:
            file.write(os.urandom(size - 4096))
        interrupted(store, 2 << 20)
        note = store.parts.directory.scrub_note
        assert json.loads(note.read_text())["damage"] == [[0, 2 << 20]]
        (found,) = scrubbed(store)
        assert found.ranges == (range(size),)


def test_damage_in_too_many_places_saves_no_progress(tmp_path: Path) -> None:
    note, summer = ScrubCheckpoint(tmp_path / "note"), BlockChecksummer()
    damage = [range(at, at + 1) for at in range(0, 1 << 18, 2)]
    note.write(
        1,
        ByteLocation("a", None),
        summer.finish(),
        VerifyProgress((1, 1 << 20, 3), 1 << 20, (range(5),)),
    )
    note.write(
        1,
        ByteLocation("a", None),
        summer.finish(),
        VerifyProgress((1, 1 << 20, 3), 0, tuple(damage)),
    )
    kept = ScrubCheckpoint(tmp_path / "note").of(1, ByteLocation("a", None))
    assert kept is not None
    assert (kept.progress.at, kept.progress.damage) == (1 << 20, (range(5),))


@pytest.mark.parametrize("what", one_in(3, ["file", "sums", "note", "place", "run", "no sums"]))
def test_scrub_of_other_files_starts_over(large: Path, what: str) -> None:
    with Store.open(large) as store:
        original = store["a.mp4"].original
        path = store.parts.originals.path_of(original)
        if what == "no sums":
            with store.catalog.writing() as change:
                change.integrity.drop_checksums(original.place)
        interrupted(store, 2 << 20)
        note = store.parts.directory.scrub_note
        if what == "file":
            os.utime(path, ns=(1, 1))
        elif what == "sums":
            with store.catalog.writing() as change:
                sums = change.integrity.checksums(original.place)
                assert sums is not None
                wrong = BlockChecksums(sums.sums.size, sums.sums.block, bytes(len(sums.sums.sums)))
                change.integrity.put_checksums(original.place, wrong)
        elif what == "note":
            note.write_text("[")
        elif what == "place":
            note.write_text(json.dumps(json.loads(note.read_text()) | {"at": 1 << 40}))
        elif what == "run":
            note.write_text(note.read_text().replace('"run": 1', '"run": 7'))
        last = Scrubber(store.parts)
        assert last.planned == (1, path.stat().st_size)
        assert [one.repaired for one in last.run()] == ["recomputed"] * (what == "sums")


def test_scrub_saves_progress_while_reading(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed scrub cannot save its progress at the end."""
    clock = [100.0]
    monkeypatch.setattr("vfsd.maintenance.scrub.time.monotonic", lambda: clock[0])
    with Store.open(large) as store:
        store.ingest(CLIP, "small.mp4")
        with store.catalog.writing() as change:  # the large file comes last
            change.integrity.record_inspection(store["a.mp4"].original.place, (), now_ns=1)

        def tick(done: int, total: int) -> None:
            clock[0] += 1.0

        scrubber = Scrubber(store.parts, on_progress=tick)
        noted = []
        write = scrubber._save_progress

        def write_down() -> None:
            write()
            with store.catalog.reading() as seen:
                small = seen.integrity.inspection(store["small.mp4"].original.place)
            at = json.loads(store.parts.directory.scrub_note.read_text())["at"]
            noted.append((small is not None, at))

        monkeypatch.setattr(scrubber, "_save_progress", write_down)
        list(scrubber.run())
        assert all(is_small for is_small, _ in noted)
        assert len({at for _, at in noted}) > 1


def test_scrub_reports_skipped_known_damage(place: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with Store.open(place) as store:
        back_up(store.parts, backup)
        store["cam/a.mp4"].tiles.retile("uniform:2x2")
    damaged(place)
    with Store.open(place) as store:
        scrubber = Scrubber(store.parts)
        first = next(one for one in scrubber.run() if one.kind == "original")
        second = Scrubber(store.parts)
        assert second.is_resumed
        for older_than in (None, 86400.0):
            (told,) = Scrubber(store.parts, older_than=older_than).run()
            assert (told.ranges, told.frames, told.repaired) == (first.ranges, first.frames, None)
            list(Scrubber(store.parts).run())
        (told,) = Scrubber(
            store.parts,
            older_than=86400.0,
            sources=[ObjectStore(StoreDirectory.open(backup))],
        ).run()
        assert told.repaired == "put back"
        assert list(Scrubber(store.parts, older_than=86400.0).run()) == []
        assert fsck.run(store.parts, deep=True) == []


def test_unverified_objects_count_as_oldest(place: Path) -> None:
    with Store.open(place) as store:
        count = Scrubber(store.parts).planned[0]
        for seconds in (3600, 1e12, 1e300, math.inf):
            assert Scrubber(store.parts, older_than=seconds).planned[0] == count
        assert scrubbed(store) == []
        for seconds in (3600, 1e12, 1e300, math.inf):
            assert Scrubber(store.parts, older_than=seconds).planned[0] == 0


def test_unreadable_linked_file_does_not_stop_the_scrub(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mine = Path(shutil.copy(FOLDER / "portrait.mp4", folder))
    with Store.open(place) as store:
        linked = store.ingest(mine, "mine.mp4", link=True).original.place
        flip(mine, 1000)
        assert [one.names for one in scrubbed(store)] == [("mine.mp4",)]
        shutil.rmtree(folder)
        folder.touch()
        flip(object_of(store), LAST[100])
        with store.catalog.writing() as change:  # the linked file comes first
            change.integrity.add_damage(linked, [range(5)], now_ns=1)
            change.integrity.record_inspection(
                store["cam/a.mp4"].original.place, (), now_ns=time.time_ns()
            )
        scrubber = Scrubber(store.parts)
        assert [one.names for one in scrubber.run()] == [("cam/a.mp4",)]
        assert [error.errno for error in scrubber.unread] == [errno.ENOTDIR]
        told = {one.check for one in fsck.run(store.parts, repair=True)}
        assert told == {"linked", "damage"}


@pytest.mark.parametrize("what", ["link", "file"])
def test_failed_repair_is_reported_and_others_are_repaired(
    place: Path, tmp_path: Path, what: str
) -> None:
    with Store.open(place) as store:
        other = store.parts.originals.path_of(
            store.ingest(FOLDER / "portrait.mp4", "b.mp4").original
        )
        back_up(store.parts, tmp_path / "backup")
        path = object_of(store)
        flip(path, LAST[100])
        flip(other, 1000)
        folder = path.parent
        if what == "link":
            folder.symlink_to(folder.rename(tmp_path / "elsewhere"))
        else:
            shutil.rmtree(folder)
            folder.touch()
        with store.catalog.writing() as change:  # that file comes first
            for at_ns, name in enumerate(("cam/a.mp4", "b.mp4"), 1):
                change.integrity.record_inspection(store[name].original.place, (), now_ns=at_ns)
        scrubber = Scrubber(
            store.parts, sources=[ObjectStore(StoreDirectory.open(tmp_path / "backup"))]
        )
        told = {one.names: one.repaired for one in scrubber.run()}
        assert told == {("cam/a.mp4",): None, ("b.mp4",): "put back"}
        (error,) = scrubber.stuck
        assert str(folder) in str(error)
        with store.catalog.reading() as seen:
            assert len(seen.integrity.damaged()) == (what == "link")


def test_scrub_stays_within_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("vfsd.maintenance.scrub.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(
        "vfsd.maintenance.scrub.time.sleep",
        lambda seconds: clock.__setitem__(0, clock[0] + seconds),
    )
    pace = ByteRateLimiter(1000.0)
    for _ in range(50):
        pace.wait(100)
    assert 4.5 < clock[0] - 100.0 < 5.5


# ----------------------------------------------------------------------------------- fsck, backup


def test_impossible_checksums(place: Path) -> None:
    with Store.open(place) as store:
        where = store["cam/a.mp4"].original.place
        summer = BlockChecksummer()
        summer.update(b"other")
        other = summer.finish()
        with store.catalog.writing() as change:
            change.integrity.put_checksums(where, other)
            change.integrity.put_checksums(ByteLocation(None, "/gone.mp4"), other, mtime_ns=5)
        found = fsck.run(store.parts)
        assert [one.check for one in found] == ["sums", "sums"]
        fsck.run(store.parts, repair=True)
        assert fsck.run(store.parts) == []
        assert scrubbed(store) == []
        with store.catalog.reading() as seen:
            assert seen.integrity.with_checksums() == {where}


def test_backup_does_not_inherit_damage_records(place: Path, tmp_path: Path) -> None:
    with Store.open(place) as store:
        back_up(store.parts, tmp_path / "backup")
        flip(object_of(store), LAST[100])
        assert len(scrubbed(store)) == 1
        # the backup has a good copy
        assert len(back_up(store.parts, tmp_path / "backup").damaged) == 0
        with store.catalog.writing() as change:
            change.integrity.drop_checksums(store["cam/a.mp4"].original.place)
    with Store.open(tmp_path / "backup") as copy:
        assert fsck.run(copy.parts, deep=True) == []
        with copy.catalog.reading() as seen:
            assert len(seen.integrity.with_checksums()) == 1


@pytest.mark.parametrize(
    "what", one_in(3, ["nothing", "fifo", "link", "directory", "short", "above"])
)
def test_missing_original_counts_as_fully_damaged(place: Path, tmp_path: Path, what: str) -> None:
    with Store.open(place) as store:
        path = object_of(store)
        whole = path.read_bytes()
        path.unlink()
        if what == "fifo":
            os.mkfifo(path)
        elif what == "link":
            path.symlink_to(CLIP)
        elif what == "directory":
            path.mkdir()
        elif what == "short":
            path.write_bytes(b"")
        elif what == "above":
            shutil.rmtree(path.parent)
            path.parent.touch()
        video = store["cam/a.mp4"]
        with pytest.raises(DamagedFileError) as caught:
            video.frames([5], psnr=math.inf)
        assert "cam/a.mp4" in str(caught.value)
        assert any(5 in lost for lost in caught.value.frames or ())
        (told,) = (found for found in fsck.run(store.parts) if found.check == "objects")
        assert "cam/a.mp4" in told.message
        (found,) = scrubbed(store)
        assert found.names == ("cam/a.mp4",)
        assert found.repaired is None
        if what == "directory":
            path.rmdir()
        elif what == "above":
            assert len(back_up(store.parts, tmp_path / "backup").damaged) == 1
            with pytest.raises(IntegrityError, match="must be a directory"):
                store.ingest(CLIP, "again.mp4")
            fsck.run(store.parts, repair=True)
            assert not path.parent.exists()
        good = tmp_path / "good.mp4"
        good.write_bytes(whole)
        store.ingest(good, "again.mp4")
        assert not fsck.run(store.parts, deep=True)
        assert video.frames([5], psnr=math.inf)
