"""The operations of the fault campaign: changes that users make to a store, in steps.

Each operation has a function that prepares a small store, and a generator that does the work.  The
generator yields whenever a step has been acknowledged to the caller.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sample_videos.cameras import Cameras, FilmedScene, write_pictures
from tests.fault import older
from tests.support.fs_driver import Driver
from tests.support.next_revision import next_program, program_of
from tests.support.remembered_reads import region_read, remember
from tests.support.replaceable_clips import rich_clip
from tests.support.writing import smooth
from vfsd import AudioFormat, overlap
from vfsd.api.store import Store
from vfsd.derive.derived_data import drop_retired_tiles, drop_tiles, rollback_layouts
from vfsd.derive.tile_encoder import TileSettings
from vfsd.disk.store_config import StoreSettings
from vfsd.errors import NotFoundError, VfsdError
from vfsd.labels import LabelReadOptions, read_labels
from vfsd.maintenance import fsck
from vfsd.maintenance.age import RetentionExecutor
from vfsd.maintenance.backup import back_up
from vfsd.maintenance.restore import restore
from vfsd.mount.fs import Filesystem
from vfsd.tiling import Rect
from vfsd.write.unfinished_files import classify_spooled_file

Steps = Iterator[None]
DAY_NS = 86_400 * 1_000_000_000
FEW = TileSettings(quality=30)
RAW = TileSettings("lossless", quality=1)


@dataclass(frozen=True, slots=True)
class Place:
    """The paths that an operation works on."""

    root: Path  #: the operation changes files only below this path
    inputs: Path  #: files from outside; see `make_inputs`

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def backup(self) -> Path:
        return self.root / "backup"

    @property
    def elsewhere(self) -> str:
        """A catalog that is not in the store."""
        return f"sqlite:///{self.root / 'elsewhere.sqlite3'}"

    def open(self) -> Store:
        return Store.open(self.store, threads=1)

    @contextmanager
    def reopened(self) -> Iterator[Store]:
        """The store, opened by the program that its catalog needs after `migrate`."""
        with program_of(self.store / older.CATALOG), self.open() as store:
            yield store


@dataclass(frozen=True, slots=True)
class Operation:
    """A change to a store, and its guarantees."""

    name: str
    prepare: Callable[[Place], None]
    work: Callable[[Place], Steps]
    #: whether acknowledged steps survive a power cut: all of them, or the steps with these numbers
    durable: bool | frozenset[int] = False
    #: names with undefined contents while they are written, by step
    loose: dict[int, frozenset[str]] = field(default_factory=dict)
    #: whether a step is several transactions, so that an interrupted step may be half done
    gradual: bool = False
    #: whether new objects stay after a failure, to be reused by the next attempt
    resumed: bool = False
    #: whether the operation can be repeated if the store was not changed
    again: bool = True
    #: whether the prepared store is damaged
    damaged: bool = False

    @property
    def is_init(self) -> bool:
        """Whether the operation creates the store."""
        return self.name.startswith("init")

    def is_durable(self, step: int) -> bool:
        return self.durable if isinstance(self.durable, bool) else step in self.durable

    def loose_names(self, steps: range) -> frozenset[str]:
        return frozenset().union(*(self.loose.get(step, frozenset()) for step in steps))


def make_inputs(folder: Path) -> None:
    """The files that operations put in."""
    rng = np.random.default_rng(1)
    field_ = np.kron(rng.integers(0, 255, (16, 32, 3), np.uint8), np.ones((8, 8, 1), np.uint8))
    for name, step in (("a.mp4", 1), ("b.mp4", 2)):
        pictures = (np.roll(field_, step * at, 1)[:128, :128] for at in range(24))
        write_pictures(folder / name, pictures)
    rich_clip(folder / "rich.mp4")
    (folder / "notes.txt").write_text("no video\n" * 2000, encoding="utf-8")
    (folder / "boxes.csv").write_text(
        "frame,label,x1,y1,x2,y2\n" + "".join(f"{n},car,{n},4,{n + 20},30\n" for n in range(24)),
        encoding="utf-8",
    )
    filmed = FilmedScene.of(Cameras(overlap=0.6), frames=12, seed=1)
    write_pictures(folder / "west.mp4", map(filmed.left, range(12)))
    write_pictures(folder / "east.mp4", map(filmed.right, range(12)))


# ------------------------------------------------------------------------------- prepared stores


def nothing(place: Place) -> None:
    place.root.mkdir()


def empty(place: Place) -> None:
    place.root.mkdir()
    Store.create(place.store).close()


def with_videos(place: Place) -> None:
    """Two videos, one with boxes, a tag and tiles, and an ordinary file."""
    empty(place)
    with place.open() as store:
        video = store.ingest(place.inputs / "a.mp4", "cam/a.mp4")
        store.ingest(place.inputs / "b.mp4", "b.mp4")
        store.catalog.tag(video.info, "kept")
        found = read_labels(
            place.inputs / "boxes.csv", "csv", video.labels.clip, LabelReadOptions()
        )
        video.labels.add(found.columns, "somebody")
        video.tiles.retile("uniform:1x2", settings=FEW, jobs=1)
        it = Driver(Filesystem(store.parts))
        it.write("/notes.txt", (place.inputs / "notes.txt").read_bytes())
        it.fs.close()


def with_backup(place: Place) -> None:
    """A backup of an earlier state."""
    with_videos(place)
    with place.open() as store:
        back_up(store.parts, place.backup)
        store.remove("cam", recursive=True)
        it = Driver(Filesystem(store.parts))
        it.write("/notes.txt", b"other words")
        it.fs.close()


def with_raw_tiles(place: Place) -> None:
    with_videos(place)
    with place.open() as store:
        store["b.mp4"].budget.set("1M")
        store["b.mp4"].tiles.retile("uniform:1x2", settings=RAW, jobs=1)


def with_layouts(place: Place) -> None:
    """Tiles that replaced others, which are kept so that the change can be undone."""
    with_videos(place)
    with place.open() as store:
        store["b.mp4"].tiles.retile("uniform:1x2", settings=FEW, jobs=1)
        store["b.mp4"].tiles.retile("uniform:2x1", settings=FEW, jobs=1)


def with_read_view(place: Place) -> None:
    """A view that was read before, of a video with high decoding costs."""
    with_videos(place)
    with place.open() as store:
        StoreSettings(minimum_psnr=30).save(store.parts.directory.settings)
    with place.open() as store:
        video = store["b.mp4"]
        video.verify()
        with store.catalog.writing() as change:
            change.videos.set_cost_factor(video.original.id, 1000.0)
        _read_small_view(place, store)


def _read_small_view(place: Place, store: Store) -> None:
    store["b.mp4"].save(place.root / "small.mp4", size=(64, 64), replace=True)
    (place.root / "small.mp4").unlink()


def with_reads(place: Place) -> None:
    with_videos(place)
    with place.open() as store:
        video = store.ingest(place.inputs / "east.mp4", "east.mp4")
        corner = Rect(0, 0, 64, 64)
        remember(store, video, region_read(video, range(len(video)), corner), times=400)


def with_cameras(place: Place) -> None:
    empty(place)
    with place.open() as store:
        for name in ("west.mp4", "east.mp4"):
            store.ingest(place.inputs / name)


def with_joined(place: Place) -> None:
    with_cameras(place)
    with place.open() as store:
        overlap.join(store, "west.mp4", "east.mp4", jobs=1, seconds_each=0.2)


def with_rich(place: Place) -> None:
    """A video with a replaceable original, and one that may be removed."""
    with_videos(place)
    with place.open() as store:
        rich = store.ingest(place.inputs / "rich.mp4")
        rich.policy.set("original=replaceable,psnr=34,codec=h264,delete-after=60d")
    older.let_age(place.store, "rich.mp4", 90 * DAY_NS)


def with_garbage(place: Place) -> None:
    with_videos(place)
    with place.open() as store:
        parts = store.parts
        parts.objects.put_bytes(b"nobody needs it" * 1000, "garbage")
        (parts.directory.objects_tmp / f"1999999999-{'0' * 32}").write_bytes(b"half of something")
        parts.directory.spool_file(4711).write_bytes(b"of no inode")


def with_damage(place: Place) -> None:
    """A store for fsck to repair: tiles without a pack, unjudged files, garbage, a wrong count."""
    with_garbage(place)
    with place.open() as store:
        fs = Filesystem(store.parts)
        it = Driver(fs)
        fs._classifier.close(0)
        it.write("/late.mp4", (place.inputs / "a.mp4").read_bytes()[:-1])
        it.write("/good.mp4", (place.inputs / "west.mp4").read_bytes())
        with store.catalog.reading() as seen:
            (segment, *_) = seen.segments.all()
        store.parts.objects.path(segment.object_key).unlink()
    older.execute(place.store, "UPDATE nodes SET nlink = 7 WHERE ino = 1")


# ----------------------------------------------------------------------------------- operations


def init(place: Place) -> Steps:
    Store.create(place.store).close()
    yield


def init_elsewhere(place: Place) -> Steps:
    Store.create(place.store, catalog_url=place.elsewhere).close()
    yield


def ingest(place: Place) -> Steps:
    with place.open() as store:
        store.ingest(place.inputs / "a.mp4", "new/a.mp4")
        yield
        store.ingest(place.inputs / "rich.mp4")
        yield


def ingest_link(place: Place) -> Steps:
    with place.open() as store:
        store.ingest(place.inputs / "rich.mp4", link=True)
        yield


def ingest_replace(place: Place) -> Steps:
    with place.open() as store:
        store.ingest(place.inputs / "rich.mp4", "cam/a.mp4", replace=True)
        yield


def write(place: Place) -> Steps:
    with place.open() as store:
        store.write("w.mp4", smooth(10, 64, 48), fps=25)
        yield
        store.write("b.mp4", (place.inputs / "west.mp4").read_bytes(), replace=True)
        yield


def grow(place: Place) -> Steps:
    with place.open() as store:
        sound = AudioFormat(8000, "mono")
        writer = store.writer("live.mp4", width=64, height=48, fps=25, sound=sound)
        try:
            with writer:
                for picture in smooth(40, 64, 48):
                    writer.write(picture)
                    writer.write_sound(np.ones(320, np.int16))
        finally:
            writer.abandon()  # unpublished frames are kept until this call
        yield


@contextmanager
def _serving(place: Place) -> Iterator[Driver]:
    """The file system of a mount, which is closed in good order unless the block fails."""
    with place.open() as store:
        fs = Filesystem(store.parts)
        fs.recover()
        yield Driver(fs)
        fs.close()


def mount_copy(place: Place) -> Steps:
    """The calls of cp and rsync: create, write, fsync, rename over another, unlink."""
    data = (place.inputs / "rich.mp4").read_bytes()
    with _serving(place) as it:
        handle = it.create("/.copy.mp4")
        for at in range(0, len(data), 1 << 16):
            it.fs.write(handle, data[at : at + (1 << 16)], at)
        it.fs.fsync(handle)
        yield
        it.close(handle)
        it.fs.settle()
        it.fs.rename("/.copy.mp4", "/cam/a.mp4")
        yield
        it.fs.fsync_names()
        yield
        it.fs.unlink("/b.mp4")
        yield
        it.fs.fsync_names()
        yield


def mount_edit(place: Place) -> Steps:
    """Writing into a video and restoring it, and files that are not videos."""
    with _serving(place) as it:
        with it.opened("/b.mp4", os.O_RDWR) as handle:
            it.fs.write(handle, b"????????", 0)
            it.fs.fsync(handle)
        it.fs.settle()
        yield
        whole = (place.inputs / "b.mp4").read_bytes()
        with it.opened("/b.mp4", os.O_RDWR) as handle:
            it.fs.write(handle, whole[:8], 0)
            it.fs.fsync(handle)
        it.fs.settle()
        yield
        with it.opened("/notes.txt", os.O_RDWR) as handle:
            it.fs.write(handle, b"more", 18_000)
            it.fs.fsync(handle)
        yield
        it.fs.link("/notes.txt", "/second.txt")
        yield
        it.fs.rename("/notes.txt", "/moved.txt")
        it.fs.fsync_names()
        yield
        with it.opened("/moved.txt", os.O_RDWR) as handle:
            it.fs.setxattr("/moved.txt", "user.note", b"kept")
            it.fs.fsync(handle)
        yield


def mount_overwrite(place: Place) -> Steps:
    """Writing into a video without a sync, while its old bytes are deleted."""
    with _serving(place) as it:
        with it.opened("/b.mp4", os.O_RDWR) as handle:
            it.fs.write(handle, b"????????", 0)
        _discard(it)
        yield


def mount_replace(place: Place) -> Steps:
    """The calls of `mv` and rsync: another file replaces a video, without a sync."""
    with _serving(place) as it:
        it.write("/.new.mp4", (place.inputs / "rich.mp4").read_bytes())
        it.fs.rename("/.new.mp4", "/b.mp4")
        _discard(it)
        yield


def move_unsynced(place: Place) -> Steps:
    """`vfsd mv` of a file that a mount has just written."""
    with place.open() as store:
        fs = Filesystem(store.parts)
        fs.recover()
        Driver(fs).write("/.new.mp4", (place.inputs / "rich.mp4").read_bytes()[:-9])
        store.move(".new.mp4", "b.mp4", replace=True)
        yield
        fs.close()


def _discard(it: Driver) -> None:
    """Run a deferred cleanup here, since errors in the cleanup thread would be invisible."""
    with suppress(OSError, VfsdError):
        it.fs.delete_pending()


def retile(place: Place) -> Steps:
    with place.open() as store:
        store["b.mp4"].tiles.retile("uniform:2x2", settings=FEW, jobs=1)
        yield
        store["cam/a.mp4"].tiles.retile("uniform:2x1", settings=FEW, jobs=1)
        yield


def render(place: Place) -> Steps:
    with place.open() as store:
        store["b.mp4"].renditions.make((64, 64), settings=FEW, jobs=1)
        yield


def tune(place: Place) -> Steps:
    with place.open() as store:
        made = store.tune()
        assert made, "there is no proposal"
        yield
        store.undo()
        yield


def keep_view(place: Place) -> Steps:
    with place.open() as store:
        store.tune()
        if not _has_kept_view(store):
            # The cache may have lost its entry, as after a power cut, so the view is read again.
            _read_small_view(place, store)
            store.tune()
            if not _has_kept_view(store):
                raise NotFoundError("what was encoded for the view was not kept")
        yield


def _has_kept_view(store: Store) -> bool:
    there = store.catalog.renditions(store["b.mp4"].info)
    return any(one.is_from_view for one in there)


def compress(place: Place) -> Steps:
    with place.open() as store:
        assert store["b.mp4"].tiles.compress(9, jobs=1)
        yield


def evict(place: Place) -> Steps:
    with place.open() as store:
        assert store["cam/a.mp4"].budget.set("1")
        yield


def pin(place: Place) -> Steps:
    with place.open() as store:
        store["cam/a.mp4"].budget.pin(tiles=True)
        yield
        store["cam/a.mp4"].budget.unpin()
        yield
        store["cam/a.mp4"].policy.hold("evidence")
        yield


def layouts(place: Place) -> Steps:
    with place.open() as store:
        video = store["b.mp4"]
        rollback_layouts(store.parts, video.info, range(24))
        yield
        drop_tiles(store.parts, video.info, range(24))
        yield
        drop_retired_tiles(store.parts, video.info)
        yield


def join(place: Place) -> Steps:
    with place.open() as store:
        assert overlap.join(store, "west.mp4", "east.mp4", jobs=1, seconds_each=0.2).frames
        yield


def split(place: Place) -> Steps:
    with place.open() as store:
        assert overlap.split(store, "west.mp4")
        yield


def replace_original(place: Place) -> Steps:
    with place.open() as store:
        store["rich.mp4"].policy.replace_original()
        yield


def age(place: Place) -> Steps:
    with place.open() as store:
        ager = RetentionExecutor(store.parts, [store["rich.mp4"]], is_clock_right=True)
        (due,) = ager.plan().due
        ager.apply(due, lambda what, done, total: None)
        yield


def import_labels(place: Place) -> Steps:
    with place.open() as store:
        video = store["b.mp4"]
        found = read_labels(
            place.inputs / "boxes.csv", "csv", video.labels.clip, LabelReadOptions()
        )
        video.labels.add(found.columns, "somebody", examined=[range(24)], replace=True)
        yield


def remove(place: Place) -> Steps:
    with place.open() as store:
        store.remove("cam", recursive=True)
        yield
        store.remove("notes.txt")
        yield


def move(place: Place) -> Steps:
    with place.open() as store:
        store.move("cam/a.mp4", "elsewhere/deep/a.mp4")
        yield
        store.move("b.mp4", "elsewhere/deep/a.mp4", replace=True)
        yield


def migrate(place: Place) -> Steps:
    with next_program():
        place.open().close()
        yield


def backup(place: Place) -> Steps:
    with place.open() as store:
        back_up(store.parts, place.backup)
        yield
        it = Driver(Filesystem(store.parts))
        with it.opened("/notes.txt", os.O_RDWR) as handle:
            it.fs.write(handle, b"Tuesday", 0)
            it.fs.fsync(handle)
        it.fs.close()
        yield
        store.remove("cam", recursive=True)
        yield
        back_up(store.parts, place.backup)
        yield


def restore_backup(place: Place) -> Steps:
    restore(place.backup, place.store)
    yield


def collect(place: Place) -> Steps:
    with place.open() as store:
        fsck.collect(store.parts)
        yield


def repair(place: Place) -> Steps:
    with place.open() as store:
        fsck.run(store.parts, repair=True)
        yield


def settle(place: Place) -> Steps:
    """The work of `vfsd fsck --repair` on a file that a mount left unjudged."""
    with place.open() as store:
        node = store.node("good.mp4")
        assert classify_spooled_file(store.parts, node) is not None
        yield


def settings(place: Place) -> Steps:
    from dataclasses import replace

    with place.open() as store:
        replace(store.settings, verify=False, workers=2).save(store.parts.directory.settings)
        yield


ALL = (
    Operation("init", nothing, init, durable=True, again=False),
    Operation("init-elsewhere", nothing, init_elsewhere, durable=True, again=False),
    Operation("ingest", with_videos, ingest),
    Operation("ingest --link", with_videos, ingest_link),
    Operation("ingest --replace", with_videos, ingest_replace, durable=True),
    Operation("write", with_videos, write, durable=frozenset({1})),
    Operation("growing writer", with_videos, grow),
    Operation(
        "mount: copy",
        with_videos,
        mount_copy,
        durable=frozenset({0, 2, 4}),
        loose={0: frozenset({".copy.mp4"})},
        gradual=True,
        again=False,
    ),
    Operation(
        "mount: edit",
        with_videos,
        mount_edit,
        durable=frozenset({0, 1, 2, 4, 5}),
        loose={
            0: frozenset({"b.mp4"}),
            1: frozenset({"b.mp4"}),
            2: frozenset({"notes.txt"}),
            5: frozenset({"moved.txt", "second.txt"}),  # one file, attribute not synced
        },
        gradual=True,
        again=False,
    ),
    Operation("mount: overwrite", with_videos, mount_overwrite, gradual=True, again=False),
    Operation(
        "mount: replace",
        with_videos,
        mount_replace,
        loose={0: frozenset({".new.mp4"})},
        gradual=True,
        again=False,
    ),
    Operation(
        "mv: unsynced",
        with_videos,
        move_unsynced,
        loose={0: frozenset({".new.mp4"})},
        gradual=True,
        again=False,
    ),
    Operation("retile", with_videos, retile, gradual=True),
    Operation("render", with_videos, render, gradual=True),
    Operation("tune --apply, undo", with_reads, tune, gradual=True),
    Operation("tune --apply: a view", with_read_view, keep_view, gradual=True),
    Operation("compress", with_raw_tiles, compress, gradual=True),
    Operation("budget eviction", with_videos, evict),
    Operation("pin, hold", with_videos, pin),
    Operation("layout rollback, drop", with_layouts, layouts),
    Operation("join", with_cameras, join, gradual=True),
    Operation("split", with_joined, split),
    Operation("replace", with_rich, replace_original, durable=True),
    Operation("age", with_rich, age, durable=True),
    Operation("labels import", with_videos, import_labels),
    Operation("rm", with_videos, remove, durable=True),
    Operation("mv", with_videos, move, durable=frozenset({1})),
    Operation("migrate", with_videos, migrate),
    Operation(
        "backup",
        with_videos,
        backup,
        durable=True,
        loose={1: frozenset({"notes.txt"})},
        again=False,
    ),
    Operation("restore", with_backup, restore_backup, durable=True, resumed=True),
    Operation("gc", with_garbage, collect, gradual=True),
    Operation("fsck --repair", with_damage, repair, gradual=True, damaged=True),
    Operation("settle", with_damage, settle, gradual=True, damaged=True),
    Operation("config", with_videos, settings),
)


def named(name: str) -> Operation:
    """Raises `KeyError`."""
    return {operation.name: operation for operation in ALL}[name]
