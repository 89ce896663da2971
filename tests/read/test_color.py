"""Streams that change the meaning of Y, U and V between frames."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from sample_videos.cameras import Cameras, FilmedScene, write_pictures
from tests.support import color_clips as codings
from tests.support.color_clips import (
    FULL_601,
    FULL_709,
    FULL_UNTOLD,
    LIMITED_601,
    LIMITED_709,
    UNTOLD,
    Coding,
    concatenated,
    shown,
)
from tests.support.selection import one_in
from tests.views.conftest import Shelf
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.frames.color import frame_coding, frame_colors, media_coding
from vfsd.core.model import MeasuredCost
from vfsd.core.process_control import host_name
from vfsd.derive.import_rendition import frames_to_stored_format
from vfsd.derive.tile_encoder import TileSettings
from vfsd.errors import RefusedMediaError, UsageError
from vfsd.overlap import join, overlaps
from vfsd.tiling.cost import DecodeCost
from vfsd.views import Views

FRAMES = 20
"""The number of frames in each part."""
SIZE = (64, 48)
CHANGES = {
    "range": [UNTOLD, FULL_UNTOLD],
    "range back": [FULL_709, LIMITED_709],
    "matrix": [LIMITED_601, LIMITED_709],
    "matrix that was not told": [UNTOLD, LIMITED_709],
    "both": [LIMITED_709, FULL_601],
    "both back": [FULL_601, LIMITED_709],
    "there and back": [LIMITED_601, FULL_709, LIMITED_601],
}

Pictures = np.ndarray[Any, np.dtype[np.uint8]]


def least_psnr(pictures: Pictures, wanted: Pictures) -> float:
    """PSNR of the worst frame."""
    assert pictures.shape == wanted.shape
    errors = np.square(pictures.astype(float) - wanted).mean(axis=(1, 2, 3))
    return 10 * math.log10(255**2 / max(float(errors.max()), 1e-9))


def decoded(path: Path | io.BytesIO) -> Pictures:
    """Frames as RGB, decoded by FFmpeg."""
    with av.open(path if isinstance(path, io.BytesIO) else str(path), mode="r") as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])


def truth(parts: int = 2) -> Pictures:
    return np.stack([shown(number) for number in range(parts * FRAMES)])


def mixed(store: Store, folder: Path, parts: list[Coding], name: str = "mixed.h264") -> Video:
    pictures = list(truth(len(parts)))
    codec = "hevc" if "hevc" in name else "h264"
    return store.ingest(concatenated(folder / name, parts, pictures, codec))


@pytest.fixture
def video(store: Store, tmp_path: Path) -> Video:
    return mixed(store, tmp_path, CHANGES["both"])


# -------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("change", "name"),
    one_in(
        3,
        [
            *((change, "mixed.h264") for change in CHANGES),
            *((change, "mixed.mp4") for change in ("range", "range back", "matrix")),
            ("both", "mixed.mkv"),
            ("both", "mixed.ts"),
        ],
    ),
)
def test_reads_use_the_color_properties_of_each_frame(
    store: Store, tmp_path: Path, change: str, name: str
) -> None:
    parts = CHANGES[change]
    video = mixed(store, tmp_path, parts, name)
    assert least_psnr(video.read().data, truth(len(parts))) > 41
    gray = video.read(format="gray").data
    wanted = truth(len(parts)) @ [0.299, 0.587, 0.114]
    limits = {"bt709": 8, "smpte170m": 2}  # luma of BT.709 differs
    for number, part in enumerate(parts):
        frames = slice(number * FRAMES, (number + 1) * FRAMES)
        limit = limits[part.matrix or "smpte170m"]
        assert np.abs(gray[frames, :, :, 0] - wanted[frames]).mean() < limit


def test_hevc_may_change_to_an_equivalent_pixel_format(store: Store, tmp_path: Path) -> None:
    video = mixed(store, tmp_path, CHANGES["both"], "mixed.hevc")
    assert least_psnr(video.read().data, truth()) > 41
    assert least_psnr(video.read(frames=[25, 3]).data, truth()[[25, 3]]) > 41


@pytest.mark.parametrize("threads", one_in(4, [1, 2]))
@pytest.mark.parametrize(
    "parts",
    [
        [UNTOLD, LIMITED_709],
        [LIMITED_709, UNTOLD],
        [UNTOLD, FULL_UNTOLD],
        [FULL_709, UNTOLD],
        [LIMITED_709, LIMITED_601, UNTOLD],
    ],
)
def test_earlier_frames_of_a_decoder_do_not_matter(
    store: Store, tmp_path: Path, parts: list[Coding], threads: int
) -> None:
    """If parameter sets do not signal them, a decoder keeps the previous values."""
    video = mixed(store, tmp_path, parts)
    original = video.original
    told = media_coding(original.media)

    def decoder() -> FrameDecoder:
        path = store.parts.originals.file_of(original)
        return FrameDecoder(path, original.media, original.access, context_of(video).table)

    with decoder() as one:
        stream = one.stream(threads=threads)
        wanted = {number: frame_coding(picture, told) for number, picture in stream}
    assert len(set(wanted.values())) == (1 if parts[-1] is UNTOLD and len(parts) == 2 else 2)
    frames = [number for number in (25, 5, 45, 25, 5) if number < len(wanted)]
    with decoder() as one:
        for frame in frames:
            ((_, picture),) = one.stream(frame, frame + 1, threads=threads)
            assert frame_coding(picture, told) == wanted[frame]
    with decoder() as one:
        for frame in frames:
            run = context_of(video).table.decode_run(frame)
            ((_, picture),) = one.decode(run, threads=threads)
            assert frame_coding(picture, told) == wanted[frame]


def test_gray_uses_the_properties_of_each_frame(store: Store, tmp_path: Path) -> None:
    video = mixed(store, tmp_path, CHANGES["range"])
    frames = [5, FRAMES + 5, 6, FRAMES + 6]
    together = video.read(frames=frames, format="gray").data
    alone = [video.read(frames=[frame], format="gray").data[0] for frame in frames]
    assert all(np.array_equal(a, b) for a, b in zip(together, alone, strict=True))


# -------------------------------------------------------------------------------- views


@pytest.mark.parametrize(
    ("change", "asked"),
    one_in(
        4,
        [
            *((change, {"codec": "ffv1"}) for change in CHANGES),
            ("range", {"codec": "mjpeg"}),
            ("range back", {"codec": "hevc"}),
            ("matrix", {"codec": "h264", "region": (16, 16, 112, 80)}),
            ("both", {"codec": "av1", "size": SIZE}),
            ("both", {"codec": "mjpeg"}),
            ("there and back", {"codec": "h264", "fps": 10}),
        ],
    ),
    ids=str,
)
def test_encoded_views_equal_reads(
    store: Store, tmp_path: Path, change: str, asked: dict[str, Any]
) -> None:
    video = mixed(store, tmp_path, CHANGES[change])
    video.save(tmp_path / "view.mkv", **asked)
    form = {key: value for key, value in asked.items() if key != "codec"}
    found, wanted = decoded(tmp_path / "view.mkv"), video.read(**form).data
    assert least_psnr(found, wanted) > 37
    if asked == {"codec": "ffv1"}:  # converted frames differ by rounding only
        assert least_psnr(found, wanted) > 47
        assert np.array_equal(found[:FRAMES], wanted[:FRAMES])


def test_copied_views_equal_the_stream(store: Store, tmp_path: Path) -> None:
    for name in ("mixed.mp4", "mixed.mkv"):
        video = mixed(store, tmp_path, CHANGES["matrix"], name)
        for view in ("full.mp4", "full.mkv", "t=0.8-1.6.mkv"):
            with video.views.open(view) as file:
                found = decoded(io.BytesIO(file.read()))
            wanted = truth() if view.startswith("full") else truth()[20:40]
            assert least_psnr(found, wanted) > 41, view


@pytest.mark.parametrize("change", one_in(2, ["range", "range back", "matrix", "both"]))
def test_raw_views_have_one_color_coding(store: Store, tmp_path: Path, change: str) -> None:
    """Such a file signals the meaning of its samples once or not at all."""
    video = mixed(store, tmp_path, CHANGES[change])
    media = video.original.media
    full = 2 if media.color_range == "full" else 1
    space = {"bt709": 1}.get(media.color_space or "", 5)
    given = video.read(format="yuv420p").data
    with video.views.open("full.y4m") as file:
        assert f"XCOLORRANGE={'FULL' if full == 2 else 'LIMITED'}".encode() in file.read(200)
    with video.views.open("pix=yuv420p.raw") as file:
        assert file.read() == given.tobytes()
    made = []
    for planes in given:
        picture = av.VideoFrame.from_ndarray(planes, format="yuv420p")
        picture.color_range, picture.colorspace = full, space
        made.append(picture.reformat(format="rgb24", threads=1).to_ndarray())
    assert least_psnr(np.stack(made), video.read().data) > 47
    with av.open(str(tmp_path / "mixed.h264")) as file:
        as_stored = [frame.to_ndarray() for frame in file.decode(video=0)]
    assert np.array_equal(given[:FRAMES], as_stored[:FRAMES])


def test_stills_equal_reads(video: Video) -> None:
    wanted = video.read().data
    for number in (3, FRAMES + 3):
        still = video.read(frames=[number]).data
        assert np.array_equal(still[0], wanted[number])
        for crop in video.read(frames=[number], region=(10, 10, 60, 50)).data:
            assert least_psnr(crop[None], wanted[number : number + 1, 10:50, 10:60]) > 44


# -------------------------------------------------------------------------------- what is stored


@pytest.mark.parametrize("codec", ["fast", "lossless"])
@pytest.mark.parametrize("change", ["range", "matrix"])
def test_changing_colors_are_not_tiled_or_rendered(
    store: Store, tmp_path: Path, change: str, codec: str
) -> None:
    video = mixed(store, tmp_path, CHANGES[change])
    video.budget.set("none")
    before = video.read(psnr=math.inf).data
    with pytest.raises(UsageError, match="changes within the video"):
        video.tiles.retile("uniform:1x2", settings=TileSettings(codec))
    with pytest.raises(UsageError, match="changes within the video"):
        video.renditions.make(SIZE, settings=TileSettings(codec))
    assert np.array_equal(video.read().data, before)
    with pytest.raises(RefusedMediaError, match="changes at frame 20"):
        video.renditions.write(
            video.read(size=SIZE, format="yuv420p").data, size=SIZE, format="yuv420p"
        )


def test_views_with_converted_frames_are_not_promoted(store: Store, tmp_path: Path) -> None:
    """Renditions are checked by PSNR, which would hide the rounding."""
    pictures = [shown(number) for number in range(100)]
    path = concatenated(tmp_path / "long.mp4", [LIMITED_601, LIMITED_709], pictures)
    video = store.ingest(path)
    video.budget.set("none")
    dear = MeasuredCost(host_name(), "h264", DecodeCost(0.01, 0.01, 0, 0), None, 1, 1, "test", 1)
    with store.catalog.writing() as change:
        change.costs.put(dear)
    views = Views(store.parts, store.tools)
    for _ in range(3):  # so often that keeping the segments pays off
        Shelf(store, views).read("long.mp4", "size=64x48.mp4")
    views.close()
    failed: list[str] = []
    store.tune(on_failed=lambda _, error: failed.append(str(error)))
    made = [one.frames for one in store.catalog.renditions(video.info)]
    assert made
    assert all("changes within the video" in one for one in failed)
    assert max(frames.stop for frames in made) <= 50


@pytest.mark.parametrize("change", one_in(3, ["range", "matrix", "both"]))
def test_original_with_changing_colors_is_not_replaced(
    store: Store, tmp_path: Path, change: str
) -> None:
    """The new file would signal the meaning of all samples only once."""
    video = mixed(store, tmp_path, CHANGES[change], "mixed.mp4")
    video.policy.set("original=replaceable,psnr=30")
    before = video.read().data
    with pytest.raises(RefusedMediaError, match="change at frame 20"):
        video.policy.replace_original(codec="hevc")
    assert np.array_equal(video.read().data, before)


@pytest.mark.thorough
def test_runs_with_different_colors_are_not_joined(store: Store, tmp_path: Path) -> None:
    filmed = FilmedScene.of(Cameras(overlap=0.6), frames=40, seed=1)
    write_pictures(tmp_path / "west.mp4", map(filmed.left, range(40)))
    right = [filmed.right(number) for number in range(40)]
    concatenated(tmp_path / "east.mp4", [UNTOLD, FULL_UNTOLD], right)
    for name in ("west.mp4", "east.mp4"):
        store.ingest(tmp_path / name)
    report = join(store, "east.mp4", "west.mp4", seconds_each=0.4)
    assert report.reasons["the color coding changes between pictures"] > 0
    assert report.joined
    for run in report.joined:
        east = run.frames.left if report.left == "east.mp4" else run.frames.right
        assert east.stop <= FRAMES
    for name in ("west.mp4", "east.mp4"):
        best = store[name].read(psnr=math.inf).data
        assert least_psnr(store[name].read(psnr=25).data, best) > 25


@pytest.mark.thorough
def test_cameras_with_different_color_coding_are_not_joined(store: Store, tmp_path: Path) -> None:
    filmed = FilmedScene.of(Cameras(overlap=0.6), frames=30, seed=1)
    pictures = ([filmed.left(n) for n in range(30)], [filmed.right(n) for n in range(30)])
    for name, coding, shots in zip(
        ("west.mp4", "east.mp4"), (LIMITED_601, LIMITED_709), pictures, strict=True
    ):
        store.ingest(concatenated(tmp_path / name, [coding], shots))
    (pair,) = overlaps(store).pairs  # still found, since the search uses RGB
    assert {pair.left.name, pair.right.name} == {"west.mp4", "east.mp4"}
    with pytest.raises(UsageError, match="must have the same color coding"):
        join(store, "west.mp4", "east.mp4")


def test_imported_frames_are_converted_to_the_matrix_of_the_video(video: Video) -> None:
    media = video.original.media
    given = [codings.coded(shown(number), FULL_601) for number in range(3)]
    for picture in given:
        picture.color_range, picture.colorspace = 2, 6
    made = list(frames_to_stored_format(iter(given), media))
    assert [frame_colors(one)[0] for one in made] == [media_coding(media)] * 3
    found: Pictures = np.stack(
        [one.reformat(format="rgb24", threads=1).to_ndarray() for one in made]
    )
    assert least_psnr(found, truth(1)[:3]) > 41


def test_frames_of_another_size_are_scaled(store: Store, tmp_path: Path) -> None:
    large = [shown(number) for number in range(FRAMES)]
    small = [picture[:64, :96] for picture in large]
    video = store.ingest(concatenated(tmp_path / "a.h264", [UNTOLD, UNTOLD], large + small))
    assert {frame.data.shape for frame in video.iterate()} == {(96, 128, 3)}


def test_generated_file_signals_its_coding(tmp_path: Path) -> None:
    for coding in (UNTOLD, LIMITED_709, FULL_601):
        path = codings.part(tmp_path / "part", coding, list(truth(1)))
        assert least_psnr(decoded(path), truth(1)) > 41
