"""Mirrored and rotated frames are displayed like by the `ffmpeg` command."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from sample_videos import FOLDER
from tests.support.display_matrix import ASKEW, MIRRORED, ORIENTATIONS, with_matrix
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.detections import Detection
from vfsd.core.frames import to_coded_layout, to_coded_rect, to_display_layout, to_display_rect
from vfsd.core.model import MediaInfo
from vfsd.derive.catalog_world import box_corners
from vfsd.derive.tile_encoder import TileSettings
from vfsd.disk.store_layout import CATALOG
from vfsd.errors import RefusedMediaError, UsageError
from vfsd.overlap.join_encoder import require_joinable
from vfsd.tiling import Rect, TileLayout

Samples = npt.NDArray[Any]
ALL = [*ORIENTATIONS, "askew"]


def clip(store: Store, folder: Path, way: str) -> tuple[Video, Path]:
    path = with_matrix(FOLDER / "portrait.mp4", folder / f"{way}.mp4", ORIENTATIONS.get(way, ASKEW))
    return store.ingest(path), path


def by_ffmpeg(path: Path, *options: str, pixel_format: str = "yuv420p") -> bytes:
    command = shutil.which("ffmpeg")
    if command is None:
        pytest.skip("there is no ffmpeg command")
    return subprocess.run(
        [
            *(command, "-nostdin", "-v", "error", "-i", str(path), *options),
            *("-pix_fmt", pixel_format, "-f", "rawvideo", "-"),
        ],
        capture_output=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("pixel_format", one_in(4, ["yuv420p", "rgb24", "gray"]))
@pytest.mark.parametrize("way", one_in(3, ORIENTATIONS))
def test_frames_equal_the_ffmpeg_command(
    store: Store, tmp_path: Path, way: str, pixel_format: str
) -> None:
    video, path = clip(store, tmp_path, way)
    assert video.original.media.mirrored == (way in MIRRORED)
    frames = video.read(format=pixel_format).data
    assert frames.tobytes() == by_ffmpeg(path, pixel_format=pixel_format)
    part = video.read(region=(32, 16, 96, 112), format=pixel_format).data
    cut = ("-vf", "crop=64:96:32:16")
    assert part.tobytes() == by_ffmpeg(path, *cut, pixel_format=pixel_format)


@pytest.mark.parametrize("way", one_in(4, ORIENTATIONS))
def test_views_equal_the_ffmpeg_command(store: Store, tmp_path: Path, way: str) -> None:
    video, path = clip(store, tmp_path, way)
    expected = by_ffmpeg(path)
    stored = tmp_path / "view"
    for view, is_exact in (("full.mp4", True), ("codec=ffv1.mkv", True), ("t=0-1.mp4", False)):
        with video.views.open(view) as file:
            stored.write_bytes(file.read())
        shown = by_ffmpeg(stored)
        assert shown == expected or not is_exact
        # Encoded views are only approximately equal.
        samples = np.frombuffer(shown, np.uint8).astype(int)
        difference = samples - np.frombuffer(expected, np.uint8)[: len(samples)]
        assert np.square(difference).mean() < 40
        if view == "full.mp4":
            with av.open(str(stored)) as opened, av.open(str(path)) as source:
                pairs = zip(opened.decode(video=0), source.decode(video=0), strict=True)
                assert all(one.rotation == other.rotation for one, other in pairs)


@pytest.mark.parametrize("way", ["askew", "hflip", "transpose"])
def test_rotation_is_recorded(store: Store, tmp_path: Path, way: str) -> None:
    video, _ = clip(store, tmp_path, way)
    media = video.original.media
    assert (media.rotation, media.mirrored) == {
        "askew": (0, False),
        "hflip": (0, True),
        "transpose": (270, True),
    }[way]
    assert any("rotated by 30 degrees" in note for note in video.original.notes) == (way == "askew")


@pytest.mark.parametrize("way", one_in(2, MIRRORED))
def test_tiles_and_boxes_use_display_coordinates(store: Store, tmp_path: Path, way: str) -> None:
    video, _ = clip(store, tmp_path, way)
    whole = video.read().data
    box = (16.0, 32.0, 64.0, 96.0)
    video.labels.add([Detection(number, "car", box) for number in range(len(video))], "me")
    settings = TileSettings("lossless")
    video.tiles.retile(video.tiles.around("car", alpha=1.0), settings=settings)
    region = (16, 32, 64, 96)
    found = video.explain(region=region)
    assert found.plan.tiled
    part = video.read(region=region).data
    np.testing.assert_array_equal(part, whole[:, 32:96, 16:64])
    for crop in video.scan("car").crops():
        np.testing.assert_array_equal(crop.data, whole[crop.frame, 32:96, 16:64])
    # A rendition serves reads of its size.
    half = (video.width // 2, video.height // 2)
    before = video.read(size=half).data
    video.renditions.make(half)
    assert video.explain(size=half).plan.tiled
    assert np.square(video.read(size=half).data.astype(int) - before).mean() < 40


@pytest.mark.parametrize("way", one_in(4, MIRRORED))
@pytest.mark.usefixtures("kvazaar")
def test_mirrored_video_is_stitched_into_mp4(store: Store, tmp_path: Path, way: str) -> None:
    video, _ = clip(store, tmp_path, way)
    video.tiles.retile("192+128x128+112", settings=TileSettings("stitchable"))
    shown = to_display_rect(Rect(0, 128, 192, 240), video.original.media)
    stored = tmp_path / "view.mp4"
    place = f"roi={shown.width}x{shown.height}+{shown.x1}+{shown.y1}"
    with video.views.open(f"{place}.mp4") as file:
        stored.write_bytes(file.read())
    with av.open(str(stored)) as opened:
        assert opened.streams.video[0].codec_context.name == "hevc"  # no other container can mirror
    region = (shown.x1, shown.y1, shown.x2, shown.y2)
    expected = video.read(region=region, format="yuv420p").data.reshape(-1).astype(int)
    found = np.frombuffer(by_ffmpeg(stored), np.uint8)
    assert np.square(found - expected).mean() < 40


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_coordinates_round_trip(rotation: int) -> None:
    lying = MediaInfo("mp4", "h264", None, 70, 40, "yuv420p", Fraction(1, 25), None)
    media = replace(lying, rotation=rotation, mirrored=True)
    picture = np.arange(70 * 40).reshape(40, 70)
    shown = np.rot90(np.fliplr(picture), -rotation // 90)
    region = Rect(3, 5, 14, 25)
    area = to_coded_rect(region, media)
    assert to_display_rect(area, media) == region
    inside = set(picture[area.y1 : area.y2, area.x1 : area.x2].ravel().tolist())
    assert inside == set(shown[5:25, 3:14].ravel().tolist())
    corners = np.array([[3.0, 5.0, 14.0, 25.0]])
    assert Rect(*box_corners(corners, media)[0].tolist()) == area
    layout = (
        TileLayout((10, 60), (15, 25)) if rotation % 180 == 0 else TileLayout((15, 25), (10, 60))
    )
    stored = to_coded_layout(layout, media)
    assert to_display_layout(stored, media) == layout
    tiles = {to_display_rect(tile, media) for tile in stored.tiles}
    assert tiles == set(layout.tiles)
    assert media.is_turned
    assert not lying.is_turned


def test_old_row_is_corrected_from_the_file(store: Store, tmp_path: Path) -> None:
    """Older catalogs do not record mirroring."""
    video, path = clip(store, tmp_path, "transpose")
    place = store.path / CATALOG
    with closing(sqlite3.connect(place)) as catalog, catalog:
        catalog.execute(
            "UPDATE physical_videos SET verified = 1, width = 320, height = 240, media = "
            "json_set(json_remove(media, '$.mirrored'), '$.rotation', 0)"
        )
    with Store.open(store.path) as again:
        old = again[video.name]
        assert (old.width, old.height, old.original.media.mirrored) == (320, 240, False)
        old.policy.set("original=replaceable,psnr=34")
        with pytest.raises(RefusedMediaError, match="rotation would become 270"):
            old.policy.replace_original()
        with old.views.open("frames=3-4,size=96x96.mp4") as file:
            before = file.read()
        assert old.verify()
        assert not old.verify()
        assert (old.width, old.height, old.original.media.mirrored) == (240, 320, True)
        with old.views.open("frames=3-4,size=96x96.mp4") as file:
            assert file.read() != before
        assert old.read(format="yuv420p").data.tobytes() == by_ffmpeg(path)


def test_mirrored_videos_are_not_joined() -> None:
    lying = MediaInfo("mp4", "h264", None, 64, 48, "yuv420p", Fraction(1, 25), None)
    require_joinable(lying, lying)
    with pytest.raises(UsageError, match="mirrored"):
        require_joinable(lying, replace(lying, mirrored=True))
