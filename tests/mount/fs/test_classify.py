"""Files become videos when the last writer closes them, and plain files when written again."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from blake3 import blake3

import vfsd.mount.fs.classify
import vfsd.mount.fs.open_inodes
from sample_videos import FOLDER
from tests.support.fs_driver import Driver, failing
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.catalog import ROOT, Catalog
from vfsd.core.model import FileState, Node
from vfsd.disk.object_store import ObjectStore
from vfsd.errors import NotFoundError
from vfsd.mount.fs import Filesystem
from vfsd.storage.context import StoreContext
from vfsd.write import ingest_file, unfinished_files
from vfsd.write.ingest_file import Verdict, classify_file


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event that all judgements wait for."""
    opened = threading.Event()

    def slowly(parts: StoreContext, path: Path) -> Verdict:
        verdict = classify_file(parts, path)
        assert opened.wait(30)
        return verdict

    monkeypatch.setattr(vfsd.mount.fs.classify, "classify_file", slowly)
    yield opened
    opened.set()


def spooled(store: Store) -> list[int]:
    return sorted(ino for ino, _ in store.parts.directory.spooled())


def objects(store: Store) -> list[str]:
    return list(store.parts.objects.all_keys())


def test_closed_file_becomes_video(it: Driver, store: Store, video: bytes) -> None:
    ino = it.write("/v.mp4", video)
    assert it.state("/v.mp4") == "video"
    assert it.read("/v.mp4") == video
    node = store.node("v.mp4")
    assert (node.ino, node.size, node.state) == (ino, len(video), FileState.VIDEO)
    assert it.fs.settle()
    assert spooled(store) == []
    assert objects(store) == [node.object_key]
    assert store["v.mp4"].info.digest == node.object_key


@pytest.mark.parametrize("umask", [0o022, 0o007])
def test_object_mode(it: Driver, store: Store, video: bytes, tmp_path: Path, umask: int) -> None:
    source = tmp_path / "other.mp4"
    source.write_bytes(video + bytes(8))  # an empty box at the end
    before = os.umask(umask)
    try:
        store.ingest(source, "ingested.mp4")
        shown = it.create("/copied.mp4", mode=0o600)
        it.fs.write(shown, video, 0)
        it.close(shown)
        assert it.state("/copied.mp4") == "video"
        it.write("/notes.txt", b"some words")
        assert it.state("/notes.txt") == "plain"
        assert it.fs.settle()
    finally:
        os.umask(before)
    paths = [store.parts.objects.path(key) for key in objects(store)]
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o666 & ~umask] * 2
    (ino,) = spooled(store)
    assert store.parts.directory.spool_file(ino).stat().st_mode & 0o777 == 0o600
    assert it.fs.getattr("/copied.mp4").mode & 0o777 == 0o600


def test_plain_file_reason(it: Driver, store: Store) -> None:
    ino = it.write("/notes.txt", b"some words")
    assert it.state("/notes.txt") == "plain"
    assert it.fs.getxattr("/notes.txt", "user.vfsd.reason")
    assert it.read("/notes.txt") == b"some words"
    assert spooled(store) == [ino]


@pytest.mark.parametrize("data", [b"some words", b"\0\0\0\x08mdat" + bytes(4000)])
def test_reason_is_one_sentence(it: Driver, store: Store, data: bytes) -> None:
    it.write("/notes.txt", data)
    assert it.state("/notes.txt") == "plain"
    with pytest.raises(NotFoundError) as caught:
        store["notes.txt"]
    why = it.fs.getxattr("/notes.txt", "user.vfsd.reason").decode()
    assert str(caught.value) == f"'notes.txt' is a file but not a video: {why}"
    assert "this file" not in why


def test_judged_after_last_writer(it: Driver, store: Store, video: bytes) -> None:
    one = it.create("/v.mp4")
    other = it.open("/v.mp4", os.O_WRONLY)
    reading = it.open("/v.mp4")
    it.fs.write(one, video, 0)
    it.close(one)
    it.fs.settle()
    assert store.node("v.mp4").state is FileState.SPOOLED
    it.close(other)
    it.fs.settle()
    assert store.node("v.mp4").state is FileState.VIDEO
    assert it.read_open(reading) == video
    it.close(reading)


def test_equal_files_share_object(it: Driver, store: Store, video: bytes) -> None:
    it.write("/a.mp4", video)
    it.write("/b.mp4", video)
    it.fs.settle()
    assert len(objects(store)) == 1
    it.fs.unlink("/a.mp4")
    it.fs.delete_pending()
    assert it.read("/b.mp4") == video
    it.fs.unlink("/b.mp4")
    it.fs.delete_pending()
    assert objects(store) == []


def unlinked(it: Driver) -> None:
    it.fs.unlink("/a.mp4")


def renamed_over(it: Driver) -> None:
    it.write("/b", b"words")
    it.fs.rename("/b", "/a.mp4")


def unlinked_while_open(it: Driver) -> None:
    with it.opened("/a.mp4"):
        it.fs.unlink("/a.mp4")


def written(it: Driver) -> None:
    with it.opened("/a.mp4", os.O_RDWR) as handle:
        it.fs.write(handle, b"no video any more", 0)


@pytest.mark.parametrize(
    "happens", one_in(4, [unlinked, renamed_over, unlinked_while_open, written])
)
@pytest.mark.parametrize("is_link", [False, True])
def test_delete_removes_segments(
    it: Driver, store: Store, happens: Callable[[Driver], None], is_link: bool
) -> None:
    made = store.ingest(FOLDER / "portrait.mp4", "a.mp4", link=is_link)
    made.budget.set("none")
    made.tiles.retile("uniform:2x2")
    made.renditions.make((96, 160))
    happens(it)
    it.fs.settle()
    it.fs.delete_pending()
    assert objects(store) == []


def test_write_changes_copy(it: Driver, store: Store, video: bytes) -> None:
    ino = it.write("/a.mp4", video)
    it.write("/b.mp4", video)
    it.fs.settle()
    before = store.node("a.mp4")
    with it.opened("/a.mp4") as reading, it.opened("/a.mp4", os.O_RDWR) as writing:
        assert it.fs.write(writing, b"????", 100) == 4
        changed = video[:100] + b"????" + video[104:]
        assert it.read_open(reading) == changed
        now = store.node("a.mp4")
        assert (now.ino, now.state, now.object_key) == (ino, FileState.SPOOLED, None)
        assert now.generation == before.generation + 1
    assert it.read("/a.mp4") == changed
    assert it.read("/b.mp4") == video


@pytest.mark.parametrize("length", [0, 1000])
def test_truncate_changes_copy(it: Driver, video: bytes, length: int) -> None:
    it.write("/a.mp4", video)
    it.write("/b.mp4", video)
    it.fs.settle()
    it.truncate("/a.mp4", length)
    assert it.read("/a.mp4") == video[:length]
    assert it.state("/a.mp4") == "plain"
    assert it.read("/b.mp4") == video


def test_open_for_writing(it: Driver, store: Store, video: bytes) -> None:
    it.write("/v.mp4", video)
    it.fs.settle()
    before = store.node("v.mp4")
    with it.opened("/v.mp4", os.O_RDWR):
        pass
    assert it.fs.settle()
    assert store.node("v.mp4") == before


def test_overwritten_by_video(it: Driver, store: Store, video: bytes, other_video: bytes) -> None:
    it.write("/v.mp4", video)
    it.fs.settle()
    store.catalog.tag(store.catalog.video("v.mp4"), "night")
    first = store.catalog.video("v.mp4")
    it.write("/v.mp4", other_video)
    assert it.state("/v.mp4") == "video"
    second = store.catalog.video("v.mp4")
    assert it.read("/v.mp4") == other_video
    assert second.digest != first.digest
    assert (second.id, second.tags) == (first.id, frozenset({"night"}))
    it.fs.delete_pending()
    assert objects(store) == [second.digest]


def test_damaged_video_not_found(it: Driver, store: Store, video: bytes) -> None:
    it.write("/v.mp4", video)
    it.fs.settle()
    it.write("/v.mp4", b"no more")
    assert it.state("/v.mp4") == "plain"
    with pytest.raises(NotFoundError):
        store.catalog.video("v.mp4")
    assert len(store.catalog.find()) == 0


def test_linked_file_not_written(it: Driver, store: Store, video: bytes, tmp_path: Path) -> None:
    outside = tmp_path / "outside.mp4"
    outside.write_bytes(video)
    store.ingest(outside, "in.mp4", link=True)
    assert it.read("/in.mp4") == video
    with it.opened("/in.mp4", os.O_RDWR) as handle:
        it.fs.write(handle, b"????", 0)
    assert it.read("/in.mp4")[:4] == b"????"
    assert outside.read_bytes() == video
    it.fs.unlink("/in.mp4")
    it.fs.delete_pending()
    assert outside.exists()


def test_writer_voids_judgement(
    it: Driver, store: Store, gate: threading.Event, video: bytes
) -> None:
    it.write("/v.mp4", video)
    with it.opened("/v.mp4", os.O_RDWR) as handle:
        it.fs.write(handle, b"not a video any more", 0)
    gate.set()
    assert it.state("/v.mp4") == "plain"
    assert it.fs.settle()
    it.fs.delete_pending()
    assert objects(store) == []


def test_object_hash_always_right(
    it: Driver, store: Store, video: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for a moment, since a mount may be killed before it deletes the object."""
    hashed, gate = threading.Event(), threading.Event()

    def slowly(parts: StoreContext, path: Path) -> Verdict:
        verdict = classify_file(parts, path)
        hashed.set()
        assert gate.wait(30)
        return verdict

    monkeypatch.setattr(vfsd.mount.fs.classify, "classify_file", slowly)
    monkeypatch.setattr(ingest_file, "discard_failed", lambda parts, key: None)
    it.write("/v.mp4", video)
    assert hashed.wait(30)
    with it.opened("/v.mp4", os.O_RDWR) as handle:
        it.fs.write(handle, b"not a video any more", 0)
    gate.set()
    assert it.state("/v.mp4") == "plain"
    for key in objects(store):
        assert blake3(store.parts.objects.path(key).read_bytes()).hexdigest() == key


@pytest.mark.parametrize("is_announced", [True, False])
def test_object_hash_without_mount(
    store: Store, video: bytes, monkeypatch: pytest.MonkeyPatch, is_announced: bool
) -> None:
    fs = Filesystem(store.parts)
    fs._classifier.close(0)
    ino = Driver(fs).write("/v.mp4", video)
    fs.close()
    node = store.node("v.mp4")
    spool = store.parts.directory.spool_file(ino)

    def and_then_write(parts: StoreContext, path: Path) -> Verdict:
        verdict = classify_file(parts, path)
        spool.write_bytes(b"not a video any more")
        if is_announced:
            with store.catalog.writing() as change:
                change.tree.update(ino, generation=node.generation + 1)
        return verdict

    linked: list[str] = []
    monkeypatch.setattr(unfinished_files, "classify_file", and_then_write)
    monkeypatch.setattr(ObjectStore, "adopt", lambda self, source, key: linked.append(key))
    assert unfinished_files.classify_spooled_file(store.parts, node) is None
    assert linked == []


def test_write_while_settled_elsewhere(
    it: Driver, store: Store, video: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the verdict and the removal of the private name, seconds may pass on a slow disk."""
    it.fs._classifier.close(0)
    it.write("/v.mp4", video)
    sync = Catalog.sync

    def slowly(catalog: Catalog) -> None:
        with it.opened("/v.mp4", os.O_RDWR) as handle:
            it.fs.write(handle, b"more", len(video))
        sync(catalog)

    with monkeypatch.context() as patched:
        patched.setattr(Catalog, "sync", slowly)
        unfinished_files.classify_spooled_file(store.parts, store.node("v.mp4"))
    assert it.read("/v.mp4") == video + b"more"


def test_write_after_settled_elsewhere(
    it: Driver, store: Store, video: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes changes that the name cache does not have yet."""
    it.fs._classifier.close(0)
    it.write("/v.mp4", video)
    before = store.node("v.mp4")
    with it.opened("/v.mp4", os.O_RDWR) as handle:
        assert unfinished_files.classify_spooled_file(store.parts, before) is not None
        with monkeypatch.context() as patched:
            patched.setattr(it.fs._names, "node_if_any", lambda ino: before)
            it.fs.write(handle, b"more", len(video))
        it.fs.fsync(handle)
    it.fs.delete_pending()
    assert it.read("/v.mp4") == video + b"more"
    assert spooled(store) == [before.ino]


def test_open_writer_blocks_publication(
    it: Driver, store: Store, gate: threading.Event, video: bytes
) -> None:
    it.write("/v.mp4", video)
    with it.opened("/v.mp4", os.O_RDWR) as handle:
        gate.set()
        assert it.fs.settle()
        assert store.node("v.mp4").state is FileState.SPOOLED
        it.fs.write(handle, video[:8], 0)
    assert it.state("/v.mp4") == "video"
    assert it.read("/v.mp4") == video


@pytest.mark.parametrize("replaced", [True, False])
def test_unlink_during_judgement(
    it: Driver, store: Store, gate: threading.Event, video: bytes, replaced: bool
) -> None:
    it.write("/v.mp4", video)
    if replaced:
        it.fs.mknod("/x", 0o010600, 0, it.caller)
        it.fs.rename("/x", "/v.mp4")
    else:
        it.fs.unlink("/v.mp4")
    gate.set()
    assert it.fs.settle()
    it.fs.delete_pending()
    assert objects(store) == []
    assert spooled(store) == []


def test_rename_during_judgement(it: Driver, gate: threading.Event, video: bytes) -> None:
    it.write("/.v.mp4.tmp", video)
    it.fs.rename("/.v.mp4.tmp", "/v.mp4")
    gate.set()
    assert it.state("/v.mp4") == "video"


def test_writer_cannot_reach_object(it: Driver, store: Store, video: bytes) -> None:
    """The private file and the object are one inode for a moment.  A handle that was opened then
    must not write into the object."""
    it.write("/v.mp4", video)
    with it.opened("/v.mp4") as early:
        it.fs.settle()
        node = store.node("v.mp4")
        with it.opened("/v.mp4", os.O_RDWR) as writing:
            it.fs.write(writing, b"????", 0)
            assert it.read_open(early)[:4] == b"????"
    it.write("/again.mp4", video)
    it.fs.settle()
    assert store.node("again.mp4").object_key == node.object_key
    assert it.read("/again.mp4") == video


def test_leftover_object_not_written(
    it: Driver, store: Store, video: bytes, gate: threading.Event
) -> None:
    ino = it.write("/v.mp4", video)
    key = classify_file(store.parts, store.parts.directory.spool_file(ino)).digest  # type: ignore[union-attr]
    store.parts.objects.adopt(store.parts.directory.spool_file(ino), key)
    with it.opened("/v.mp4", os.O_RDWR) as handle:
        it.fs.write(handle, b"????", 0)
    assert store.parts.objects.path(key).read_bytes() == video
    assert it.read("/v.mp4") == b"????" + video[4:]


def test_unrecorded_copy(
    it: Driver,
    store: Store,
    video: bytes,
    gate: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy already has the private file's name, and the object is the only other name."""
    ino = it.write("/v.mp4", video)
    key = classify_file(store.parts, store.parts.directory.spool_file(ino)).digest  # type: ignore[union-attr]
    store.parts.objects.adopt(store.parts.directory.spool_file(ino), key)

    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "the disk fails")

    with it.opened("/v.mp4", os.O_RDWR) as handle:
        with monkeypatch.context() as patch:
            patch.setattr(vfsd.mount.fs.open_inodes, "fsync_path", fail)
            assert failing(it.fs.write, handle, b"????", 0) == "EIO"
        it.fs.write(handle, b"????", 0)
    assert store.parts.objects.path(key).read_bytes() == video
    assert it.read("/v.mp4") == b"????" + video[4:]


def test_failed_judgement(
    it: Driver,
    store: Store,
    video: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_args: object, **_kwargs: object) -> Verdict:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(vfsd.mount.fs.classify, "classify_file", broken)
    it.write("/v.mp4", video)
    assert it.fs.settle()
    assert store.node("v.mp4").state is FileState.SPOOLED
    assert "retrying" in caplog.text
    monkeypatch.undo()
    it.fs.recover()
    assert it.state("/v.mp4") == "video"


def test_failed_publication(
    it: Driver,
    store: Store,
    video: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_args: object) -> Node:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vfsd.mount.fs.classify, "publish_verdict", broken)
    it.write("/v.mp4", video)
    assert it.fs.settle()
    assert "could not be classified" in caplog.text
    assert it.read("/v.mp4") == video
    assert objects(store) == []
    assert store.node("v.mp4").state is FileState.SPOOLED


def test_close_judges_files(store: Store, video: bytes) -> None:
    fs = Filesystem(store.parts)
    it = Driver(fs)
    for number in range(5):
        it.write(f"/{number}.mp4", video)
    fs.close()
    assert {store.node(f"{number}.mp4").state for number in range(5)} == {FileState.VIDEO}


def test_close_with_open_handles(store: Store, video: bytes) -> None:
    """A mount may end before the kernel has reported the last closed files."""
    fs = Filesystem(store.parts)
    it = Driver(fs)
    for name in ("/v.mp4", "/unlinked"):
        fs.write(it.create(name), video, 0)
    fs.unlink("/unlinked")
    fs.close()
    assert store.node("v.mp4").state is FileState.VIDEO
    with store.catalog.reading() as seen:
        assert seen.tree.orphans() == []
    assert spooled(store) == []


def test_wait_timeout(it: Driver, gate: threading.Event, video: bytes) -> None:
    ino = it.write("/v.mp4", video)
    assert not it.fs.settle(ino, timeout=0.05)
    assert not it.fs.settle(timeout=0.05)
    gate.set()
    assert it.fs.settle(ino)


def test_batch_of_plain_files(
    it: Driver, store: Store, video: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version() -> int:
        with store.catalog.reading() as seen:
            return seen.tree.version()

    judging = it.fs._classifier
    with monkeypatch.context() as patch:
        patch.setattr(vfsd.mount.fs.classify.Classifier, "submit", lambda *_: None)
        inos = [it.write(f"/{number}.txt", b"%d" % number) for number in range(150)]
        inos.insert(75, it.write("/v.mp4", video))
        it.fs.unlink("/9.txt")
        writing = it.fs.open("/8.txt", os.O_WRONLY, it.caller)
    before = version()
    for ino in inos:
        judging.submit(ino)
    assert it.fs.settle()
    assert version() - before < 20
    assert it.state("/v.mp4") == "video"
    assert it.fs.getattr("/v.mp4").size == len(video)
    with store.catalog.reading() as seen:
        states = {name: node.state for name, node in seen.tree.children(ROOT)}
    plain = {f"{number}.txt" for number in range(150) if number not in (8, 9)}
    assert {name for name, state in states.items() if state is FileState.PLAIN} == plain
    it.fs.write(writing, b"more", 0)
    it.fs.release(writing)
    assert it.state("/8.txt") == "plain"
    assert it.read("/8.txt") == b"more"


def test_xattr_starts_judgement(it: Driver, video: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a moment between the last close and the judgement."""
    with monkeypatch.context() as patch:
        patch.setattr(vfsd.mount.fs.classify.Classifier, "submit", lambda *_: None)
        it.write("/v.mp4", video)
    assert it.state("/v.mp4") == "video"


def test_xattr_waits_for_close(it: Driver, video: bytes) -> None:
    """The kernel reports a closed file a moment after the program has closed it."""
    handle = it.create("/v.mp4")
    it.fs.write(handle, video, 0)
    it.fs.flush(handle)
    late = threading.Timer(0.1, it.fs.release, [handle])
    late.start()
    assert it.state("/v.mp4") == "video"
    late.join()
