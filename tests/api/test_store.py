"""The store API: ingesting files, reading frames, the tree."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import pickle
import shutil
import sqlite3
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sample_videos import CLIPS, FOLDER, GroundTruth, read_frame_number
from tests.support.fs_driver import Driver
from tests.support.next_revision import FIRST, NEXT, next_program
from tests.support.remembered_reads import region_read, remember
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.catalog import Catalog
from vfsd.core.model import FileState
from vfsd.core.pixel_array import Pixels
from vfsd.disk.object_store import digest_file
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import (
    BusyError,
    ClosedError,
    ExistsError,
    IndexKindError,
    NoStoreError,
    NotFoundError,
    OutOfRangeError,
    ReadOnlyError,
    RefusedMediaError,
    ShortSpanWarning,
    StoreError,
    StoreVersionError,
    UsageError,
)
from vfsd.labels.detectors.motion import MotionDetector
from vfsd.maintenance import fsck
from vfsd.maintenance.scrub import Scrubber
from vfsd.mount.fs import Filesystem
from vfsd.tiling import Rect
from vfsd.write.ingest_file import SourceFile, ingest_link

CLIP = FOLDER / "traffic.mp4"
"""320x240, H.264 with B-frames, AAC."""


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(CLIP, "cam1/a.mp4")


def numbers(data: Pixels) -> list[int]:
    """The frame numbers that are drawn into the sample videos."""
    return [read_frame_number(picture) for picture in data]


# ------------------------------------------------------------------------------------ the store


def test_a_store_is_a_mapping_of_names_to_videos(store: Store, video: Video) -> None:
    assert isinstance(store, Mapping)
    assert (list(store), len(store), "cam1/a.mp4" in store) == (["cam1/a.mp4"], 1, True)
    assert [name for name, _ in store.items()] == [one.name for one in store.values()]
    found = store.get("cam1/a.mp4")
    assert found is not None
    assert found.info == video.info
    assert store.get("none.mp4") is None
    assert store.get("none.mp4", "default") == "default"
    assert len({store, store}) == 1
    with Store.open(store.path) as other:
        assert other != store


def test_a_video_describes_itself(store: Store, video: Video) -> None:
    assert (video.width, video.height, video.num_frames, len(video)) == (320, 240, 120, 120)
    assert video.shape == video[...].shape == (120, 240, 320, 3)
    assert (video.fps, video.duration, video.codec) == (Fraction(30), Fraction(4), "h264")
    store.catalog.tag(video.info, "night")
    store.catalog.set_metadata(video.info, site="gate")
    again = store["cam1/a.mp4"]
    assert again.tags == {"night"}
    assert again.metadata == {"site": "gate"}


def test_create_requires_an_empty_directory(tmp_path: Path) -> None:
    Store.create(tmp_path / "a").close()
    with pytest.raises(ExistsError, match="already"):
        Store.create(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "file").touch()
    with pytest.raises(ExistsError, match="not an empty"):
        Store.create(tmp_path / "b")
    with pytest.raises(NoStoreError):
        Store.open(tmp_path / "b")


def test_create_keeps_a_store_created_concurrently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, mkdir = tmp_path / "a", Path.mkdir
    others = iter([root])

    def while_somebody_is_quicker(path: Path, *args: Any, **kwargs: Any) -> None:
        for other in others:
            with Store.create(other) as store:
                store.ingest(CLIP, "a.mp4")
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", while_somebody_is_quicker)
    with pytest.raises(ExistsError, match="already"):
        Store.create(root)
    assert not list(root.glob("*.tmp"))
    with Store.open(root) as store:
        assert list(store) == ["a.mp4"]


def test_concurrent_create_is_refused(tmp_path: Path) -> None:
    with StoreDirectory.creating(tmp_path / "a") as directory:
        with pytest.raises(BusyError, match="is creating"):
            Store.create(tmp_path / "a")
        Catalog.create(directory.catalog_url).close()
    Store.open(tmp_path / "a").close()


def test_interrupted_creation_with_an_external_catalog_can_be_repeated(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'elsewhere.sqlite3'}"
    for _ in range(2):
        begun = StoreDirectory.creating(tmp_path / "a", catalog_url=url)
        with suppress(KeyboardInterrupt), begun as directory:
            Catalog.create(url, store_id=directory.id).close()
            raise KeyboardInterrupt
    with pytest.raises(ExistsError, match="catalog"):
        Store.create(tmp_path / "b", catalog_url=url)
    assert not (tmp_path / "b").exists()
    with Store.create(tmp_path / "a", catalog_url=url) as store:
        assert list(store) == []
    with pytest.raises(ExistsError):
        Store.create(tmp_path / "a", catalog_url=url)


def test_only_one_of_two_new_stores_gets_a_shared_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'elsewhere.sqlite3'}"
    monkeypatch.setattr(Catalog, "is_at", lambda _: False)  # both checked before either existed
    with Store.create(tmp_path / "a", catalog_url=url) as store:
        with pytest.raises(ExistsError, match="catalog"):
            Store.create(tmp_path / "b", catalog_url=url)
        store.ingest(CLIP, "a.mp4")
    Store.create(tmp_path / "b").close()  # creation starts over after the earlier failure
    with Store.open(tmp_path / "a") as store:
        assert list(store) == ["a.mp4"]


def test_failed_create_does_not_take_back_a_claimed_catalog(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'elsewhere.sqlite3'}"
    with suppress(KeyboardInterrupt), StoreDirectory.creating(tmp_path / "a", catalog_url=url):
        raise KeyboardInterrupt
    Store.create(tmp_path / "b", catalog_url=url).close()
    with pytest.raises(ExistsError, match="catalog"):
        Store.create(tmp_path / "a", catalog_url=url)
    Store.open(tmp_path / "b").close()


def test_store_with_the_catalog_of_another_store_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'elsewhere.sqlite3'}"
    Store.create(tmp_path / "a", catalog_url=url).close()
    new_store(tmp_path / "b").close()
    marker = tmp_path / "b" / "vfsd-store.json"
    theirs = json.loads((tmp_path / "a" / "vfsd-store.json").read_text())
    mine = json.loads(marker.read_text())
    marker.write_text(json.dumps(mine | {"catalog": theirs["catalog"]}))
    for read_only in (False, True):
        with pytest.raises(StoreError, match="another store") as caught:
            Store.open(tmp_path / "b", read_only=read_only)
        assert caught.value.hint is not None
    marker.write_text(json.dumps(theirs))  # the lost file, restored as the hint says
    Store.open(tmp_path / "b").close()


def test_store_of_an_older_version_is_upgraded(tmp_path: Path) -> None:
    with Store.create(tmp_path / "a") as store:
        store.ingest(CLIP, "a.mp4")
        url, mine = store.parts.directory.catalog_url, store.parts.directory.id
    with next_program():
        with pytest.raises(StoreVersionError, match=FIRST):
            Store.open(tmp_path / "a", read_only=True)
        with Store.open(tmp_path / "a") as store:
            assert len(store.read("a.mp4", frames=[7])) == 1
            assert not list(fsck.run(store.parts))
    assert Catalog.owner_at(url) == mine
    with pytest.raises(StoreVersionError, match=NEXT):
        Store.open(tmp_path / "a")


def test_create_keeps_a_database_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE photos (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(ExistsError, match="another program"):
        Store.create(tmp_path / "a", catalog_url=f"sqlite:///{path}")
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["photos.db"]


def test_newer_format_is_refused(tmp_path: Path) -> None:
    new_store(tmp_path / "s").close()
    marker = tmp_path / "s" / "vfsd-store.json"
    marker.write_text(marker.read_text().replace('"format": 1', '"format": 3'))
    with pytest.raises(StoreVersionError, match="format 3"):
        Store.open(tmp_path / "s")


@pytest.mark.parametrize("marker", [None, "", "[]", '{"format": 1, "id": "\\ud800"}'])
def test_unreadable_marker_is_reported(store: Store, marker: str | None) -> None:
    path = store.path / "vfsd-store.json"
    path.unlink()
    if marker is None:
        path.mkdir()
    else:
        path.write_text(marker)
    with pytest.raises(NoStoreError, match=r"vfsd-store\.json cannot be read") as raised:
        Store.open(store.path)
    assert "vfsd restore" in (raised.value.hint or "")


def test_copy_without_empty_directories_is_complete(store: Store, tmp_path: Path) -> None:
    """Git, archives and object storage make such copies."""
    store.close()
    for found in (store.path / "objects" / "tmp", store.path / "spool", store.path / "cache"):
        found.rmdir()
    with Store.open(store.path, read_only=True) as opened:
        assert fsck.run(opened.parts) == []
    with Store.open(store.path) as opened:
        opened.ingest(FOLDER / "portrait.mp4")
        assert fsck.run(opened.parts, repair=True) == []


@pytest.mark.parametrize("what", ["nothing", "a link to a disk that is not mounted", "a file"])
def test_open_refuses_a_store_without_objects(store: Store, tmp_path: Path, what: str) -> None:
    """Checks would otherwise report all objects as lost."""
    store.close()
    objects = store.path / "objects"
    objects.rename(tmp_path / "kept")
    if what == "a file":
        objects.touch()
    elif what != "nothing":
        objects.symlink_to(tmp_path / "disk" / "objects")
    for read_only in (False, True):
        with pytest.raises(StoreError, match="lost its directory objects"):
            Store.open(store.path, read_only=read_only)
    objects.unlink(missing_ok=True)
    objects.symlink_to(tmp_path / "kept")
    with Store.open(store.path) as opened:
        assert fsck.run(opened.parts, deep=True) == []


def test_no_cleanup_while_the_disk_with_the_objects_is_unmounted(
    store: Store, video: Video, tmp_path: Path
) -> None:
    tiles = video.tiles.retile("uniform:1x1", span=(0, 1))
    objects = store.path / "objects"
    objects.rename(tmp_path / "kept")
    (objects / "tmp").mkdir(parents=True)  # like the one that opening a store makes
    for drop in (lambda: fsck.run(store.parts, repair=True), lambda: Scrubber(store.parts)):
        with pytest.raises(StoreError, match="is empty, and should hold 2 objects"):
            drop()
    assert {one.check for one in fsck.run(store.parts)} == {"tiles", "objects"}
    assert store.catalog.segments(video.info) == tiles
    (objects / "00").mkdir()
    assert {one.repaired for one in Scrubber(store.parts).run()} == {"dropped", None}


def test_ingest_refused_while_the_disk_with_the_objects_is_unmounted(
    store: Store, video: Video, tmp_path: Path
) -> None:
    """With one folder of objects present, all others would count as lost."""
    objects = store.path / "objects"
    objects.rename(tmp_path / "kept")
    (objects / "tmp").mkdir(parents=True)
    other = FOLDER / "portrait.mp4"
    for _ in range(2):
        with pytest.raises(StoreError, match="is empty, and should hold 1 objects"):
            store.ingest(other, "b.mp4")
    assert [path.name for path in objects.rglob("*")] == ["tmp"]
    assert list(store) == [video.name]
    (objects / "00").mkdir()
    store.ingest(other, "b.mp4")
    assert {one.check for one in fsck.run(store.parts)} == {"objects"}


def test_files_of_the_store_are_not_linked(store: Store, video: Video) -> None:
    """This includes paths through a symbolic link to the store, on either side."""
    own = store.parts.originals.path_of(video.original)
    alias = store.path.with_name("alias")
    alias.symlink_to(store.path)
    with Store.open(alias) as opened:
        for path in (own, opened.parts.originals.path_of(video.original)):
            with pytest.raises(UsageError, match="one of the store's own files"):
                ingest_link(opened.parts, SourceFile(path, "b.mp4", path.stat().st_size))
        assert "b.mp4" not in opened


def test_read_only_store_changes_nothing(store: Store, video: Video) -> None:
    with Store.open(store.path, read_only=True) as reading:
        assert reading["cam1/a.mp4"][3].index == 3
        for change in (
            lambda: reading.ingest(CLIP),
            lambda: reading.remove("cam1/a.mp4"),
            lambda: reading.move("cam1", "cam2"),
        ):
            with pytest.raises(ReadOnlyError):
                change()


def test_read_only_store_refuses_changes_before_any_work(store: Store, video: Video) -> None:
    remember(store, video, region_read(video, range(120), Rect(0, 0, 64, 64)), times=50)
    seen: list[object] = []

    def note(*done: object) -> None:
        seen.append(done)

    with Store.open(store.path, read_only=True) as reading:
        found = reading["cam1/a.mp4"]
        for work in (
            lambda: found.labels.detect(MotionDetector(), on_progress=note),
            lambda: found.tiles.retile("uniform:2x2", on_progress=note),
            lambda: found.renditions.make((160, 120), on_progress=note),
            lambda: found.tiles.compress(19, on_progress=note),
            lambda: reading.tune(on_progress=note),
        ):
            with pytest.raises(ReadOnlyError):
                work()
    assert not seen


def test_ingest_keeps_every_byte(store: Store, video: Video) -> None:
    kept = store.parts.originals.path_of(video.original)
    assert kept.read_bytes() == CLIP.read_bytes()
    assert video.info.modified_ns == CLIP.stat().st_mtime_ns
    assert "cam1/a.mp4" in store
    assert list(store) == ["cam1/a.mp4"]
    assert len(store) == 1


def test_equal_files_share_one_object(store: Store, video: Video) -> None:
    again = store.ingest(CLIP, "b.mp4")
    assert again.original.object_key == video.original.object_key
    store.remove("cam1/a.mp4")
    assert numbers(store["b.mp4"].read(frames=range(2)).data) == [0, 1]
    store.remove("b.mp4")
    assert list(store.parts.objects.all_keys()) == []


def test_file_written_during_a_repeated_copy_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Path(shutil.copy(CLIP, tmp_path / "mine.mp4"))
    objects = store.parts.objects

    def collected(key: str) -> bool:
        objects.delete(key)
        with open(mine, "ab") as file:
            file.write(b"more")
        return False

    monkeypatch.setattr(objects, "is_here", collected)
    with pytest.raises(BusyError, match="was written while it was read"):
        store.ingest(mine)
    assert "mine.mp4" not in store
    assert list(objects.all_keys()) == []


def test_linked_file_is_indexed_and_never_changed(store: Store, tmp_path: Path) -> None:
    mine = Path(shutil.copy(CLIP, tmp_path / "mine.mp4"))
    before = mine.stat()
    linked = store.ingest(mine, link=True)
    assert linked.original.link_path == str(mine)
    assert list(store.parts.objects.all_keys()) == []
    assert numbers(linked.read(frames=[7]).data) == [7]
    store.remove("mine.mp4")
    after = mine.stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)


@pytest.mark.parametrize("when", ["examined", "read"])
def test_file_written_during_indexing_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its frame table and its checksums would belong to different versions."""
    mine = Path(shutil.copy(CLIP, tmp_path / "mine.mp4"))

    def and_then_append(function: Callable[..., Any]) -> Callable[..., Any]:
        def appending(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            with open(mine, "ab") as file:
                file.write(b"more")
            return result

        return appending

    if when == "examined":
        examiner = store.parts.examiner
        monkeypatch.setattr(examiner, "examine", and_then_append(examiner.examine))
    else:
        monkeypatch.setattr("vfsd.write.ingest_file.digest_file", and_then_append(digest_file))
    with pytest.raises(BusyError, match="was written while it was read"):
        store.ingest(mine, link=True)
    assert "mine.mp4" not in store
    monkeypatch.undo()
    assert len(store.ingest(mine, link=True).read()) == 120


def test_refused_ingest_leaves_nothing(store: Store, tmp_path: Path) -> None:
    text = tmp_path / "notes.mp4"
    text.write_text("not a video at all, but long enough to look at" * 100)
    for link in (False, True):
        with pytest.raises(RefusedMediaError):
            store.ingest(text, "in/notes.mp4", link=link)
    assert store.entries() == []
    assert list(store.parts.objects.all_keys()) == []
    assert list(store.parts.directory.objects_tmp.iterdir()) == []


def test_existing_name_requires_replace(store: Store, video: Video) -> None:
    with pytest.raises(ExistsError):
        store.ingest(FOLDER / "av1.mp4", "cam1/a.mp4")
    with pytest.raises(ExistsError):
        store.ingest(FOLDER / "av1.mp4", "cam1", replace=True)
    new = store.ingest(FOLDER / "av1.mp4", "cam1/a.mp4", replace=True)
    assert store["cam1/a.mp4"].original.media.codec == "av1"
    assert list(store.parts.objects.all_keys()) == [new.original.object_key]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_removed_video_is_reported(store: Store, video: Video, *, is_replaced: bool) -> None:
    _take_away(store, video, is_replaced=is_replaced)
    for use in (
        lambda: video.read(frames=[video.original.frames - 1]),
        lambda: video.read(span=(0, 1)),
        lambda: list(video.iterate()),
        lambda: video.tiles.retile("2x2"),
        lambda: video.verify(),
    ):
        with pytest.raises(NotFoundError):
            use()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_video_removed_during_a_read(store: Store, video: Video, *, is_replaced: bool) -> None:
    """A started read can finish, like one of an open file; other calls report that the video is
    gone."""
    expected = numbers(video.read(frames=[1, 100]).data)
    _take_away(store, video, is_replaced=is_replaced)
    with suppress(NotFoundError):
        assert numbers(video.read(frames=[1, 100]).data) == expected
    with pytest.raises(NotFoundError):
        video.tiles.retile("2x2")
    with suppress(NotFoundError):
        assert len(list(video.iterate())) == video.original.frames


def _take_away(store: Store, video: Video, *, is_replaced: bool) -> None:
    if is_replaced:
        store.ingest(FOLDER / "portrait.mp4", video.name, replace=True)
    else:
        store.remove(video.name)


@pytest.mark.parametrize("how", ["copy", "link", "pictures", "stream"])
def test_replacement_leaves_no_private_file(store: Store, how: str) -> None:
    fs = Filesystem(store.parts)
    Driver(fs).write("/a.mp4", b"no video")
    fs.close()
    assert store.node("a.mp4").state is FileState.PLAIN
    if how == "pictures":
        store.write("a.mp4", np.zeros((3, 32, 32, 3), np.uint8), fps=5, replace=True)
    elif how == "stream":
        store.write("a.mp4", CLIP.read_bytes(), replace=True)
    else:
        store.ingest(CLIP, "a.mp4", link=how == "link", replace=True)
    assert list(store.parts.directory.spooled()) == []
    assert fsck.run(store.parts) == []


def test_moving_and_removing(store: Store, video: Video) -> None:
    store.move("cam1/a.mp4", "deep/er/b.mp4")
    assert list(store) == ["deep/er/b.mp4"]
    store.move("deep", "moved")
    assert store["moved/er/b.mp4"].info.id == video.info.id
    store.move("moved/er/b.mp4", "cam1")
    assert list(store) == ["cam1/b.mp4"]
    store.move("cam1/b.mp4", "/")
    assert list(store) == ["b.mp4"]
    store.move("moved/er", "/")
    store.move("er", "moved")
    store.move("b.mp4", "cam1/")
    with pytest.raises(UsageError, match="itself"):
        store.move("moved", "moved/er/x")
    with pytest.raises(UsageError, match="not empty"):
        store.remove("moved")
    assert store.remove("moved", recursive=True) == 0
    with pytest.raises(NotFoundError):
        store.remove("moved")
    assert [name for name, _ in store.entries()] == ["cam1"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("n" * 256, "got 256"),
        ("ä" * 126 + ".mp4", "got 256"),
        ("ä" * 128 + "/a.mp4", "got 256"),
        ("a\0.mp4", "file name must"),
        ("b/..", "file name must"),
        ("\ud800.mp4", "UTF-8"),
        (None, "a name in a store must be a str"),
        (5, "a name in a store must be a str"),
    ],
)
def test_names_invalid_in_a_mount_are_refused(
    store: Store, video: Video, name: Any, what: str
) -> None:
    pictures = np.zeros((2, 48, 64, 3), np.uint8)
    inside: Any = name or 7  # None keeps the file's name
    ways: list[Callable[[], object]] = [
        lambda: store.ingest(CLIP, inside),
        lambda: store.ingest(CLIP, inside, link=True),
        lambda: store.write(name, pictures, fps=25),
        lambda: store.write(name, CLIP.read_bytes()),
        lambda: store.writer(name, width=64, height=48, fps=25),
        lambda: store.move("cam1/a.mp4", name),
    ]
    for way in ways:
        with pytest.raises(UsageError) as raised:
            way()
        assert what in f"{raised.value} {raised.value.hint}"
    assert list(store) == ["cam1/a.mp4"]
    assert [path for path, _ in store.entries()] == ["cam1"]
    assert len(list(store.parts.objects.all_keys())) == 1
    assert name not in store


def test_names_are_limited_to_255_bytes(store: Store, video: Video) -> None:
    name = "ä" * 125 + "a.mp4"
    store.move("cam1/a.mp4", f"{name}/{name}")
    assert list(store) == [f"{name}/{name}"]
    with pytest.raises(NotFoundError):
        store["n" * 256]


@pytest.mark.parametrize("name", [None, 5, ["a"]])
def test_video_names_must_be_text(store: Store, video: Video, name: Any) -> None:
    ways: list[Callable[[Any], object]] = [store.__getitem__, store.node, store.entries]
    for way in (*ways, store.remove, store.growing):
        with pytest.raises(UsageError, match="name"):
            way(name)
    with pytest.raises(UsageError, match="name"):
        store.move(name, "b.mp4")
    with pytest.raises(UsageError, match="view must be"):
        video.views.open(name)


@pytest.mark.parametrize("path", [None, 5, "", "a\0b", b"bytes"])
def test_file_arguments_must_be_paths(store: Store, video: Video, path: Any) -> None:
    ways: list[Callable[[Any], object]] = [Store.open, Store.create, store.ingest, video.save]
    for way in ways:
        with pytest.raises(UsageError, match="must be given as a path"):
            way(path)


@pytest.mark.parametrize("threads", [1.5, 0, -1, "2"])
def test_threads_must_be_an_integer(store: Store, threads: Any) -> None:
    with pytest.raises(UsageError, match="threads"):
        Store.open(store.path, threads=threads)


def test_ingest_of_a_tree_can_be_resumed(store: Store, tmp_path: Path) -> None:
    from vfsd.write.ingest_file import is_ingested, plan_tree

    tree = tmp_path / "tree"
    (tree / "x" / "y").mkdir(parents=True)
    for name in ("x/a.mp4", "x/y/b.mp4"):
        shutil.copy2(CLIP, tree / name)
    sources = list(plan_tree(tree, "in"))
    assert [source.name for source in sources] == ["in/x/a.mp4", "in/x/y/b.mp4"]
    assert not any(is_ingested(store.parts, source) for source in sources)
    store.ingest(sources[0].path, sources[0].name)
    assert [is_ingested(store.parts, source) for source in sources] == [True, False]


# ------------------------------------------------------------------------------------- frames


def test_frames_by_number(video: Video) -> None:
    truth = GroundTruth.load(CLIP)
    assert len(video) == truth.frames
    frame = video[17]
    assert read_frame_number(frame.data) == 17
    assert truth.pts is not None
    assert frame.pts == truth.pts[17]
    assert frame.seconds == pytest.approx(17 / 30, abs=1e-6)
    assert frame.duration == pytest.approx(1 / 30, abs=1e-6)
    assert frame.data.shape == (240, 320, 3)
    assert video[-1].index == len(video) - 1
    assert numbers(video[3:20:4].data) == [3, 7, 11, 15, 19]
    assert numbers(video[[30, 2, 30, -1]].data) == [30, 2, 30, len(video) - 1]
    assert numbers(video[::-20].data) == list(range(len(video) - 1, -1, -20))
    for outside in (len(video), -len(video) - 1):
        with pytest.raises(OutOfRangeError):
            video[outside]


def test_boolean_mask_selects_frames(video: Video) -> None:
    mask = np.arange(len(video)) % 50 == 3
    assert numbers(video[mask].data) == [3, 53, 103]
    assert video.read(frames=mask.tolist()).index.tolist() == [3, 53, 103]
    for other in (mask[:-1], mask[:2], mask[:, None], mask[0]):
        with pytest.raises(UsageError) as raised:
            video[other]
        assert "mask" in f"{raised.value} {raised.value.hint}"


@pytest.mark.parametrize(
    "meant",
    [
        *(range(-3, 3), range(-4, -1), range(2, -3, -1), range(5, 5), range(4, 40, 9)),
        *(slice(-3, None), slice(5, 5), slice(8, 2, -2), slice(110, 300), [], [5, -5, 5]),
    ],
)
def test_all_readers_accept_the_same_frame_indices(video: Video, meant: Any) -> None:
    frames = list(range(len(video)))
    wanted = frames[meant] if isinstance(meant, slice) else [frames[at] for at in meant]
    assert video.read(frames=meant).index.tolist() == wanted
    assert video.frames(meant).index.tolist() == wanted
    if not isinstance(meant, range):
        assert video[meant].index.tolist() == wanted


@pytest.mark.parametrize("meant", [range(-4, -1), range(5, 5), slice(5, 5), slice(-9, -1, 4)])
def test_run_of_frames_equals_single_reads(video: Video, meant: range | slice) -> None:
    wanted = video.read(frames=meant).index.tolist()
    assert [frame.index for frame in video.iterate(frames=meant)] == wanted


def test_error_names_missing_frame_numbers(video: Video) -> None:
    for wrong in (list(range(118, 122)), [0, 120, 1, 121]):
        with pytest.raises(OutOfRangeError, match="got 120, 121"):
            video.read(frames=wrong)
    with pytest.raises(OutOfRangeError, match=r"124, \.\.\."):
        video.read(frames=list(range(200)))
    for run in (range(-121, -1), range(110, 121)):
        with pytest.raises(OutOfRangeError):
            video.read(frames=run)
        with pytest.raises(OutOfRangeError):
            next(video.iterate(frames=run))


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint64])
def test_frame_numbers_of_any_integer_width(video: Video, kind: Any) -> None:
    assert video[np.array([100, 2], kind)].index.tolist() == [100, 2]
    assert video[kind(100)].index == 100
    assert video[kind(100) : kind(103)].index.tolist() == [100, 101, 102]


@pytest.mark.parametrize(
    "nonsense",
    [
        *([29.97, 30.9], [math.nan], ["a"], [[1, 2], [3, 4]], [[1, 2], [3]], np.zeros((2, 2), int)),
        *("abc", 1.7, None, {1, 2}, np.float64(2), np.array([1.0])),
        *(slice(0, 10, 0), (slice(0, 10, 0),), slice(0.0, 1.0, 0.0), (slice(0, 5), slice("a", 5))),
    ],
)
def test_invalid_frame_selections_are_refused(video: Video, nonsense: Any) -> None:
    with pytest.raises(UsageError) as raised:
        video[nonsense]
    assert raised.value.hint or "step" in str(raised.value)


@pytest.mark.parametrize("beyond", [2**70, [2**70], [2**63], range(10**12), [-(2**70)]])
def test_out_of_range_numbers_of_any_integer_width(video: Video, beyond: Any) -> None:
    with pytest.raises(OutOfRangeError, match="less than 120"):
        video[beyond]


@pytest.mark.parametrize(
    ("arguments", "what"),
    one_in(
        3,
        [
            ({"frames": 5.5}, "frames must be"),
            ({"frames": ["a"]}, "frames must be"),
            ({"frames": slice(0, 10, 0)}, "slice of frames must"),
            ({"span": (0,)}, "span must be"),
            ({"span": (0, 1, 2)}, "span must be"),
            ({"span": (0, 10**400)}, "time must be"),
            ({"size": (1,)}, "size must be"),
            ({"size": (1, 2, 3)}, "size must be"),
            ({"size": (math.nan, 2)}, "size must be"),
            ({"size": (65536, 2)}, "16384"),
            ({"size": (100_000, 100_000)}, "16384"),
            ({"frames": [0], "size": (16384, 16384)}, "cannot be scaled"),
            ({"frames": [0], "size": (2, 16384)}, "cannot be scaled"),
            ({"psnr": 2**2000}, "dB"),
            ({"psnr": -1}, "dB"),
            ({"psnr": math.nan}, "dB"),
            ({"psnr": "fine"}, "dB"),
            ({"region": (0, 0, 1.5, 1)}, "region must be"),
        ],
    ),
)
def test_invalid_read_arguments_are_refused(
    video: Video, arguments: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        video.read(**arguments)


def test_numpy_numbers_are_accepted(video: Video) -> None:
    clip = video.read(frames=[15])
    assert video.frame_at(clip.seconds[0]).index == 15
    assert video.frame_at(np.float32(0.51)).index == 15
    spanned = video.read(span=(np.float32(0.5), np.int8(1)), fps=np.float16(10))
    assert spanned.index.tolist() == [15, 18, 21, 24, 27]
    assert video.read(span=(Decimal("0.5"), Decimal(1)), fps=Decimal(10)).index.tolist() == [
        *range(15, 30, 3)
    ]
    edges = np.array([0, 0, 255, 200], np.uint8)
    size: Any = np.array([100, 50], np.int8)
    small = video.read(frames=[7], region=edges, size=size)
    assert np.array_equal(
        small.data, video.read(frames=[7], region=(0, 0, 255, 200), size=(100, 50)).data
    )


@pytest.mark.parametrize("way", ["iterate", "explain"])
def test_iterate_and_explain_need_a_range(video: Video, way: str) -> None:
    with pytest.raises(UsageError, match="frames must be a range"):
        getattr(video, way)(frames=[1, 2])


@pytest.mark.parametrize(
    "arguments",
    [{"frames": [1, 2]}, {"size": (math.nan, 1)}, {"size": (1,)}, {"size": (-1, 5)}, {"psnr": -1}],
)
def test_invalid_save_arguments_are_refused(
    video: Video, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        video.save(tmp_path / "clip.mp4", **arguments)
    assert not list(tmp_path.glob("clip*"))


def test_save_refuses_sizes_that_ffmpeg_cannot_scale(video: Video, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be scaled"):
        video.save(tmp_path / "clip.mp4", frames=range(2), size=(2, 16384))
    assert not list(tmp_path.glob("clip*"))


def test_frames_by_time(video: Video) -> None:
    assert video.frame_at(0.5).index == 15
    assert video.frame_at(0.51).index == 15
    assert [frame.index for frame in video.read(times=[1, "0:01", 0])] == [30, 30, 0]
    with pytest.raises(OutOfRangeError):
        video.frame_at(video.duration)


def test_spans_are_half_open_and_add_up(video: Video) -> None:
    first = video.read(span=(0, 0.5))
    second = video.read(span=(0.5, None))
    together = [*first.index.tolist(), *second.index.tolist()]
    assert together == list(range(len(video)))
    with pytest.raises(OutOfRangeError):
        video.read(span=(1000, 1001))


def test_rate_samples_the_displayed_frame(video: Video) -> None:
    sampled = video.read(span=(0, 1), fps=5)
    assert sampled.index.tolist() == [0, 6, 12, 18, 24]
    assert len(video.read(span=(0, 1), fps="30000/1001").data) == 30
    with pytest.raises(UsageError, match="fps must be at most"):
        video.read(span=(0, 1), fps=1e9)
    slow = video.read(span=(0, 0.1), fps=60)
    assert slow.index.tolist() == [0, 0, 1, 1, 2, 2]


def test_region_equals_part_of_full_frame(video: Video) -> None:
    whole = video.read(frames=range(10, 14)).data
    for region in ((0, 0, 320, 240), (33, 17, 121, 98), (1, 1, 2, 2), (200, 100, 320, 240)):
        x1, y1, x2, y2 = region
        part = video.read(frames=range(10, 14), region=region).data
        assert np.array_equal(part, whole[:, y1:y2, x1:x2]), region
    with pytest.raises(OutOfRangeError, match="outside the frame"):
        video.read(frames=[0], region=(0, 0, 321, 10))


def test_size_and_format(video: Video) -> None:
    assert video.read(frames=[0], size=(160, 120)).data.shape == (1, 120, 160, 3)
    rgb, bgr = video.read(frames=[5]).data, video.read(frames=[5], format="bgr24").data
    assert np.array_equal(rgb, bgr[..., ::-1])
    assert video.read(frames=[5], format="gray").data.shape == (1, 240, 320, 1)
    with pytest.raises(UsageError):
        video.read(frames=[5], format="nonsense")


def test_iteration_equals_read(video: Video) -> None:
    whole = video.read()
    for frame, expected in zip(video, whole, strict=True):
        assert frame.index == expected.index
        assert np.array_equal(frame.data, expected.data)
    strided = [frame.index for frame in video.iterate(frames=slice(1, None, 9))]
    assert strided == list(range(1, len(video), 9))


def test_keyframes_match_the_encoder(video: Video) -> None:
    assert video.keyframes[0] == 0
    assert all(context_of(video).table.frame(int(index)).is_key for index in video.keyframes)


def test_lazy_array_indexing(video: Video) -> None:
    clip = video.seconds[0.5:1.5, 100:200, 40:240]
    assert "VideoArray" in repr(clip)
    data = clip.numpy()
    assert data.shape == (30, 100, 200, 3)
    assert np.array_equal(data, video.read(span=(0.5, 1.5), region=(40, 100, 240, 200)).data)
    inner = clip.seconds[0.5:0.7, 10:60:2, ::4]
    assert inner.shape == (6, 25, 50, 3)
    assert np.array_equal(inner.numpy(), data[15:21, 10:60:2, ::4])
    assert inner.frames().index.tolist() == [30, 31, 32, 33, 34, 35]
    assert inner.frames().shape == inner.shape
    assert video.seconds[0:1:0.2].frames().index.tolist() == [0, 6, 12, 18, 24]
    by_number = video[...][4:12:2, 0:10, 0:10]
    assert by_number.frames().index.tolist() == [4, 6, 8, 10]
    assert by_number[1:3].frames().index.tolist() == [6, 8]
    assert np.asarray(by_number).shape == (4, 10, 10, 3)
    with pytest.raises(OutOfRangeError):
        clip.seconds[2:3]
    with pytest.raises(OutOfRangeError):
        clip.seconds[1.0]
    with pytest.raises(UsageError):
        by_number.seconds[0:1]
    with pytest.raises(UsageError):
        clip[:, :, 3].frames()


def test_times_are_not_indices(video: Video) -> None:
    for key in (slice(0.5, 1.5), slice(None, "1:30"), slice(len(video) / 2, None)):
        with pytest.raises(IndexKindError, match=r"count frames and must be ints, got .*:") as told:
            video[key]
        assert "video.seconds[" in str(told.value.hint)
        assert isinstance(told.value, TypeError)
        with pytest.raises(IndexKindError):
            video[key, :8, :8]
    assert len(video.seconds[1:2].frames()) == len(video.seconds["0:01":"0:02"].frames()) == 30


def test_lazy_array_shape(video: Video) -> None:
    whole = video[...]
    assert (len(whole), whole.shape) == (len(video), (len(video), 240, 320, 3))
    for part in (
        video.seconds[0.5:1.5, 100:200, 40:240],
        video.seconds[0.5:1.5, 10:60:3, ::7],
        video.seconds[0:1:0.2].seconds[0.1:, :8, :8],
        video.seconds[0:0.05:0.001, :8, :8],
        video.seconds[0.001:0.002, :8, :8],  # between two frames
        whole[4:12:3, 0:10, 0:10],
        whole[50:3:-4, 0:10, 0:10],
        whole[-1, 0:10, 0:10],
        whole[3:3],
        whole[:, 300:],
    ):
        data = part.numpy()
        assert (part.shape, part.ndim, part.dtype) == (data.shape, data.ndim, data.dtype), part
        assert (len(part), part.size) == (len(data), data.size)


@pytest.mark.parametrize(
    "outer",
    [slice(None, None, 7), slice(None, None, -1), slice(50, 3, -4), slice(50, 3, np.int64(-4))],
)
@pytest.mark.parametrize("inner", [slice(0, 5), slice(1, None), -1, slice(None, None, -2)])
def test_nested_slices_match_numpy(video: Video, outer: slice, inner: slice | int) -> None:
    frames = np.arange(len(video))[outer]
    assert np.array_equal(video.read(frames=outer).index, frames)
    part = video[...][outer]
    assert np.array_equal(part[:, :8, :8].frames().index, frames)
    assert np.array_equal(part[inner][..., :8, :8, :].frames().index, np.atleast_1d(frames[inner]))


def test_range_may_end_between_steps(video: Video) -> None:
    last = len(video) - 1
    assert video.read(frames=range(last - 7, last + 7, 7)).index.tolist() == [last - 7, last]
    with pytest.raises(OutOfRangeError):
        video.read(frames=range(last - 7, last + 8, 7))


def test_one_thread_gives_the_same_frames(store: Store, video: Video) -> None:
    exact = video.read(size=(64, 48)).data
    with Store.open(store.path, threads=1) as alone:
        assert np.array_equal(alone[video.name].read(size=(64, 48)).data, exact)
    with pytest.raises(UsageError):
        Store.open(store.path, threads=0)


def test_store_reads_by_name(store: Store) -> None:
    store.ingest(FOLDER / "traffic.mp4", "cam/a.mp4")
    asked: dict[str, Any] = {"span": (1, 1.2), "region": (0, 0, 64, 48), "format": "gray"}
    frames = store.read("cam/a.mp4", **asked)
    assert frames.data.shape == (6, 48, 64, 1)
    assert np.array_equal(frames.data, store["cam/a.mp4"].read(**asked).data)
    with pytest.raises(NotFoundError):
        store.read("cam/b.mp4")


def test_concurrent_reads_of_one_video(video: Video) -> None:
    wrong: list[int] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for index in rng.integers(0, len(video), 15).tolist():
            if read_frame_number(video[index].data) != index:
                wrong.append(index)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def _read_elsewhere(path: str, indices: list[int]) -> list[int]:
    with Store.open(path) as store:
        return numbers(store["cam1/a.mp4"][indices].data)


def test_read_in_a_spawned_process(store: Store, video: Video) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_read_elsewhere, (str(store.path), [9, 4])) == [9, 4]


def test_read_in_a_forked_child(video: Video) -> None:
    assert numbers(video[[5, 50]].data) == [5, 50]  # decoders are warm and have threads
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    child = fork.Process(target=lambda: answers.put(numbers(video[[6, 51]].data)))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert answers.get() == [6, 51]
    assert numbers(video[[7]].data) == [7]


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    with new_store(tmp_path / "s") as store:
        video = store.ingest(CLIP)
        for index in range(0, len(video), 5):
            video[index]
        list(video.iterate(frames=range(60)))
    assert count() == before


def test_values_can_be_pickled(video: Video) -> None:
    assert pickle.loads(pickle.dumps(video.info)) == video.info


def test_pickling_a_catalog_is_refused_with_a_hint(store: Store, video: Video) -> None:
    for one in (store.parts, store.catalog, video.labels.query()):
        with pytest.raises(TypeError, match="open the store again"):
            pickle.dumps(one)


# ------------------------------------------------------------------------------- every sample


@pytest.mark.parametrize("name", one_in(4, sorted(CLIPS)))
def test_random_access_in_every_sample_video(store: Store, name: str) -> None:
    path = FOLDER / name
    truth = GroundTruth.load(path)
    video = store.ingest(path)
    assert len(video) == truth.frames
    rng = np.random.default_rng(len(name))
    wanted = [0, truth.frames - 1, *rng.integers(0, truth.frames, 10).tolist()]
    found = [read_frame_number(video[index].data) - truth.first_frame for index in wanted]
    assert found == wanted
    if truth.pts is not None:
        assert context_of(video).table.pts().tolist() == list(truth.pts)
    assert video.verify() is False


def test_file_left_by_a_crashed_mount_is_classified(store: Store) -> None:
    from vfsd.write.unfinished_files import classify_spooled_file

    with store.catalog.writing() as change:
        node = change.tree.create(
            1, "left.mp4", 0o100644, uid=0, gid=0, now_ns=1, state=FileState.SPOOLED
        )
        shutil.copy(CLIP, store.parts.directory.spool_file(node.ino))
    settled = classify_spooled_file(store.parts, node)
    assert settled is not None
    assert settled.state is FileState.VIDEO
    assert numbers(store["left.mp4"].read(frames=[3]).data) == [3]
    assert list(store.parts.directory.spooled()) == []


def test_use_of_a_closed_store_is_refused(store: Store, video: Video) -> None:
    video[3]
    store.close()
    store.close()
    uses: list[Callable[[], object]] = [
        lambda: store["cam1/a.mp4"],
        lambda: list(store),
        lambda: video[3],
        lambda: video.read(frames=[4, 60]),
        lambda: next(video.iterate()),
        lambda: store.ingest(CLIP, "b.mp4"),
        lambda: store.catalog.tag(video.info, "night"),
        lambda: store.remove("cam1/a.mp4"),
    ]
    for use in uses:
        with pytest.raises(ClosedError, match="the store is closed"):
            use()


def test_close_while_threads_read(store: Store, video: Video) -> None:
    begun = threading.Barrier(4)

    def read(seed: int) -> None:
        begun.wait()
        while True:
            for frame in video.iterate(frames=range(seed, 40)):
                assert read_frame_number(frame.data) == frame.index
            assert numbers(video.read(frames=[seed, 50, 7]).data) == [seed, 50, 7]

    threads_before = threading.active_count()
    with ThreadPoolExecutor(3) as readers:
        reading = [readers.submit(read, seed) for seed in range(3)]
        begun.wait()
        store.close()
        for one in reading:
            with pytest.raises(ClosedError):
                one.result(60)
    assert threading.active_count() <= threads_before


def test_span_past_the_end_warns(video: Video, tmp_path: Path) -> None:
    with pytest.warns(ShortSpanWarning, match=r"ends at 30\.000 s, but the video at 4\.000 s"):
        assert len(video.read(span=(3, 30))) == 30
    with pytest.warns(ShortSpanWarning):
        video.save(tmp_path / "a.mp4", span=(3, 30))
    assert len(video.read(span=(3, 4))) == len(video.read(span=(3, None))) == 30


def test_span_between_two_frames_cannot_be_saved(video: Video, tmp_path: Path) -> None:
    assert len(video.read(span=(0.001, 0.002))) == 0
    told = r"no frame appears between 0\.001 s and 0\.002 s of the video's 4 s"
    with pytest.raises(OutOfRangeError, match=told):
        video.save(tmp_path / "a.mp4", span=(0.001, 0.002))
    with pytest.raises(OutOfRangeError, match=told):
        video.views.open("t=0.001-0.002.mp4")
    assert not list(tmp_path.glob("a.*"))
    assert len(video.read(span=(0.001, 0.002), fps=5)) == 1  # the frame displayed then


def test_equivalent_region_notations(video: Video) -> None:
    """All notations mean the same pixels, wherever a region is accepted."""
    want = video.read(frames=[3], region=(40, 100, 240, 200)).data
    for region in (
        "200x100+40+100",
        "40,100,240,200",
        "40, 100, 240, 200",
        Rect(40, 100, 240, 200),
    ):
        assert np.array_equal(video.read(frames=[3], region=region).data, want)
    video.labels.add_box(3, "car", (50, 110, 60, 120), source="a")
    for area in ("200x100+40+100", "40,100,240,200", (40.5, 100, 240, 200)):
        assert len(video.labels.query("car", region=area)) == 1
    with pytest.raises(UsageError, match="region must be"):
        video.read(frames=[3], region="200x100")
    with pytest.raises(UsageError, match="region must be"):
        video.labels.query("car", region=7)  # type: ignore[arg-type]


def test_single_dimension_keeps_the_aspect_ratio(video: Video, tmp_path: Path) -> None:
    """The video has 320x240 pixels."""
    assert video.read(frames=[3], size=120).data.shape == (1, 120, 160, 3)
    assert video.read(frames=[3], size=(160, 0)).data.shape == (1, 120, 160, 3)
    tall = (0, 0, 100, 200)
    assert video.read(frames=[3], region=tall, size=50).data.shape == (1, 100, 50, 3)
    assert video.read(span=(0, 0.1), size=(0, 120)).data.shape == (3, 120, 160, 3)
    video.save(tmp_path / "a.y4m", frames=range(2), size=60)
    assert (tmp_path / "a.y4m").read_bytes().startswith(b"YUV4MPEG2 W80 H60 ")
    with pytest.raises(UsageError, match=r"size must be \(width, height\) or an int, got 224\.5"):
        video.read(frames=[3], size=224.5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least 1 pixel"):
        video.read(frames=[3], size=(0, 0))
    with pytest.raises(UsageError, match="at most 16384"):
        video.read(frames=[0], size=(2**31, 0))


def test_repr_is_one_line(video: Video) -> None:
    video.labels.add_box(3, "car", (50, 110, 60, 120), source="a")
    scan = video.scan("car")
    crop = next(iter(scan.crops()))
    batch = next(iter(scan.batches(4, (8, 8))))
    assert repr(video.labels.query("car")) == f"<DetectionQuery of {video.name!r}: 1 boxes>"
    assert repr(scan) == "<Scan: 1 boxes on 1 frames>"
    assert repr(crop) == "<Crop frame 3 at 0.10 s, 10x10+50+110: car>"
    assert repr(batch) == "<Batch of 1 crops of 8x8>"
