"""Raw views: exactly the pixels of a read by the library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from av.video.reformatter import Interpolation

from sample_videos import CLIPS, FOLDER
from tests.support.composed_tiles import take_tiles
from tests.support.selection import one_in
from tests.support.stores import new_store
from tests.views.conftest import Shelf, decoded
from tests.views.test_players import psnr
from vfsd.api.reading import plan_view
from vfsd.api.video import Video, context_of
from vfsd.codecs.frames.planes import plane_bytes, plane_samples
from vfsd.core.view_request import View
from vfsd.derive.tile_encoder import TileSettings
from vfsd.errors import UsageError


@pytest.mark.parametrize("name", one_in(4, CLIPS))
def test_rgb_equals_read(shelf: Shelf, name: str) -> None:
    data = shelf.read(name, "full.rgb")
    assert data == shelf.video(name).read().data.tobytes()


@pytest.mark.parametrize(
    ("path", "arguments"),
    one_in(
        3,
        [
            ("pix=bgr24.raw", {"format": "bgr24"}),
            ("pix=gray.raw", {"format": "gray"}),
            ("full.yuv", {"format": "yuv420p"}),
            ("pix=yuv422p.raw", {"format": "yuv422p"}),
            ("t=1-2.rgb", {"span": (1, 2)}),
            ("t=1.02-1.5,roi=101x53+31+17.rgb", {"span": (1.02, 1.5), "region": (31, 17, 132, 70)}),
            ("roi=100x52+31+17.yuv", {"format": "yuv420p", "region": (31, 17, 131, 69)}),
            ("frames=10-40-7,size=64x48.rgb", {"frames": range(10, 40, 7), "size": (64, 48)}),
            ("fps=7,size=80x0.rgb", {"fps": 7, "size": (80, 60)}),
            ("t=0.5-1,fps=70.rgb", {"span": (0.5, 1), "fps": 70}),
            ("80x60s1e3x40y30.rgb", {"span": (1, 3), "region": (0, 0, 160, 120), "size": (40, 30)}),
        ],
    ),
)
def test_raw_views_equal_read(shelf: Shelf, path: str, arguments: dict[str, object]) -> None:
    for name in ("traffic.mp4", "open-gop.mkv"):
        video = shelf.video(name)
        wanted = video.read(**arguments).data.tobytes()  # type: ignore[arg-type]
        assert shelf.size(name, path) == len(wanted)
        assert shelf.read(name, path) == wanted


def test_crop_of_the_vfs_paper_is_cut_from_the_scaled_frame(shelf: Shelf) -> None:
    """Only pixels that scaling filters take from beyond its inner edges differ."""
    data = shelf.read("traffic.mp4", "160x120s1e2.rgb")
    part = shelf.read("traffic.mp4", "160x120s1e2x80-160y0-60.rgb")
    whole = np.frombuffer(data, np.uint8).reshape(-1, 120, 160, 3)
    cut = np.frombuffer(part, np.uint8).reshape(-1, 60, 80, 3)
    assert np.array_equal(cut[:, :-8, 8:], whole[:, :52, 88:])
    assert psnr(cut, whole[:, :60, 80:]) > 40


def test_nv12_has_interleaved_chroma(shelf: Shelf) -> None:
    planar = shelf.video("traffic.mp4").read(format="yuv420p").data
    data = shelf.read("traffic.mp4", "pix=nv12.raw")
    mixed = np.frombuffer(data, np.uint8).reshape(planar.shape)
    assert np.array_equal(mixed[:, :240], planar[:, :240])
    chroma = mixed[:, 240:].reshape(len(mixed), -1)
    apart = planar[:, 240:].reshape(len(planar), 2, -1)
    assert np.array_equal(chroma[:, 0::2], apart[:, 0])
    assert np.array_equal(chroma[:, 1::2], apart[:, 1])


def test_y4m_has_a_line_before_each_frame(shelf: Shelf) -> None:
    data = shelf.read("traffic.mp4", "t=0-1.y4m")
    pictures = shelf.video("traffic.mp4").read(span=(0, 1), format="yuv420p").data
    head, _, rest = data.partition(b"\n")
    assert head.startswith(b"YUV4MPEG2 W320 H240 F30:1 ")
    assert rest == b"".join(b"FRAME\n" + picture.tobytes() for picture in pictures)


def test_odd_column_or_row_has_separate_chroma(shelf: Shelf) -> None:
    video = shelf.video("odd-size.webm")
    assert (video.width, video.height) == (321, 243)
    stored = decoded((FOLDER / "odd-size.webm").read_bytes())
    whole = [[plane[...] for plane in plane_samples(picture)] for picture in stored]
    assert whole[0][1].shape == (122, 161)
    right = b"".join(plane.tobytes() for planes in whole for plane in planes)
    assert shelf.read("odd-size.webm", "full.yuv") == right
    assert shelf.read("odd-size.webm", "full.y4m").replace(b"FRAME\n", b"").endswith(right)
    turns = b"".join(y.tobytes() + np.dstack((u, v)).tobytes() for y, u, v in whole)
    assert shelf.read("odd-size.webm", "pix=nv12.raw") == turns
    # This holds for regions that begin at a chroma sample.
    cut = b"".join(
        y[20:77, 10:111].tobytes() + u[10:39, 5:56].tobytes() + v[10:39, 5:56].tobytes()
        for y, u, v in whole
    )
    assert shelf.read("odd-size.webm", "roi=101x57+10+20.yuv") == cut
    assert shelf.size("odd-size.webm", "roi=1x1+5+5.yuv") == len(video) * 3
    assert shelf.size("odd-size.webm", "size=51x33.yuv") == len(video) * (51 * 33 + 2 * 26 * 17)


@pytest.mark.parametrize(
    "layout", one_in(3, ["yuv420p", "yuv422p", "yuv444p", "yuv420p10", "nv12"])
)
def test_planes_of_odd_frames_equal_ffmpeg(shelf: Shelf, layout: str) -> None:
    name = {"yuv420p10": "yuv420p10le"}.get(layout, layout)
    stored = decoded((FOLDER / "odd-size.webm").read_bytes())[:5]
    made = [
        picture.reformat(format=name, interpolation=Interpolation.BICUBIC, threads=1)
        for picture in stored
    ]
    right = b"".join(plane.tobytes() for picture in made for plane in plane_bytes(picture))
    assert shelf.read("odd-size.webm", f"frames=0-5,pix={layout}.raw") == right


def test_planes_of_odd_frames_equal_read(shelf: Shelf) -> None:
    """Only the part that arrays can hold is compared."""
    found = shelf.video("odd-size.webm").read(frames=range(5), format="yuv444p").data
    assert shelf.read("odd-size.webm", "frames=0-5,pix=yuv444p.raw") == found.tobytes()


def test_arrays_with_subsampled_chroma_need_even_sizes(shelf: Shelf) -> None:
    """Planes of odd sizes would have rows of different widths."""
    video = shelf.video("odd-size.webm")
    for layout in ("yuv420p", "yuv422p", "nv12"):
        with pytest.raises(UsageError, match="size must be even"):
            video.read(frames=range(1), format=layout)
    assert video.read(frames=range(1), format="yuv444p").data.shape == (1, 729, 321)


def test_tiles_of_odd_frames_include_the_last_column_and_row(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        video = store.ingest(FOLDER / "odd-size.webm")
        exact = read_all(video, "full.yuv")
        video.tiles.retile("uniform:2x2", settings=TileSettings(codec="small", psnr=40))
        take_tiles(store)
        sources = video.explain(region=(0, 0, 320, 242), format="yuv420p").sources
        assert all(source.segment is not None for source in sources)
        found = read_all(video, "full.yuv")
        assert found != exact
        shown, right = (
            np.frombuffer(one, np.uint8).reshape(len(video), -1)[:, : 321 * 243].reshape(-1, 321)
            for one in (found, exact)
        )
        assert psnr(shown[:, -1], right[:, -1]) > 30
        assert psnr(shown[242::243], right[242::243]) > 30


def read_all(video: Video, name: str) -> bytes:
    with video.views.open(name) as file:
        return file.read()


def test_implausible_sizes_are_refused(shelf: Shelf) -> None:
    for path in ("size=99999x99999.rgb", "fps=1001.rgb", "t=0-1,fps=999999.rgb"):
        with pytest.raises(UsageError):
            shelf.size("traffic.mp4", path)


def test_raw_view_has_the_size_of_its_pixels(shelf: Shelf) -> None:
    video = shelf.video("traffic.mp4")
    plan = plan_view(context_of(video), View())
    assert shelf.size("traffic.mp4", "full.rgb") == len(plan.frames) * 320 * 240 * 3
