"""Segments encoded for a view become a rendition that serves other reads and views."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.reformatter import Interpolation

from sample_videos import FOLDER
from tests.read.test_chroma_location import ROUNDING, TOLD_NOTHING, clip, least_psnr
from tests.support.color_clips import HEIGHT, WIDTH
from tests.support.selection import covering, one_in
from tests.support.stores import new_store
from tests.views.conftest import Shelf, decoded
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.model import MeasuredCost
from vfsd.core.process_control import host_name
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.view_cache_dir import is_slot
from vfsd.maintenance import fsck
from vfsd.tiling.cost import DecodeCost
from vfsd.views import Views

VIEW = "size=160x120.mp4"
NAME = "mpeg4.avi"


@contextmanager
def filled(folder: Path, settings: StoreSettings) -> Iterator[Shelf]:
    """A store with one video of 320x240."""
    with new_store(folder / "store") as store:
        settings.save(store.parts.directory.settings)
        store.ingest(FOLDER / NAME, NAME).verify()
        make_dear(store)
    with Store.open(folder / "store") as store:
        views = Views(store.parts, store.tools)
        yield Shelf(store, views)
        views.close()


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    with filled(tmp_path, StoreSettings()) as opened:
        yield opened


def make_dear(store: Store, codec: str = "mpeg4") -> None:
    """Raise the cost of the original: for such small frames it hardly exceeds that of a
    rendition."""
    cost = DecodeCost(0.01, 0.01, 0, 0)
    with store.catalog.writing() as change:
        change.costs.put(MeasuredCost(host_name(), codec, cost, None, 1, 1, "test", 1))


def renditions(shelf: Shelf) -> list[range]:
    return [one.frames for one in shelf.store.catalog.renditions(shelf.video(NAME).info)]


def often(shelf: Shelf, view: str = VIEW) -> bytes:
    """Read a view so often that keeping its segments pays off."""
    for _ in range(3):
        data = shelf.read(NAME, view)
    return data


def psnr_of_luma(found: list[np.ndarray], exact: list[np.ndarray]) -> float:
    errors = [np.square(a.astype(float) - b).mean() for a, b in zip(found, exact, strict=True)]
    return 10 * math.log10(255**2 / max(float(np.mean(errors)), 1e-9))


def exact_luma(video: Video, size: tuple[int, int]) -> list[np.ndarray]:
    """Luma decoded from the original, without vfsd's planner."""
    data = video.read(size=size, format="yuv420p", psnr=math.inf).data
    return list(data[:, : size[1]])


def test_promoted_view_serves_other_reads(shelf: Shelf) -> None:
    before = often(shelf)
    made = shelf.store.tune()
    video = shelf.video(NAME)
    there = shelf.store.catalog.renditions(video.info)
    assert [frame for one in there for frame in one.frames] == list(range(len(video)))
    assert {one.profile for one in there} == {"h264"}
    assert len(made) == len(there)
    plan = video.explain(size=(160, 120)).plan
    assert not plan.runs, "nothing comes from the original"
    assert plan.contiguous is None
    found = video.read(size=(160, 120), format="yuv420p")
    assert found.psnr == min(one.cells[0].planes for one in there)
    assert 38 <= found.psnr < 100
    exact = exact_luma(video, (160, 120))
    for one in there:  # check the recorded quality of each segment
        mine = slice(one.first_frame, one.end_frame)
        luma = list(found.data[mine, :120])
        assert psnr_of_luma(luma, exact[mine]) == pytest.approx(one.psnr, abs=0.01)
    assert shelf.read(NAME, VIEW) == before


def directly(path: Path, size: tuple[int, int], form: str) -> np.ndarray:
    """FFmpeg's output for all frames of a file."""
    found = []
    with av.open(str(path)) as opened:
        for picture in opened.decode(video=0):
            if 2 * size[0] <= picture.width:
                scaled = picture.reformat(*size, "gbrp", interpolation=Interpolation.AREA)
                found.append(scaled.reformat(format=form).to_ndarray())
            else:
                scaled = picture.reformat(*size, form, interpolation=Interpolation.BICUBIC)
                found.append(scaled.to_ndarray())
    return np.stack(found)


@pytest.mark.parametrize("form", one_in(4, ["rgb24", "bgr24"]))
@pytest.mark.parametrize(("size", "code"), covering(1, [(160, 120), (240, 180)], ["h264", "av1"]))
def test_promoted_rendition_reaches_its_reported_psnr(
    tmp_path: Path, code: str, size: tuple[int, int], form: str
) -> None:
    with filled(tmp_path, StoreSettings(minimum_psnr=30)) as shelf:
        often(shelf, f"size={size[0]}x{size[1]},codec={code}.mkv")
        shelf.store.tune()
        video = shelf.video(NAME)
        exact = directly(FOLDER / NAME, size, form)
        assert np.array_equal(video.read(size=size, format=form, psnr=math.inf).data, exact)
        there = shelf.store.catalog.renditions(video.info)
        assert sum(len(one.frames) for one in there) == len(video)
        for one in there:
            mine = slice(one.first_frame, one.end_frame)
            told = one.cells[0].colour
            assert told > 20
            plan = video.explain(frames=mine, size=size, format=form, psnr=told).plan
            assert plan.contiguous is None
            assert not plan.runs
            assert not video.explain(
                frames=mine, size=size, format=form, psnr=told + 0.1
            ).plan.tiled
            found = video.read(frames=mine, size=size, format=form, psnr=told)
            assert found.psnr == told
            assert least_psnr(found.data, exact[mine], 255) >= told - ROUNDING


def test_promoted_rendition_keeps_the_chroma_location(store: Store, tmp_path: Path) -> None:
    """The packets of a view do not signal it."""
    StoreSettings(minimum_psnr=20).save(store.parts.directory.settings)
    path, size = tmp_path / "a.mkv", (WIDTH // 2, HEIGHT // 2)
    clip(store, path, TOLD_NOTHING, "yuv420p", waves(8)).verify()
    with Store.open(store.parts.directory.root) as again:
        make_dear(again, "ffv1")
        views = Views(again.parts, again.tools)
        shelf = Shelf(again, views)
        for _ in range(3):
            shelf.read("a.mkv", f"size={size[0]}x{size[1]}.mp4")
        again.tune()
        views.close()
        video = again["a.mkv"]
        assert len(again.catalog.renditions(video.info)) > 0
        assert video.explain(size=size, format="yuv444p").plan.tiled
        found, exact = (
            video.read(size=size, format="yuv444p", psnr=psnr) for psnr in (None, math.inf)
        )
        assert least_psnr(found.data, exact.data, 255) > 36, "a quarter of a pixel off it has 30"


def waves(count: int) -> list[av.VideoFrame]:
    """Chroma that oscillates along each row."""
    columns = np.arange(WIDTH // 2)
    luma = np.full((HEIGHT, WIDTH), 120, np.uint8)
    chroma = np.tile(128 + 60 * np.sin(columns * math.pi / 8), (HEIGHT // 2, 1)).astype(np.uint8)
    planes = [luma.reshape(-1), chroma.reshape(-1), chroma.reshape(-1)]
    samples = np.concatenate(planes).reshape(-1, WIDTH)
    return [av.VideoFrame.from_ndarray(samples, format="yuv420p") for _ in range(count)]


def test_views_in_other_containers_have_the_same_packets(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = decoded(often(shelf))
    shelf.store.tune()
    monkeypatch.setattr("vfsd.views.transcode.encode_pictures", None)  # no more encoding
    for name in ("size=160x120.mkv", "size=160x120.h264", VIEW):
        again = decoded(shelf.read(NAME, name))
        assert len(again) == len(first)
        assert all(
            (a.to_ndarray() == b.to_ndarray()).all() for a, b in zip(again, first, strict=True)
        )


def test_promoted_bytes_are_stored_once(shelf: Shelf) -> None:
    data = often(shelf)
    cache = shelf.store.parts.directory.cache
    assert bytes_below(cache) > len(data) // 4
    shelf.store.tune()
    assert bytes_below(cache) == 0, "the cache has given them up"
    shelf.read(NAME, VIEW)
    assert bytes_below(cache) == 0, "and does not take them again"


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_other_views_stay_cached(shelf: Shelf) -> None:
    other = "roi=100x100+20+20.mp4"
    shelf.read(NAME, other)
    cache = shelf.store.parts.directory.cache
    before = {path for path in cache.rglob("*") if path.is_file()}
    often(shelf)
    shelf.store.tune()
    views = Views(shelf.store.parts, shelf.store.tools)  # with empty caches
    Shelf(shelf.store, views).read(NAME, other)
    views.close()
    assert {path for path in cache.rglob("*") if path.is_file()} == before


def test_views_are_readable_after_eviction(shelf: Shelf) -> None:
    before = decoded(often(shelf))
    shelf.store.tune()
    video = shelf.video(NAME)
    opened = shelf.open(NAME, VIEW)  # while the packs exist
    gone = video.budget.set("0M")
    assert len(gone) > 0
    assert renditions(shelf) == []
    data = bytearray(opened.size)
    assert opened.readinto(memoryview(data), 0) == len(data)
    opened.close()
    for found in (decoded(bytes(data)), decoded(shelf.read(NAME, VIEW))):
        assert len(found) == len(before)
    assert {one.why for one in video.budget.evictions()} == {"video"}
    assert {one.profile for one in video.budget.evictions()} == {"h264"}


def test_promotion_stays_within_the_budget(shelf: Shelf) -> None:
    often(shelf)
    video = shelf.video(NAME)
    shelf.store.tools.read_log.flush()
    some = shelf.store.proposals()
    limit = sum(one.bytes for one in some) // 2
    video.budget.set(limit)
    shelf.store.tune()
    usage = video.budget.usage()
    assert 0 < usage.renditions <= limit
    assert usage.used <= limit
    assert 0 < len(renditions(shelf)) < len(some)


def test_quality_limits_apply(shelf: Shelf) -> None:
    often(shelf)
    shelf.store.tune()
    video = shelf.video(NAME)
    least = min(one.psnr for one in shelf.store.catalog.renditions(video.info))
    asked = math.floor(least) + 1.0
    for psnr in (math.inf, 60.0):
        assert not video.explain(size=(160, 120), psnr=psnr).plan.tiled
    assert video.read(size=(160, 120), psnr=asked).psnr >= asked


@pytest.mark.parametrize(
    "settings", [StoreSettings(minimum_psnr=59), StoreSettings(admit_views=False)]
)
def test_coarse_or_unwanted_segments_are_not_promoted(
    tmp_path: Path, settings: StoreSettings
) -> None:
    with filled(tmp_path, settings) as shelf:
        often(shelf)
        shelf.store.tools.read_log.flush()
        assert [one for one in shelf.store.proposals() if one.candidate is not None] == []


def test_damaged_cache_is_not_promoted(shelf: Shelf) -> None:
    often(shelf)
    shelf.store.tools.read_log.flush()
    for path in shelf.store.parts.directory.cache.rglob("*"):
        if path.is_file() and is_slot(f"{path.parent.name}/{path.name}"):
            data = bytearray(path.read_bytes())
            data[-20] ^= 255
            path.write_bytes(data)
    shelf.store.tune()
    profiles = {one.profile for one in shelf.store.catalog.renditions(shelf.video(NAME).info)}
    assert profiles <= {"fast"}, "made from the original, if at all"


def test_undone_promotion_is_not_proposed_again(shelf: Shelf) -> None:
    often(shelf)
    for decision in shelf.store.tune():
        shelf.store.undo(decision.id)
    assert renditions(shelf) == []
    assert shelf.store.proposals() == []


@pytest.mark.parametrize("code", ["hevc", "av1"])
def test_promotion_of_other_codecs(tmp_path: Path, code: str) -> None:
    with filled(tmp_path, StoreSettings(minimum_psnr=30)) as shelf:
        often(shelf, f"size=160x120,codec={code}.mkv")
        shelf.store.tune()
        video = shelf.video(NAME)
        (first, *_) = shelf.store.catalog.renditions(video.info)
        assert first.profile == code
        found = video.read(frames=first.frames, size=(160, 120), format="yuv420p")
        assert found.psnr == first.cells[0].planes
        exact = exact_luma(video, (160, 120))[: len(first.frames)]
        assert psnr_of_luma(list(found.data[:, :120]), exact) == pytest.approx(first.psnr, abs=0.01)


@pytest.mark.thorough
def test_promotion_by_two_processes_and_a_kill(shelf: Shelf) -> None:
    often(shelf)
    shelf.store.tools.read_log.flush()
    place = str(shelf.store.parts.directory.root)
    command = [sys.executable, "-m", "tests.support.tuning", place]
    killed = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "tuning\n"
    killed.stdout.readline()  # it has promoted one, and is at the next
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    assert [one for one in fsck.run(shelf.store.parts) if one.check != "garbage"] == []
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    frames = [frame for one in renditions(shelf) for frame in one]
    assert frames == list(range(len(shelf.video(NAME)))), "each once"
    assert [one for one in fsck.run(shelf.store.parts) if one.check != "garbage"] == []
