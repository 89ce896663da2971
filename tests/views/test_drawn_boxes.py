"""Boxes drawn into views: only their lines change, and a changed box changes the view."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from fractions import Fraction
from math import ceil, floor
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd.api.video import Video
from vfsd.core.detections import DetectionColumns
from vfsd.core.pixel_array import Pixels
from vfsd.core.view_request import format_view_path, parse_view_path
from vfsd.errors import NotFoundError, UsageError
from vfsd.labels.table_input import BoxTuple
from vfsd.tiling import Rect
from vfsd.views.drawn_boxes import DrawnBoxes, _text_mask
from vfsd.views.view_input import PictureForm

BOXES: list[BoxTuple] = [
    (10, "car", (40.5, 60.2, 120.7, 140.0), 0.9, 7),
    (10, "person", (200, 100, 230, 180)),
    (11, "car", (42, 60, 122, 140), 0.9, 7),
    (40, "car", (-30, -20, 30, 50), 0.9, 8),
]


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Video]:
    with new_store(tmp_path_factory.mktemp("boxes") / "store") as store:
        made = store.ingest(FOLDER / "traffic.mp4", "a.mp4")
        made.verify()
        made.labels.add(BOXES, "me")
        yield made


def raw(video: Video, name: str) -> npt.NDArray[np.uint8]:
    with video.views.open(name) as file:
        return np.frombuffer(file.read(), np.uint8)


def test_only_lines_and_plates_change(video: Video) -> None:
    width, height = video.width, video.height
    plain = raw(video, "frames=8-14.rgb").reshape(-1, height, width, 3)
    drawn = raw(video, "frames=8-14,boxes=car.rgb").reshape(-1, height, width, 3)
    changed = (plain != drawn).any(axis=3)
    assert changed.any(axis=(1, 2)).tolist() == [False, False, True, True, False, False]
    first = changed[2]
    x1, y1, x2, y2 = 40, 60, 121, 140
    inside = first[y1 + 4 : y2 - 4, x1 + 4 : x2 - 4]
    assert not inside.any()
    first[y1:y2, x1:x2] = False
    rows = np.flatnonzero(first.any(axis=1))  # the plate above
    assert 40 <= rows.min() < rows.max() < y1
    # The outline has one color, whatever is below it.
    assert len({tuple(pixel) for pixel in drawn[2, y1, x1:x2].tolist()}) == 1
    assert (drawn[2, 100, 40] == drawn[2, 60, 80]).all()


@pytest.mark.parametrize("name", ["size=101x75.yuv", "roi=160x120+30+40,size=322x200.y4m"])
def test_planes_outside_of_shapes_are_those_of_the_plain_view(video: Video, name: str) -> None:
    plain, drawn = (raw(video, f"frames=10-11,{key}{name}") for key in ("", "boxes=*,"))
    assert len(plain) == len(drawn)
    assert 0 < (plain != drawn).mean() < 0.5


def test_encoded_view_shows_the_drawn_pictures(video: Video, tmp_path: Path) -> None:
    target = tmp_path / "out.mp4"
    video.save(target, frames=range(8, 14), boxes="car|person")
    with av.open(str(target)) as opened:
        shown = [frame.to_ndarray(format="yuv420p") for frame in opened.decode(video=0)]
    expected = raw(video, "frames=8-14,boxes=car|person.yuv").reshape(len(shown), -1)
    plain = raw(video, "frames=8-14.yuv").reshape(len(shown), -1)
    for number, picture in enumerate(shown):
        near, far = (
            float(((picture.reshape(-1).astype(int) - other[number]) ** 2).mean())
            for other in (expected, plain)
        )
        assert near < 12, number
        assert (near < far / 4) == (number in (2, 3))
    found = video.views.explain("boxes=car.mp4")
    assert (found.made, found.why) == ("encoded", "boxes are drawn into its pictures")


def test_changed_box_changes_the_view(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        video = store.ingest(FOLDER / "traffic.mp4", "a.mp4")
        video.labels.add(BOXES, "me")
        name = "frames=8-14,size=160x120,boxes=car.mp4"
        first = raw(video, name).tobytes()
        assert raw(video, name).tobytes() == first
        video.labels.add([(20, "car", (0, 0, 9, 9))], "me")
        assert raw(video, name).tobytes() == first  # outside of the view
        video.labels.add([(12, "car", (100, 100, 160, 160))], "me")
        second = raw(video, name).tobytes()
        assert (second != first, len(second)) == (True, len(first))
        video.labels.remove(labels="car", frames=[12])
        assert raw(video, name).tobytes() == first


def test_requests_that_boxes_do_not_fit_are_refused(video: Video, tmp_path: Path) -> None:
    for name in (
        "boxes=car,pix=yuv420p10.mp4",
        "boxes=car,codec=ffv1.mkv",
        "boxes=car.wav",
        "boxes=car,pix=rgb24.raw",
        "boxes=,t=0-1.mp4",
    ):
        with pytest.raises((NotFoundError, UsageError)):
            video.views.open(name)
    with pytest.raises(NotFoundError, match="no label 'cra'"):
        video.views.open("boxes=cra.mp4")
    with pytest.raises(NotFoundError, match="no label 'cra'"):
        video.save(tmp_path / "out.mp4", boxes="cra")
    with pytest.raises(UsageError, match="cannot be drawn into gray"):
        video.save(tmp_path / "out.raw", boxes="car", format="gray")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "labels", ["car|truck", "car & not red", '"a|b"|c', "a%2Fb", "lane=3", "*", "ü & x y"]
)
def test_names_round_trip(labels: str) -> None:
    request = parse_view_path(f"t=0-1,boxes={labels}.mp4")
    written = format_view_path(request)
    assert "/" not in written
    assert parse_view_path(written) == request
    assert format_view_path(parse_view_path(written)) == written


@given(
    st.lists(
        st.tuples(st.floats(-50, 250), st.floats(-50, 200), st.floats(1, 200), st.floats(1, 200)),
        max_size=4,
    ),
    st.data(),
)
def test_drawing_stays_on_its_shapes(
    video: Video, boxes: list[tuple[float, float, float, float]], data: st.DataObject
) -> None:
    """Against a mask of outlines and plates in whole samples of chroma."""
    width, height = data.draw(st.integers(8, 90)), data.draw(st.integers(8, 90))
    pixel_format = data.draw(st.sampled_from(["rgb24", "yuv420p"]))
    step = 2 if pixel_format == "yuv420p" else 1
    region = Rect(10, 20, 10 + data.draw(st.integers(1, 200)), 20 + data.draw(st.integers(1, 150)))
    form = PictureForm(video.original.media, region, (width, height), pixel_format)
    corners = [(x, y, x + w, y + h) for x, y, w, h in boxes]
    rows = DetectionColumns.of(
        [3] * len(boxes), ["i"] * len(boxes), np.array(corners, float).reshape(-1, 4)
    )
    across, down = -(-width // 2), -(-height // 2)
    count = width * height * 3 if step == 1 else width * height + 2 * across * down
    samples: Pixels = np.full(count, 77, np.uint8)
    drawn = DrawnBoxes(rows)
    drawn.draw(samples, 2, form)
    assert (samples == 77).all()
    drawn.draw(samples, 3, form)
    pixels = samples.reshape(height, width, 3)[..., 0] if step == 1 else samples[: width * height]
    pixels = pixels.reshape(height, width)
    lines, plates = np.zeros((2, height, width), bool)
    plate_height, plate_width = _text_mask("i", 10).shape
    for x1, y1, x2, y2 in corners:
        edges = (
            floor(Fraction(x1 - region.x1) * width / region.width / step) * step,
            floor(Fraction(y1 - region.y1) * height / region.height / step) * step,
            ceil(Fraction(x2 - region.x1) * width / region.width / step) * step,
            ceil(Fraction(y2 - region.y1) * height / region.height / step) * step,
        )
        left, top, right, bottom = edges
        outer, inner = np.zeros((2, height, width), bool)
        outer[max(0, top) : max(0, bottom), max(0, left) : max(0, right)] = True
        inner[max(0, top + 2) : max(0, bottom - 2), max(0, left + 2) : max(0, right - 2)] = True
        lines |= outer & ~inner
        if outer.any():
            x = min(max(0, left), max(0, (width - plate_width) // 2 * 2))
            y = top - plate_height if top >= plate_height else max(0, top)
            plates[y : y + plate_height, x : x + plate_width] = True
    assert (pixels[~lines & ~plates] == 77).all()
    if step == 1:
        colors = {tuple(color) for color in samples.reshape(-1, 3)[(lines & ~plates).reshape(-1)]}
        assert len(colors) <= 1
        assert (77, 77, 77) not in colors
    else:
        touched = np.zeros((down * 2, across * 2), bool)
        touched[:height, :width] = lines | plates
        blocks = touched.reshape(down, 2, across, 2).any(axis=(1, 3)).reshape(-1)
        for plane in np.split(samples[width * height :], 2):
            assert (plane[~blocks] == 77).all()


def test_plays_in_ffmpeg(video: Video) -> None:
    with video.views.open("frames=8-14,boxes=car,codec=hevc.mkv") as file:
        data = file.read()
    done = subprocess.run(
        ["ffmpeg", "-v", "error", "-i", "-", "-f", "rawvideo", "-"],
        input=data,
        check=True,
        capture_output=True,
    )
    assert len(done.stdout) == 6 * video.width * video.height * 3 // 2
    assert not done.stderr
