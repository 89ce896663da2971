"""Regions, sizes, spans and names have one form in Python, in options and in paths of views."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.catalog.detection_query import make_filter
from vfsd.cli.options import frame_slice, region_value, size_value, span_value
from vfsd.core.timebase import exact_span
from vfsd.core.view_request import format_view_path, parse_view_path, resolve_size
from vfsd.derive.workload import WorkloadQuery, read_workload
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError
from vfsd.tiling import Rect

EDGES = st.tuples(*[st.integers(0, 10_000)] * 2, *[st.integers(1, 10_000)] * 2)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with videos that no test here changes."""
    with new_store(tmp_path_factory.mktemp("forms") / "store") as store:
        for name in ("cam1/a.mp4", "cam1/b.mp4", "cam2/a.mp4"):
            store.ingest(FOLDER / "traffic.mp4", name)
        yield store


def forms_of(rect: Rect) -> list[Any]:
    corners = rect.x1, rect.y1, rect.x2, rect.y2
    geometry = f"{rect.width}x{rect.height}+{rect.x1}+{rect.y1}"
    return [
        rect,
        corners,
        list(corners),
        np.array(corners),
        np.array(corners, np.uint16),
        geometry,
        ",".join(map(str, corners)),
        ", ".join(map(str, corners)),
    ]


@given(EDGES)
def test_all_forms_of_a_region_are_equal(edges: tuple[int, int, int, int]) -> None:
    x, y, width, height = edges
    rect = Rect(x, y, x + width, y + height)
    for form in forms_of(rect):
        assert Rect.from_value(form) == rect
        assert make_filter(None, None, form, None, None, None, None).region == (
            *map(float, (x, y, x + width, y + height)),
        )
        assert WorkloadQuery(region=form).region == rect
        if isinstance(form, str):
            assert region_value(form) == Rect.parse(form) == rect
        if isinstance(form, str) and " " not in form:
            for path in (f"roi={form}.mp4", f"fps=5,roi={form},size=64x48.mp4"):
                request = parse_view_path(path)
                assert request.view.region == rect
                assert parse_view_path(format_view_path(request)) == request


@pytest.mark.parametrize(
    "region",
    [
        "",
        "10x10",
        "10x10+5",
        "1,2,3",
        "1,2,3,4,5",
        "1.5,2,3,4",
        "٣x3+0+0",
        (1, 2, 3),
        7,
        None,
        [[]],
    ],
)
def test_one_error_for_malformed_regions(region: Any) -> None:
    for parse in (Rect.from_value, Rect.parse):
        with pytest.raises(UsageError, match=r"region must be .*, got ") as caught:
            parse(region)
        assert caught.value.hint
    if region is not None:
        with pytest.raises(UsageError, match=r"region must be .*, got "):
            make_filter(None, None, region, None, None, None, None)
    if isinstance(region, str):
        with pytest.raises(click.BadParameter, match=r"region must be .*, got "):
            region_value(region)
        with pytest.raises(NotFoundError):
            parse_view_path(f"roi={region}.mp4")


def test_regions_of_pixels_have_whole_edges_and_those_of_boxes_fractions() -> None:
    with pytest.raises(UsageError, match="region must be"):
        Rect.from_value((0.5, 0, 10, 10))  # type: ignore[arg-type]
    found = make_filter(None, None, (0.5, 0, 10, 10), None, None, None, None)
    assert found.region == (0.5, 0, 10, 10)


def test_workload_file_takes_all_forms_that_json_has(tmp_path: Path) -> None:
    def query(region: object, span: object) -> WorkloadQuery:
        path = tmp_path / "workload.json"
        path.write_text(json.dumps([{"region": region, "span": span}]))
        (found,) = read_workload(path)
        return found

    want = query("300x200+10+20", [60, 90])
    assert query([10, 20, 310, 220], "60-90") == query("10,20,310,220", "1:00-1:30") == want


def test_scan_takes_the_text_of_a_region(kept: Store) -> None:
    video = kept["cam1/a.mp4"]
    one, *_ = video.scan(roi="64x48+16+32", frames=range(2)).areas()
    assert one.rect == Rect(16, 32, 80, 80)
    assert np.array_equal(one.data, video.read(frames=[0], region=(16, 32, 80, 80)).data[0])


@given(st.integers(1, 2000), st.integers(1, 2000), st.integers(2, 2000))
def test_all_forms_of_a_size_are_equal(width: int, height: int, side: int) -> None:
    assert resolve_size((width, height), 640, 480) == (width, height)
    groups: list[tuple[Any, ...]] = [
        (side, np.int64(side), str(side), f"0x{side}", (0, side)),
        ((side, 0), [side, 0], np.array([side, 0]), f"{side}x0"),
        ((width, height), f"{width}x{height}"),
    ]
    for forms in groups:
        sizes = {resolve_size(form, 640, 480) for form in forms}
        assert len(sizes) == 1
        for form in forms:
            if isinstance(form, str):
                assert {resolve_size(size_value(form), 640, 480)} == sizes
                request = parse_view_path(f"size={form}.mp4")
                assert {request.resolve(640, 480).size} == sizes
                assert parse_view_path(format_view_path(request)) == request


def test_an_int_is_the_short_side_and_a_zero_keeps_the_shape(kept: Store) -> None:
    """The video has 320x240 pixels."""
    video = kept["cam1/a.mp4"]
    for size in (120, "120", "160x0", "0x120", (0, 120)):
        assert video.read(frames=[3], size=size).shape == (1, 120, 160, 3)
    tall = (0, 0, 60, 120)
    (crop,) = video.scan(roi=tall, frames=range(1)).areas(size=30)
    assert crop.shape == (60, 30, 3)
    assert np.array_equal(crop.data, video.read(frames=[0], region=tall, size="30x0").data[0])
    pin = video.budget.pin(size=120)
    assert pin.size == (160, 120)
    video.budget.unpin(size="160x0")
    with pytest.raises(UsageError, match="in full, got 120"):
        video.scan().batches(2, 120)


@pytest.mark.parametrize(
    "size", ["", "x", "64x", "x48", "64x48x3", "-1", "64,48", b"64", 1.5, None]
)
def test_one_error_for_malformed_sizes(size: Any) -> None:
    with pytest.raises(
        UsageError, match=r"size must be \(width, height\) or an int, got "
    ) as caught:
        resolve_size(size, 640, 480)
    assert caught.value.hint


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_all_forms_of_a_span_are_equal(start: int, length: int) -> None:
    end = start + length
    base = Fraction(1, 90_000)
    want: Any = Fraction(start, 8), Fraction(end, 8)
    clock = f"{start // 480}:{Fraction(start % 480, 8).__float__():06.3f}-{end / 8}s"
    for form in ((start / 8, end / 8), want, f"{start / 8}-{end / 8}", clock):
        assert exact_span(form, base) == want
        if isinstance(form, str):
            assert span_value(form) == want
            assert parse_view_path(f"t={form.replace('s', '')}.mp4").view.span == want
    rest: Any = start, None
    assert exact_span(f"{start}-", base) == span_value(f"{start}-") == rest
    assert exact_span(f"-{end}", base) == exact_span((0, end), base)


def test_text_is_a_span_everywhere(kept: Store) -> None:
    video = kept["cam1/a.mp4"]
    want = video.read(span=(1, 2)).index.tolist()
    assert video.read(span="1-2").index.tolist() == want == list(video.frames_in("0:01-0:02"))
    assert [frame.index for frame in video.iterate(span="1-2")] == want
    assert len(video.scan(roi=(0, 0, 64, 64), span="1-2")) == len(want)


@pytest.mark.parametrize("span", ["1:30", "0:01:30"])
def test_a_time_is_not_a_span(kept: Store, span: str) -> None:
    """The error names both readings: 1 s to 30 s, and 90 s."""
    with pytest.raises(UsageError, match=f"span must be A-B in seconds, got '{span}'") as caught:
        kept["cam1/a.mp4"].read(span=span)
    assert caught.value.hint == f"write 1-30 for 1 s to 30 s, or {span}- from 90 s on" or (
        span != "1:30" and "from 90 s on" in (caught.value.hint or "")
    )


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("7", slice(7, 8, 1)),
        ("10:20", slice(10, 20, 1)),
        ("10-20", slice(10, 20, 1)),
        ("10-20-2", slice(10, 20, 2)),
        ("10:20:2", slice(10, 20, 2)),
        ("10-", slice(10, None, 1)),
        ("-3", slice(-3, -2, 1)),
        ("-3:", slice(-3, None, 1)),
    ],
)
def test_frames_as_in_views_and_as_slices(text: str, want: slice) -> None:
    assert frame_slice(text) == want


def test_patterns_are_names(kept: Store) -> None:
    def names(given: Any) -> list[str]:
        return [video.name for video in kept.named(given)]

    assert names("cam1/*.mp4") == ["cam1/a.mp4", "cam1/b.mp4"]
    assert names(["cam2/a.mp4", "**", "cam1/b.mp4"]) == ["cam2/a.mp4", "cam1/a.mp4", "cam1/b.mp4"]
    assert names("cam1/a.mp4") == names(["cam1/a.mp4"] * 2) == ["cam1/a.mp4"]
    assert names([]) == []
    with pytest.raises(NotFoundError, match="no video matches 'cam3"):
        names("cam3/*")
    with pytest.raises(UsageError, match="names must be a list, got 7"):
        names(7)
    assert kept.proposals("cam1/*") == kept.proposals(["cam1/a.mp4", "cam1/b.mp4"])


def test_a_name_with_stars_is_not_a_pattern(store: Store) -> None:
    for name in ("x[1].mp4", "x1.mp4"):
        store.ingest(FOLDER / "traffic.mp4", name)
    assert [video.name for video in store.named("x[1].mp4")] == ["x[1].mp4"]


def test_one_number_is_one_frame(kept: Store, tmp_path: Path) -> None:
    video = kept["cam1/a.mp4"]
    want = video[[7]].data
    numbers: list[Any] = [7, np.int64(7), 7 - len(video)]
    for number in numbers:
        assert np.array_equal(video.read(frames=number).data, want)
        assert np.array_equal(video.frames(number).data, want)
        assert [frame.index for frame in video.iterate(frames=number)] == [7]
    video.save(tmp_path / "one.y4m", frames=7)
    with pytest.raises(OutOfRangeError):
        video.read(frames=len(video))
    with pytest.raises(UsageError):
        video.read(frames=True)


@pytest.mark.parametrize("key", [1.5, Fraction(3, 2), "1:30", slice(0.5, 1), slice(None, "1")])
def test_a_time_is_not_an_index(kept: Store, key: Any) -> None:
    with pytest.raises(TypeError, match="count frames and must be ints") as caught:
        kept["cam1/a.mp4"][key]
    assert "video.seconds[" in str(getattr(caught.value, "hint", None))


def test_names_may_be_paths(kept: Store) -> None:
    path: Any = Path("cam1/a.mp4")
    assert kept[path] == kept["cam1/a.mp4"]
    assert path in kept


def test_hint_is_the_most_common_of_similar_names(kept: Store) -> None:
    with pytest.raises(UsageError) as caught:
        kept["cam1/a.mp4"].read(frames=0, format="rgb")
    assert caught.value.hint == "did you mean rgb24?"
