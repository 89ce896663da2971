"""Damaged frames are marked, counted and skipped on request."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import pytest
from av.error import FFmpegError
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.conftest import run_command
from tests.support.clips import make_clip
from tests.support.fs_driver import Driver
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.catalog.videos import Videos
from vfsd.codecs.probing.damage import DamageCollector, damaged_frames
from vfsd.codecs.probing.probe import Examination, examine
from vfsd.codecs.probing.serialize import pack_examination, unpack_examination
from vfsd.codecs.pyav import decode
from vfsd.core.frame_table_pages import PacketColumns, PacketFlag
from vfsd.core.frames import in_ranges
from vfsd.errors import DamagedFramesError, IntegrityError, OutOfRangeError, UsageError
from vfsd.mount.fs import Filesystem

FRAMES = 60
HIT = (20, 41)  #: packets whose bytes are changed

CODECS = {
    "h264": ("a.mp4", "libx264", {"g": "15", "bf": "2", "preset": "veryfast"}, "yuv420p"),
    "hevc": ("a.mp4", "libx265", {"x265-params": "keyint=15:log-level=none"}, "yuv420p"),
    "mpeg4": ("a.avi", "mpeg4", {"g": "12", "bf": "2"}, "yuv420p"),
    "mpeg2": ("a.mkv", "mpeg2video", {"g": "12", "bf": "2"}, "yuv420p"),
    "mjpeg": ("a.avi", "mjpeg", {"q": "4"}, "yuvj420p"),
    "vp9": ("a.mkv", "libvpx-vp9", {"g": "15", "cpu-used": "8", "deadline": "realtime"}, "yuv420p"),
    "ffv1": ("a.mkv", "ffv1", {"slicecrc": "1", "level": "3"}, "yuv420p"),
    "hevc with hashes": (
        "a.mkv",
        "libx265",
        {"x265-params": "keyint=15:hash=1:log-level=none", "preset": "ultrafast"},
        "yuv420p",
    ),
}
SILENT = {
    "hevc": ("a.mkv", "libx265", {"crf": "24", "x265-params": "keyint=15:log-level=none"}),
    "hevc in slices": (
        "a.mp4",
        "libx265",
        {"crf": "24", "x265-params": "keyint=15:slices=2:log-level=none"},
    ),
    "vp8": ("a.mkv", "libvpx", {"g": "15", "crf": "20", "b": "1M", "cpu-used": "5"}),
    "vp8 in partitions": ("a.webm", "libvpx", {"g": "15", "b": "1M", "slices": "4"}),
}
"""Codecs whose decoders take changed bits for other symbols, without an error."""
DETECTED = ("h264", "mpeg4", "mpeg2", "ffv1", "vp9", "hevc with hashes")
"""Codecs in which the decoder notices the changes below; others decode other pictures silently."""


def made(folder: Path, codec: str) -> Path:
    name, encoder, options, layout = CODECS[codec]
    return make_clip(folder / name, encoder, options=options, pixel_format=layout, frames=FRAMES)


def packets_of(path: Path) -> list[tuple[int, int]]:
    with av.open(str(path)) as opened:
        return [(p.pos or 0, p.size) for p in opened.demux(video=0) if p.size]


def damaged(clean: Path, codec: str, seed: int = 0, hit: Sequence[int] = HIT) -> Path:
    """A copy with flipped bits in the middle of some packets."""
    path = clean.with_name("damaged" + clean.suffix)
    data = bytearray(clean.read_bytes())
    places = packets_of(clean)
    chance = random.Random(seed)
    for number in hit:
        position, size = places[number]
        for _ in range(6):
            at = position + min(size - 1, 30 + chance.randrange(max(1, size - 30)))
            data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return path


def moving_noise(path: Path, encoder: str, options: dict[str, str]) -> Path:
    """Thirty frames with much detail, in which most bits of a packet change samples."""
    rng = np.random.default_rng(1)
    field = rng.integers(0, 255, (12, 60), np.uint8).repeat(8, 0).repeat(8, 1).astype(int)
    with av.open(str(path), "w") as out:
        stream = out.add_stream(encoder, rate=25, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
        for number in range(30):
            planes = np.full((144, 160), 128, np.uint8)
            noise = rng.integers(-6, 6, (96, 160))
            planes[:96] = (field[:, number * 3 : number * 3 + 160] + noise).clip(0, 255)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(planes, format="yuv420p")))
        out.mux(stream.encode(None))
    return path


Told = dict[int, tuple[bytes, bool]]


def decoded(path: Path) -> tuple[Told, set[int]]:
    """For each packet, the frame and whether FFmpeg flags it; also the packets that FFmpeg
    refuses."""
    found: Told = {}
    failed = set()
    with av.open(str(path)) as opened:
        stream = opened.streams.video[0]
        stream.codec_context.thread_type = "NONE"
        for number, packet in enumerate(opened.demux(stream)):
            if packet.size:
                packet.pts = packet.dts = number
            try:
                pictures = decode(stream.codec_context, packet if packet.size else None)
            except FFmpegError:
                failed.add(number)
                continue
            for one in pictures:
                found[one.pts or 0] = one.to_ndarray().tobytes(), one.is_corrupt
    return found, failed


def marked(found: Examination) -> set[int]:
    """The packets of the frames that are marked."""
    assert found.damage is not None
    return {int(found.order[frame]) for part in found.damage for frame in part}


# --------------------------------------------------------------------------------- examination


@pytest.mark.parametrize("codec", CODECS)
def test_frames_flagged_by_ffmpeg_are_marked(tmp_path: Path, codec: str) -> None:
    clean = made(tmp_path, codec)
    assert examine(clean, full=True).damage == ()
    before, _ = decoded(clean)
    for seed in range(2):
        path = damaged(clean, codec, seed)
        found = examine(path, full=True)
        after, _ = decoded(path)
        flagged = {packet for packet, (_, is_corrupt) in after.items() if is_corrupt}
        assert flagged <= marked(found)
        if codec in ("mpeg4", "mpeg2", "ffv1", "vp9", "hevc with hashes"):
            others = {packet for packet in after if after[packet][0] != before[packet][0]}
            assert others
            assert others <= marked(found)


@pytest.mark.parametrize("kind", one_in(2, SILENT))
def test_pictures_that_read_beyond_their_data_are_marked(tmp_path: Path, kind: str) -> None:
    name, encoder, options = SILENT[kind]
    clean = moving_noise(tmp_path / name, encoder, options)
    assert examine(clean, full=True).damage == ()
    before, _ = decoded(clean)
    assert len(before) == 30
    differing = found = 0
    for seed in range(8):
        path = damaged(clean, kind, seed, hit=(seed, 17))
        after, _ = decoded(path)
        others = {packet for packet in before if after.get(packet) != before[packet]}
        marks = marked(examine(path, full=True))
        assert all(packet >= seed for packet in marks)
        differing += len(others)
        found += len(others & marks)
    assert differing
    assert found > differing / (5 if kind == "vp8" else 20)


def test_damage_ends_at_the_next_key_frame(tmp_path: Path) -> None:
    clean = made(tmp_path, "mpeg2")
    found = examine(damaged(clean, "mpeg2", 2, hit=(0,)), full=True)
    assert found.damage is not None
    whole = examine(clean, full=True)
    second = np.flatnonzero(whole.columns.flags & PacketFlag.KEY)[1]
    assert found.damage == (range(0, whole.order.tolist().index(second)),)


def test_failed_packet_marks_dependent_frames(tmp_path: Path) -> None:
    clean = made(tmp_path, "h264")
    path = clean.with_name("cut.mp4")
    position, size = packets_of(clean)[5]
    data = bytearray(clean.read_bytes())
    data[position : position + size] = b"\xff" * size
    path.write_bytes(data)
    _, failed = decoded(path)
    assert 5 in failed
    found = examine(path, full=True)
    assert len(found.order) == FRAMES - 1
    assert marked(found) == set(range(6, 15))


def test_lost_reference_is_noticed(tmp_path: Path) -> None:
    clean = make_clip(
        tmp_path / "a.mkv",
        "libx264",
        options={"g": "15", "bf": "0", "preset": "ultrafast"},
        frames=FRAMES,
    )
    path = tmp_path / "lost.mkv"
    with av.open(str(clean)) as source, av.open(str(path), "w") as target:
        old = source.streams.video[0]
        new = target.add_stream_from_template(old)
        for number, packet in enumerate(source.demux(old)):
            if packet.size and number not in (20, 29):
                packet.stream = new
                target.mux(packet)
    assert marked(examine(path, full=True)) == set(range(20, 28))  # no frame needs the other
    assert examine(clean, full=True).damage == ()


@given(
    hit=st.sets(st.integers(0, 19), max_size=4),
    keys=st.sets(st.integers(0, 19)),
    disposable=st.sets(st.integers(0, 19)),
)
def test_damage_spreads_through_the_gop(
    hit: set[int], keys: set[int], disposable: set[int]
) -> None:
    flags = np.zeros(20, np.uint8)
    flags[list(keys | {0})] |= np.uint8(PacketFlag.KEY)
    if disposable:
        flags[list(disposable)] |= np.uint8(PacketFlag.DISPOSABLE)
    numbers = np.arange(20, dtype=np.int64)
    columns = PacketColumns(numbers, numbers, numbers, numbers, flags)
    notes = DamageCollector("h264", [])
    notes.packets |= hit
    expected, reaches = [], False
    for packet in range(20):
        if packet in keys | {0}:
            reaches = False
        if reaches or packet in hit:
            expected.append(packet)
        reaches |= packet in hit and packet not in disposable
    assert damaged_frames("h264", columns, numbers, notes).tolist() == expected
    assert damaged_frames("prores", columns, numbers, notes).tolist() == sorted(hit)


def test_leading_frames_depend_on_both_sides() -> None:
    pts = np.array([0, 1, 2, 6, 4, 5, 7], np.int64)  # 4 and 5 lead the key frame at 6
    flags = np.zeros(7, np.uint8)
    flags[[0, 3]] = PacketFlag.KEY
    columns = PacketColumns(pts, pts, pts, pts, flags)
    order = np.argsort(pts)
    for hit, expected in (({2}, [2, 3, 4]), ({3}, [3, 4, 5, 6]), ({4}, [3, 4])):
        notes = DamageCollector("hevc", [])
        notes.packets |= hit
        assert damaged_frames("hevc", columns, order, notes).tolist() == expected


def test_sandbox_reports_damage(tmp_path: Path) -> None:
    path = damaged(made(tmp_path, "mpeg2"), "mpeg2")
    found = examine(path, full=True)
    size = path.stat().st_size
    packed = pack_examination(found)
    assert unpack_examination(packed, size).damage == found.damage
    assert found.damage
    first = f"[{found.damage[0].start}, {found.damage[0].stop}]".encode()
    for wrong in (b"[-1, 3]", b"[5, 5]", b"[0, 99]"):
        changed = packed.replace(first, wrong.ljust(len(first))[: max(len(first), len(wrong))])
        if len(changed) == len(packed):
            with pytest.raises(IntegrityError):
                unpack_examination(changed, size)


# --------------------------------------------------------------------------------------- reads


@pytest.fixture(scope="module")
def h264(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ingest trusts this container, and does not decode it in full."""
    folder = tmp_path_factory.mktemp("damage")
    return damaged(made(folder, "h264"), "h264")


@pytest.fixture
def video(store: Store, h264: Path) -> Video:
    return store.ingest(h264, "a.mp4")


def test_read_of_damaged_frame_examines_the_whole_video(
    video: Video, h264: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert video.original.damaged_frames is None
    expected = examine(h264, full=True).damage
    assert expected
    with caplog.at_level(logging.WARNING):
        found = video.read()
        assert np.array_equal(found.damaged, in_ranges(found.index, expected))
        assert found[found.damaged].damaged.all()
        assert [frame.damaged for frame in video.iterate()] == found.damaged.tolist()
        assert found[int(found.index[found.damaged][0])].damaged
        numbers = list(range(len(video)))
        random.Random(1).shuffle(numbers)
        for number in numbers[:20]:
            assert video[number].damaged == found.damaged[number]
        assert np.array_equal(video.frames(numbers).damaged, found.damaged[numbers])
    assert video.damaged_frames().tolist() == np.flatnonzero(found.damaged).tolist()
    warnings = [one for one in caplog.records if "frames are damaged" in one.message]
    assert len(warnings) == 1


def test_stream_marks_damage_on_first_read(video: Video) -> None:
    given = [frame.damaged for frame in video.iterate()]
    assert given == video.read().damaged.tolist()
    assert any(given)


def test_skip_and_raise(video: Video) -> None:
    whole = video.read()
    rest = video.read(damaged="skip")
    assert np.array_equal(rest.index, whole.index[~whole.damaged])
    assert not rest.damaged.any()
    assert np.array_equal(rest.data, whole.data[~whole.damaged])
    assert [one.index for one in video.iterate(damaged="skip")] == rest.index.tolist()
    first = int(whole.index[whole.damaged][0])
    with pytest.raises(DamagedFramesError, match=f"frame {first} is damaged") as raised:
        video.read(damaged="raise")
    assert raised.value.exit_code == 13
    assert len(video.read(frames=range(first), damaged="raise")) == first
    given = []
    with pytest.raises(DamagedFramesError):
        given += [one.index for one in video.iterate(damaged="raise")]
    for wrong in ("hide", None, True):
        with pytest.raises(UsageError, match="show, raise or skip"):
            video.read(damaged=wrong)  # type: ignore[arg-type]


def test_raise_examines_first(store: Store, h264: Path) -> None:
    fresh = store.ingest(h264, "b.mp4")
    with pytest.raises(DamagedFramesError):
        fresh.read(damaged="raise")
    assert store["b.mp4"].original.damaged_frames


def test_command_leaves_damaged_frames_out(video: Video, store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    root = str(store.parts.directory.location)
    read = ("-s", root, "read", "a.mp4", str(out), "--replace")
    whole = run_command(*read, "--json").object
    assert whole["frames"] == len(video)
    done = run_command(*read, "--json", "--damaged", "skip")
    damaged = video.damaged_frames()
    assert done.object["frames"] == len(video) - len(damaged) == len(np.load(out))
    assert done.object["damaged"] == 0
    assert run_command(*read, "--damaged", "raise").code == 13
    assert run_command(*read, "--damaged", "raise", "--frames", f"0:{damaged[0]}").code == 0
    movie = ("-s", root, "read", "a.mp4", str(tmp_path / "out.mp4"))
    assert run_command(*movie, "--damaged", "skip").code == UsageError.exit_code
    assert run_command(*movie, "--damaged", "raise").code == 13
    assert not (tmp_path / "out.mp4").exists()
    one = ("--frames", str(damaged[0]))
    assert run_command(*read, "--damaged", "skip", *one).code == OutOfRangeError.exit_code


def test_attribute_counts_damaged_frames(video: Video, store: Store) -> None:
    it = Driver(Filesystem(store.parts))
    assert "user.vfsd.damaged_frames" not in it.fs.listxattr("/a.mp4")
    count = len(video.damaged_frames())
    assert "user.vfsd.damaged_frames" in it.fs.listxattr("/a.mp4")
    assert it.fs.getxattr("/a.mp4", "user.vfsd.damaged_frames") == str(count).encode()
    it.fs.close()


def test_undamaged_file_has_no_damaged_frames(store: Store, tmp_path: Path) -> None:
    video = store.ingest(made(tmp_path, "h264"))
    assert not video.read().damaged.any()
    assert video.original.damaged_frames is None  # not examined yet
    assert video.damaged_frames().tolist() == []
    assert video.original.damaged_frames == 0
    assert len(video.read(damaged="skip")) == FRAMES


def test_another_process_has_examined_it(store: Store, tmp_path: Path) -> None:
    here = store.ingest(damaged(made(tmp_path, "ffv1"), "ffv1"), "a.mkv")
    if here.original.damaged_frames is not None:
        pytest.skip("its ingest has decoded it in full")
    other = store["a.mkv"]
    assert not other.verify()
    expected = other.damaged_frames()
    assert here.original.damaged_frames is None
    assert here.frames([int(expected[0])]).damaged.all()


def test_read_only_store_reports_damage(tmp_path: Path, h264: Path) -> None:
    with new_store(tmp_path / "s") as store:
        store.ingest(h264, "a.mp4")
    with Store.open(tmp_path / "s", read_only=True) as store:
        found = store["a.mp4"].read()
        assert found.damaged.any()
    with Store.open(tmp_path / "s") as store:
        assert store["a.mp4"].original.damaged_frames is None


def test_tiles_show_the_same_damage(store: Store, tmp_path: Path) -> None:
    name, encoder, options, layout = CODECS["mpeg2"]
    clean = make_clip(
        *(tmp_path / name, encoder),
        options=options,
        pixel_format=layout,
        frames=FRAMES,
        width=256,
        height=128,
    )
    video = store.ingest(damaged(clean, "mpeg2"))
    expected = video.damaged_frames()
    video.tiles.retile("uniform:2x2")
    found = video.read(region=(0, 0, 48, 32))
    assert len(expected)
    assert np.flatnonzero(found.damaged).tolist() == expected.tolist()


# --------------------------------------------------------------------------- catalog and views


def test_replacement_keeps_known_damage(video: Video) -> None:
    video.verify()
    original = video.original
    with context_of(video).parts.catalog.writing() as change:
        videos = Videos(change.videos._connection)
        pages = list(videos.pages(original.id))
        change.objects.record("9" * 64, 5, now_ns=1)
        kept = videos.replace_original(video.info.id, original, pages, digest=video.info.digest)
        assert kept.original.damage == original.damage


def test_video_of_old_catalog_is_examined_again(store: Store, h264: Path) -> None:
    video = store.ingest(h264, "a.mp4")
    video.verify()
    assert store.catalog.unverified() == []
    with store.catalog.writing() as change:
        change.videos.mark_verified(video.original.id, None)  # as a catalog without damage
    assert [one.name for one in store.catalog.unverified()] == ["a.mp4"]
    assert store["a.mp4"].verify() is False
    assert store["a.mp4"].original.damaged_frames


def test_views_report_damage(video: Video) -> None:
    def told(path: str) -> dict[str, object]:
        with video.views.open(path) as file:
            content: dict[str, object] = json.loads(file.read())
        return content

    assert told("info.json")["damaged_frames"] is None
    assert told("explain/full.mp4.json")["damaged"] is None
    expected = video.damaged_frames()
    info = told("info.json")
    assert info["damaged_frames"] == len(expected)
    assert told("explain/full.mp4.json")["damaged"] == len(expected)
    assert told("explain/codec=ffv1.mkv.json")["damaged"] == len(expected)
    first = int(expected[0])
    assert told(f"explain/frames/{first:06}.png.json")["damaged"] == 1
    assert told("explain/frames/000000.png.json")["damaged"] == int(0 in expected)
    assert told(f"explain/frames=0-{first}.y4m.json")["damaged"] == 0
