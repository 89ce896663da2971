"""`Video.verify`: its corrections, and concurrent changes.

Frame tables that a full decode corrects, while others read with the old one.
"""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import av
import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.clips import make_clip as make_some
from tests.support.clips import remuxed
from tests.support.missing_frame import FRAMES, HOLE, make_clip
from tests.support.selection import one_in
from vfsd.api.reading import plan_view
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.detections import Detection
from vfsd.core.view_request import View
from vfsd.disk.checksums import BLOCK_BYTES
from vfsd.disk.store_layout import CATALOG
from vfsd.errors import IntegrityError, NotFoundError, OutdatedError, UsageError
from vfsd.maintenance import fsck


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clip(tmp_path_factory.mktemp("holes") / "holes.mp4")


@pytest.fixture
def video(store: Store, clip: Path) -> Video:
    return store.ingest(clip, "a.mp4")


@pytest.fixture
def elsewhere(store: Store) -> Iterator[Store]:
    with Store.open(store.path) as opened:
        yield opened


def sql(store: Store, statement: str) -> None:
    with closing(sqlite3.connect(store.path / CATALOG)) as raw, raw:
        raw.execute(statement)


def once(action: Callable[[], object]) -> Callable[[int, int], None]:
    """An `on_progress` that runs an action once, after the comparison, while everything is
    decoded."""
    left = [action]

    def called(done: int, total: int) -> None:
        while left and 2 * done > total:
            left.pop()()

    return called


# ------------------------------------------------------------------------------ indexed in place


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return Path(shutil.copy(FOLDER / "portrait.mp4", tmp_path / "mine.mp4"))


def written_over(mine: Path) -> None:
    shutil.copyfile(FOLDER / "late-start.mp4", mine)


def moved_over(mine: Path) -> None:
    other = Path(shutil.copy(FOLDER / "late-start.mp4", mine.with_name("other.mp4")))
    other.replace(mine)


@pytest.mark.parametrize("change", [written_over, moved_over])
def test_linked_file_that_changes_during_verify_is_not_accepted(
    store: Store, mine: Path, change: Callable[[Path], None]
) -> None:
    video = store.ingest(mine, "a.mp4", link=True)
    video.labels.add_box(5, "x", (0, 0, 9, 5), source="me")
    good, before = mine.read_bytes(), mine.stat()
    if change is written_over:
        with pytest.raises(IntegrityError, match="while it was examined"):
            video.verify(on_progress=once(lambda: change(mine)))
    else:
        assert not video.verify(on_progress=once(lambda: change(mine)))
    after = store["a.mp4"]
    assert (after.info.digest, len(after)) == (video.info.digest, len(video))
    assert after.original.id == video.original.id
    assert [box.frame for box in after.labels.query()] == [5]

    mine.write_bytes(good)
    os.utime(mine, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not after.verify()
    assert fsck.run(store.parts) == []


@pytest.mark.parametrize("damage", ["gone", "cut off"])
def test_full_comparison_adds_missing_checksums_to_a_linked_file(
    store: Store, mine: Path, damage: str
) -> None:
    """Older versions stored no checksums."""
    store.ingest(mine, "a.mp4", link=True)
    last = "DELETE FROM block_sums" if damage == "gone" else "UPDATE block_sums SET sums = x'00'"
    sql(store, last)
    good, before = mine.read_bytes(), mine.stat()
    mine.write_bytes(good[:-1] + b"?")
    os.utime(mine, ns=(before.st_atime_ns, before.st_mtime_ns))
    with Store.open(store.path) as other:
        with pytest.raises(IntegrityError, match="has changed since it was indexed"):
            other["a.mp4"].verify()
        mine.write_bytes(good)
        os.utime(mine, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert not other["a.mp4"].verify()
    with Store.open(store.path) as other:
        assert other["a.mp4"].read(frames=[3]).data.any()
        assert fsck.run(other.parts, deep=True) == []


# ------------------------------------------------------------------------------- reporting


class GiveUpError(Exception):
    pass


@pytest.mark.parametrize("has_sums", [True, False])
def test_comparison_reports_progress_and_can_be_cancelled(
    store: Store, tmp_path: Path, has_sums: bool
) -> None:
    """The comparison runs in pieces, since a slow disk may need an hour for the file."""
    large, more = tmp_path / "large.mp4", 9 << 20
    large.write_bytes(
        (FOLDER / "portrait.mp4").read_bytes() + more.to_bytes(4, "big") + b"free" + bytes(more - 8)
    )
    video = store.ingest(large, "large.mp4")
    size = video.original.size
    if not has_sums:
        sql(store, "DELETE FROM block_sums")
    told: list[tuple[int, int]] = []

    def give_up(done: int, total: int) -> None:
        told.append((done, total))
        if len(told) == 2:
            raise GiveUpError

    with Store.open(store.path) as other:
        with pytest.raises(GiveUpError):
            other["large.mp4"].verify(on_progress=give_up)
        assert told[-1][0] < size
        assert not other["large.mp4"].original.verified
        told.clear()
        assert not other["large.mp4"].verify(on_progress=lambda *now: told.append(now))
        compared = told[: told.index((size, 2 * size)) + 1]
        assert compared == sorted(compared)
        assert len(compared) > 2
        assert told[-1][0] > size
        assert other["large.mp4"].original.verified


# -------------------------------------------------------------------------- what is known of it


def test_labels_follow_their_frames_when_a_table_is_corrected(store: Store, video: Video) -> None:
    video.labels.add_box(
        100,
        "x",
        (0, 0, 9, 5),
        source="me",
    )
    sql(store, "UPDATE frame_pages SET data = zeroblob(length(data))")
    with Store.open(store.path) as other:
        again = other["a.mp4"]
        assert again.verify()
        (box,) = again.labels.query()
        assert int(again[box.frame].data[24, 32, 0]) == pytest.approx(200, abs=2)
    assert box.frame == 99


@pytest.mark.parametrize(
    "change",
    one_in(
        3,
        [
            "time_base_den = 25600",
            "codec = 'hevc'",
            "access = 'demux'",
            "extradata = zeroblob(length(extradata))",
            "media = json_set(media, '$.stream_index', 3)",
        ],
    ),
)
def test_frame_attributes_are_corrected(store: Store, elsewhere: Store, change: str) -> None:
    video = store.ingest(FOLDER / "portrait.mp4", "a.mp4")
    video.verify()
    right = store["a.mp4"]
    (shown,) = right.frames([3]).data
    made = right.tiles.retile("uniform:1x1")
    right.labels.add_box(5, "x", (0, 0, 9, 5), source="me")
    sql(store, f"UPDATE physical_videos SET {change} WHERE role = 'original'")
    wrong = elsewhere["a.mp4"]
    assert wrong.original != right.original
    assert wrong.verify()
    for here in (wrong, elsewhere["a.mp4"], store["a.mp4"]):
        assert here.original.media == right.original.media
        assert here.original.access == right.original.access
        assert here.original.verified
        assert here.original.id > right.original.id  # leaves decoders with the wrong table
        assert here.duration == right.duration
    assert [one.id for one in store.catalog.segments(wrong.info)] == [one.id for one in made]
    assert [box.frame for box in store["a.mp4"].labels.query()] == [5]
    (again,) = wrong.frames([3], psnr=math.inf).data
    assert np.array_equal(again, shown)
    assert not wrong.verify()
    assert fsck.run(store.parts) == []


def flipped(content: bytes) -> bytes:
    return content[:20000] + bytes(9000) + content[29000:]


def cut_off(content: bytes) -> bytes:
    """Truncate a file at the end of a block, so that all remaining blocks are valid."""
    return content[: len(content) // BLOCK_BYTES * BLOCK_BYTES]


def gone_on(content: bytes) -> bytes:
    return content + b"more"


@pytest.mark.parametrize("damage", [flipped, cut_off, gone_on])
@pytest.mark.parametrize("sums", one_in(2, ["with sums", "without sums"]))
def test_verify_does_not_accept_damaged_bytes(
    store: Store, damage: Callable[[bytes], bytes], sums: str
) -> None:
    """The result must not depend on the decoder, since tiles and labels use frame numbers."""
    video = store.ingest(FOLDER / "transport.ts", "a")
    video.verify()
    video.tiles.retile("uniform:2x2")
    video.labels.add_box(len(video) - 1, "car", (10, 10, 50, 50), 0.9, source="me")
    made = store.catalog.segments(video.info)
    place = video.original.place
    if sums == "without sums":
        with store.catalog.writing() as change:
            change.integrity.drop_checksums(place)
    path = store.parts.objects.path(video.info.digest)
    path.chmod(0o600)
    content = path.read_bytes()
    path.write_bytes(damage(content))
    with Store.open(store.path) as again:
        with pytest.raises(IntegrityError):
            again["a"].verify()
        assert again.catalog.segments(again["a"].info) == made
        assert [one.frame for one in again["a"].labels.query("car")] == [len(video) - 1]
        path.write_bytes(content)
        assert again["a"].verify() is False
        with again.catalog.reading() as seen:
            assert seen.integrity.checksums(place) is not None


def test_tiles_of_misnumbered_frames_are_removed(store: Store) -> None:
    video = store.ingest(FOLDER / "portrait.mp4", "a.mp4")
    video.tiles.retile("uniform:1x1")
    sql(store, "UPDATE physical_videos SET media = json_set(media, '$.color_range', 'full')")
    video = store["a.mp4"]
    assert video.verify()
    assert store["a.mp4"].original.media.color_range != "full"
    assert store.catalog.segments(video.info) == []
    assert fsck.run(store.parts) == []


def test_failed_read_suggests_verify(store: Store) -> None:
    store.ingest(FOLDER / "portrait.mp4", "a.mp4").verify()
    sql(store, "UPDATE physical_videos SET codec = 'hevc'")
    with pytest.raises(IntegrityError, match="cannot be decoded") as raised:
        store["a.mp4"].frames([3])
    assert "vfsd verify" in (raised.value.hint or "")


# ------------------------------------------------------------------------------ at the same time


def test_slower_verify_uses_the_table_of_the_faster_one(video: Video, elsewhere: Store) -> None:
    other = elsewhere["a.mp4"]
    assert video.verify(on_progress=once(lambda: other.verify()))
    assert (video.original.id, len(video)) == (other.original.id, FRAMES - 1)
    assert int(video[60].data[24, 32, 0]) == pytest.approx(2 * 61, abs=2)
    assert not video.verify()


def test_table_rebuilt_during_verify_is_verified(store: Store, video: Video) -> None:
    def lose_it() -> None:
        sql(store, "DELETE FROM physical_videos")
        fsck.run(store.parts, repair=True)

    assert video.verify(on_progress=once(lose_it))
    assert video.original.verified
    assert store["a.mp4"].original == video.original


@pytest.mark.parametrize("is_other", [False, True])
def test_video_removed_during_verify_is_reported(
    store: Store, video: Video, elsewhere: Store, is_other: bool
) -> None:
    def go() -> None:
        elsewhere.remove("a.mp4")
        if is_other:
            elsewhere.ingest(FOLDER / "portrait.mp4", "a.mp4")

    with pytest.raises(NotFoundError, match=r"a\.mp4"):
        video.verify(on_progress=once(go))


# ----------------------------------------------------------------------- pictures of another size


def _changing_its_size(path: Path) -> Path:
    """A file that changes its frame size at frame 8, which a packet scan does not notice."""
    large, small = (
        make_some(
            path.with_name(f"{width}.mov"),
            "dnxhd",
            pixel_format="yuv422p",
            options={"profile": "dnxhr_hq"},
            width=width,
            height=128,
            frames=12,
        )
        for width in (320, 256)
    )
    with av.open(str(small)) as opened:
        others = [bytes(packet) for packet in opened.demux() if packet.size]

    def changing(number: int, packet: bytes) -> bytes:
        return packet if number < 8 else others[number]

    return remuxed(large, path, changing, lambda _: True)


def test_frames_of_another_size_are_scaled(store: Store, tmp_path: Path) -> None:
    """The first read of such a frame triggers a full decode, and its result is stored."""
    video = store.ingest(_changing_its_size(tmp_path / "a.mov"))
    assert not video.original.verified
    assert video[7].data.shape == (128, 320, 3)
    assert video[8].data.shape == (128, 320, 3)
    assert video.original.verified
    assert any("several sizes" in note for note in video.original.notes)
    assert [len(frame.data) for frame in video.iterate(frames=range(6, 10))] == [128] * 4
    video.save(tmp_path / "a.y4m")
    with video.views.open("frames/000008.png") as still:
        assert still.read().startswith(b"\x89PNG")


def test_largest_size_is_kept(store: Store, tmp_path: Path) -> None:
    """The choice survives a correction of the table, whichever operation finds the other size."""
    small_first = tmp_path / "small.mov"
    large = _changing_its_size(tmp_path / "a.mov")
    with av.open(str(large)) as opened:
        wide = [bytes(packet) for packet in opened.demux() if packet.size]
    remuxed(
        tmp_path / "256.mov", small_first, lambda n, packet: wide[0] if n >= 8 else packet,
        lambda _: True,
    )  # fmt: skip
    video = store.ingest(small_first, size="largest")
    video.verify()
    assert (video.width, video.height) == (320, 128)
    assert {frame.data.shape for frame in video.iterate()} == {(128, 320, 3)}
    assert np.array_equal(video[9].data, store.ingest(large)[0].data)
    assert not video.verify()
    assert video.original.media.in_largest_size
    with video.views.open("full.mkv") as view, av.open(view, "r") as opened:
        assert {(frame.width, frame.height) for frame in opened.decode(video=0)} == {(320, 128)}
    with pytest.raises(UsageError, match="first or largest"):
        store.ingest(small_first, "other.mov", size="smallest")


@pytest.mark.parametrize("name", ["full.mkv", "t=0-0.4.mp4"])
def test_views_have_one_size(store: Store, tmp_path: Path, name: str) -> None:
    """Copied packets would have another size than the view reports."""
    video = store.ingest(_changing_its_size(tmp_path / "a.mov"))
    video.verify()
    with video.views.open(name) as view:
        path = tmp_path / name
        path.write_bytes(view.read())
    with av.open(str(path)) as opened:
        sizes = {(frame.width, frame.height) for frame in opened.decode(video=0)}
    assert sizes == {(320, 128)}


# --------------------------------------------------------------------------------------------------
# Frame tables that a full decode corrects, while other readers use the old one


@pytest.fixture
def own_clip(tmp_path: Path) -> Path:
    return make_clip(tmp_path / "holes.mp4")


def shades(video: Video, frames: range) -> list[int]:
    return [int(picture[24, 32, 0]) for picture in video.read(frames=frames).data]


def test_warm_decoders_use_the_corrected_table(store: Store, own_clip: Path) -> None:
    """Another process corrects the table, like a mount that verifies in the background."""
    video = store.ingest(own_clip, "a.mp4")
    assert len(video) == FRAMES
    video.read(frames=range(40))  # leaves a decoder
    with Store.open(store.parts.directory.root) as other:
        assert other["a.mp4"].verify()
        right = shades(other["a.mp4"], range(60, 115))
    again = store["a.mp4"]
    assert len(again) == FRAMES - 1
    assert shades(again, range(60, 115)) == right
    assert right[0] == pytest.approx(2 * 61, abs=2)


@pytest.mark.parametrize(("start", "first"), [(HOLE, HOLE), (-71, FRAMES - 1 - 71)])
def test_slice_ends_at_the_corrected_frame_count(video: Video, start: int, first: int) -> None:
    found = [frame.index for frame in video.iterate(frames=slice(start, None))]
    assert found == list(range(first, FRAMES - 1))


def test_empty_read_still_validates_arguments(video: Video) -> None:
    assert list(video.iterate(frames=range(5, 5))) == []
    with pytest.raises(UsageError):
        video.iterate(frames=range(5, 5), region=(5, 5, 1, 1))


def test_early_end_of_last_frame_is_corrected(store: Store) -> None:
    video = store.ingest(FOLDER / "traffic.mp4", "a.mp4")
    duration = video.duration
    path = store.parts.directory.root / CATALOG
    with closing(sqlite3.connect(path)) as catalog, catalog:
        catalog.execute("UPDATE physical_videos SET end_pts = end_pts - 511")
    with Store.open(store.parts.directory.root) as other:
        early = other["a.mp4"]
        assert early.duration < duration
        assert early.verify()
        assert other["a.mp4"].duration == duration
        assert not other["a.mp4"].verify()


def test_warm_decoders_read_past_a_gap(store: Store, own_clip: Path) -> None:
    video = store.ingest(own_clip, "a.mp4")
    video.read(frames=range(20))
    video.read(frames=range(100, 119))
    found = shades(video, range(30, 115))
    assert len(video) == FRAMES - 1
    assert found[0] == pytest.approx(60, abs=2)
    assert found[-1] == pytest.approx(2 * 115, abs=2)


def test_open_video_does_not_use_tiles_of_corrected_numbers(video: Video, elsewhere: Store) -> None:
    before = shades(video, range(60, 80))
    other = elsewhere["a.mp4"]
    assert other.verify()
    other.budget.set("none")
    other.tiles.retile("uniform:1x1")
    other.renditions.make((32, 24))
    assert shades(video, range(60, 80)) == before
    assert plan_view(context_of(video), View(frames=(60, 80, 1))).tiled == ()


def test_frame_numbers_are_looked_up_again_after_a_correction(video: Video) -> None:
    times = [number / 25 for number in range(44, 56)]
    found = video.read(times=times)
    assert len(video) == FRAMES - 1
    again = video.read(times=times)
    assert found.index.tolist() == again.index.tolist()
    assert (found.data == again.data).all()


def test_negative_numbers_count_from_the_corrected_end(video: Video) -> None:
    found = video.frames([*range(44, 54), -2])
    assert found.index[-1] == len(video) - 2 == FRAMES - 3


def test_iteration_by_number_stops_when_numbers_change(video: Video) -> None:
    frames = video.iterate(frames=range(40, 60))
    given = [int(frame.data[24, 32, 0]) for frame in islice(frames, HOLE - 40)]
    with pytest.raises(OutdatedError, match="counted again"):
        next(frames)
    assert given == pytest.approx([2 * number for number in range(40, HOLE)], abs=2)
    assert len(shades(video, range(40, 60))) == 20


def test_full_iteration_skips_only_the_missing_frame(video: Video) -> None:
    found = [(frame.pts, int(frame.data[24, 32, 0])) for frame in video.iterate()]
    assert len(found) == FRAMES - 1
    assert sorted(found) == found


def test_frame_times_during_a_concurrent_correction(video: Video) -> None:
    frames = video.iterate(frames=range(60, 100))
    next(frames)
    video.frames(range(45, 55))  # reads the missing frame
    frame = next(frames)
    ticks = context_of(video).table.pts()
    shown = shades(video, range(len(video)))
    assert shown[ticks.tolist().index(frame.pts)] == int(frame.data[24, 32, 0])


def test_boxes_stay_with_their_frames(video: Video, elsewhere: Store) -> None:
    frames = [0, HOLE - 1, HOLE, HOLE + 1, 90, FRAMES - 1]
    boxes = [Detection(frame, "x", (frame, 0, frame + 9, 5), track=1) for frame in frames]
    video.labels.add(boxes, "me", examined=[range(40, 60), range(FRAMES - 2, FRAMES)])
    other = elsewhere["a.mp4"]
    assert other.verify()
    assert [(box.frame, box.box[0]) for box in other.labels.query()] == [
        (0, 0),
        (HOLE - 1, HOLE - 1),
        (HOLE, HOLE + 1),
        (89, 90),
        (FRAMES - 2, FRAMES - 1),
    ]
    assert [one.frames for one in other.labels.examined()] == [
        range(40, 59),
        range(FRAMES - 3, FRAMES - 1),
    ]
    for use in (
        lambda: list(video.labels.query()),
        lambda: video.labels.add(boxes, "me"),
    ):
        with pytest.raises(NotFoundError, match="renumbered"):
            use()
