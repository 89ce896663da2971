"""Raw views: the pixels that the library reads, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from sample_videos import CLIPS
from tests.views.conftest import Shelf
from vfsd.errors import UsageError
from vfsd.view import View


@pytest.mark.parametrize("name", CLIPS)
def test_rgb_is_what_read_gives(shelf: Shelf, name: str) -> None:
    data = shelf.read(name, "full.rgb")
    assert data == shelf.video(name).read().data.tobytes()


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("pix=bgr24.raw", {"format": "bgr24"}),
        ("pix=gray.raw", {"format": "gray"}),
        ("full.yuv", {"format": "yuv420p"}),
        ("pix=yuv422p.raw", {"format": "yuv422p"}),
        ("t=1-2.rgb", {"span": (1, 2)}),
        ("t=1.02-1.5,roi=101x53+31+17.rgb", {"span": (1.02, 1.5), "region": (31, 17, 132, 70)}),
        ("roi=101x53+31+17.yuv", {"format": "yuv420p", "region": (31, 17, 131, 69)}),
        ("frames=10-40-7,size=64x48.rgb", {"frames": range(10, 40, 7), "size": (64, 48)}),
        ("fps=7,size=80x0.rgb", {"fps": 7, "size": (80, 60)}),
        ("t=0.5-1,fps=70.rgb", {"span": (0.5, 1), "fps": 70}),
        ("80x60s1e3x100y80.rgb", {"span": (1, 3), "region": (0, 0, 100, 80), "size": (80, 60)}),
    ],
)
def test_what_a_name_asks_for_is_what_read_gives(
    shelf: Shelf, path: str, arguments: dict[str, object]
) -> None:
    for name in ("traffic.mp4", "open-gop.mkv"):
        video = shelf.video(name)
        wanted = video.read(**arguments).data.tobytes()  # type: ignore[arg-type]
        assert shelf.size(name, path) == len(wanted)
        assert shelf.read(name, path) == wanted


def test_nv12_has_the_colours_in_turns(shelf: Shelf) -> None:
    planar = shelf.video("traffic.mp4").read(format="yuv420p").data
    mixed = np.frombuffer(shelf.read("traffic.mp4", "pix=nv12.raw"), np.uint8)
    mixed = mixed.reshape(planar.shape)
    assert np.array_equal(mixed[:, :240], planar[:, :240])
    chroma = mixed[:, 240:].reshape(len(mixed), -1)
    apart = planar[:, 240:].reshape(len(planar), 2, -1)
    assert np.array_equal(chroma[:, 0::2], apart[:, 0])
    assert np.array_equal(chroma[:, 1::2], apart[:, 1])


def test_y4m_puts_a_line_before_each_picture(shelf: Shelf) -> None:
    data = shelf.read("traffic.mp4", "t=0-1.y4m")
    pictures = shelf.video("traffic.mp4").read(span=(0, 1), format="yuv420p").data
    head, _, rest = data.partition(b"\n")
    assert head.startswith(b"YUV4MPEG2 W320 H240 F30:1 ")
    assert rest == b"".join(b"FRAME\n" + picture.tobytes() for picture in pictures)


def test_halved_colour_makes_sizes_even(shelf: Shelf) -> None:
    video = shelf.video("odd-size.webm")
    assert (video.width, video.height) == (321, 243)
    even = video.read(region=(0, 0, 320, 242), format="yuv420p").data
    assert shelf.read("odd-size.webm", "full.yuv") == even.tobytes()
    scaled = video.read(size=(50, 32), format="yuv420p").data
    assert shelf.read("odd-size.webm", "size=51x33.yuv") == scaled.tobytes()
    assert shelf.size("odd-size.webm", "roi=1x1+5+5.yuv") == len(video) * 6


def test_sizes_that_cannot_be_meant_are_refused(shelf: Shelf) -> None:
    for path in ("size=99999x99999.rgb", "fps=1001.rgb", "t=0-1,fps=999999.rgb"):
        with pytest.raises(UsageError):
            shelf.size("traffic.mp4", path)


def test_a_view_of_everything_takes_the_room_of_its_pixels(shelf: Shelf) -> None:
    video = shelf.video("traffic.mp4")
    plan = video.plan(View())
    assert shelf.size("traffic.mp4", "full.rgb") == len(plan.frames) * 320 * 240 * 3
