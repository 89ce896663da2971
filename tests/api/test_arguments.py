"""Invalid arguments of the Python API raise a `UsageError` that says what to pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.stores import new_store
from vfsd import Catalog, Detection, DetectionColumns, Rect, Source, Video, WorkloadQuery
from vfsd.api.store import Store
from vfsd.api.video import context_of
from vfsd.core.retention_policy import RetentionPolicy
from vfsd.derive.catalog_world import box_world, size_world
from vfsd.errors import NotFoundError, UsageError, VfsdError
from vfsd.labels.detectors.motion import MotionDetector
from vfsd.overlap import join, overlaps

SMALL: Any = "small"
BOX = (1, 2, 30, 40)
TRAFFIC = Path(__file__).parents[2] / "sample_videos" / "traffic.mp4"
NAME = "cam1/a.mp4"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with a video that no test here changes."""
    with new_store(tmp_path_factory.mktemp("arguments") / "store") as store:
        store.ingest(TRAFFIC, NAME).labels.add_box(7, "car", BOX, source="yolo")
        yield store


@pytest.fixture
def video(kept: Store) -> Video:
    return kept[NAME]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ((7, "car", BOX, "high"), "confidences must be"),
        ((7, "car", BOX, [0.9]), "confidences must be"),
        ((7, "car", BOX, 1j), "confidences must be"),
        ((7, "car", "1,2,3,4"), "boxes must be"),
        ((7, "car", ("a", 2, 3, 4)), "boxes must be"),
        ((7, "car", Rect(1, 2, 3, 4)), "boxes must be"),
        ((7, "car", (10**400, 2, 3, 4)), "boxes must be"),
        ((7, ["car"], BOX), "label must be"),
        ((7, {}, BOX), "label must be"),
    ],
)
def test_invalid_box_is_refused(video: Video, row: tuple[Any, ...], what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        video.labels.add_box(*row, source="yolo")
    assert caught.value.hint


@pytest.mark.parametrize("rows", [None, 5, "abc", [7], [{"frame": 7}, 8], Detection(7, "car", BOX)])
def test_invalid_detections_are_refused(video: Video, rows: Any) -> None:
    with pytest.raises(UsageError, match=r"detections must be"):
        video.labels.add(rows, "yolo")


@pytest.mark.parametrize("attributes", [["a"], "a"])
def test_attribute_without_name_is_refused(video: Video, attributes: Any) -> None:
    with pytest.raises(UsageError, match="attributes must be"):
        video.labels.add_box(7, "car", BOX, source="yolo", attributes=attributes)
    with pytest.raises(UsageError, match="must be a dict"):
        video.labels.query("car", attributes=attributes)


def test_numpy_numbers_are_stored_as_plain_numbers(store: Store) -> None:
    video = store.ingest(TRAFFIC, NAME)
    given = {"whole": np.int64(3), "part": np.float32(0.5), "is": np.bool_(True), "word": "w"}
    kept = {"whole": 3, "part": 0.5, "is": True, "word": "w"}
    video.labels.add_box(
        0, "car", (0, 0, 1, 1), source=Source("s", parameters=given), attributes=given
    )
    (found,) = video.labels.query(attributes=given)
    assert found.attributes == kept
    assert found.source == Source("s", parameters=kept)
    info = store.catalog.set_metadata(video.info, **given)
    assert info.metadata == kept
    assert [one.name for one in store.find(metadata=given)] == [video.name]


@pytest.mark.parametrize("parameters", [None, [1], {"x": object()}, {"x": np.zeros(2)}])
def test_source_parameters_must_be_json(parameters: Any) -> None:
    with pytest.raises(UsageError, match="parameters must be"):
        Source("yolo", parameters=parameters)


@pytest.mark.parametrize(
    "columns",
    [
        {"labels": None},
        {"labels": 5},
        {"boxes": [BOX, (1, 2, 3)]},
        {"frames": [1, [2]]},
        {"confidences": 0.5},
        {"confidences": np.array(["a", "b"])},
        {"tracks": 5},
    ],
)
def test_invalid_columns_are_refused(columns: dict[str, Any]) -> None:
    given: dict[str, Any] = {"frames": [1, 2], "labels": "car", "boxes": [BOX, BOX]}
    with pytest.raises(UsageError):
        DetectionColumns.of(**given | columns)


def test_hint_fits_the_error(store: Store, video: Video, tmp_path: Path) -> None:
    for beyond in (slice(0.0, 1.0), (slice(0, 3), slice(5.0, 6.0))):
        with pytest.raises(UsageError, match="whole numbers") as caught:
            video.read(frames=beyond) if isinstance(beyond, slice) else video[beyond]
        assert "a step" not in (caught.value.hint or "")
    with pytest.raises(UsageError, match="is a directory"):
        store.ingest(tmp_path)
    with pytest.raises(UsageError, match="infinite") as caught:
        DetectionColumns.of([1], "car", [BOX], [math.inf])
    assert "x1" not in (caught.value.hint or "")


def test_columns_are_sliced_like_arrays() -> None:
    rows = DetectionColumns.of([1, 2, 3], ["car", "bus", "car"], [BOX] * 3)
    assert rows[1:].frames.tolist() == [2, 3]
    assert rows[[0, 2]].frames.tolist() == rows[rows.labels == "car"].frames.tolist() == [1, 3]
    assert rows[1].label == "bus"
    last: Any = np.array(2)
    assert rows[last] == rows[2]


@pytest.mark.parametrize(
    "what",
    [
        {"min_confidence": "high"},
        {"min_confidence": math.nan},
        {"min_confidence": [0.5]},
        {"labels": 5},
        {"region": "10x10"},
        {"region": "1289"},
        {"source": 5},
        {"source": ["yolo"]},
    ],
)
def test_invalid_query_is_refused(video: Video, what: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        len(video.labels.query(**what))


@pytest.mark.parametrize(
    "act",
    [
        lambda video: video.read(times=1.0),
        lambda video: video.tiles.retile("2x2"),
        lambda video: video.labels.detect("motion"),
        lambda video: video.labels.detect(MotionDetector),
        lambda video: video.policy.hold(None),
        lambda video: video.tiles.compress("hard"),
        lambda video: list(video.scan("car").batches("4", size=(24, 24))),
        lambda video: video.scan("car", padding="a"),
        lambda video: video.scan("car", padding=1.5),
        lambda video: video.scan("car", padding=-50),
        lambda video: video.tiles.around("car", padding=-50),
        lambda video: video.scan("car", seen_in=NAME),
        lambda video: video.scan("car").spans(gap=-5),
        lambda video: video.scan("car").spans(gap="x"),
        lambda video: video.labels.add_box(0, "car", BOX, math.nan, source="s"),
        lambda video: video.labels.add_box(0, "car", BOX, np.float32("nan"), source="s"),
        lambda video: video.tiles.retile("uniform:2x2", settings={"codec": "small"}),
        lambda video: video.tiles.advise("car"),
        lambda video: video.tiles.advise(["car"]),
        lambda video: video.tiles.advise(WorkloadQuery("car")),
        lambda video: video.tiles.advise(newest=-1),
        lambda video: video.tiles.estimate(None),
        lambda video: video.tiles.estimate([], settings="small"),
        lambda video: box_world(context_of(video), ["car"], settings=SMALL),
        lambda video: size_world(context_of(video), SMALL),
        lambda video: video.labels.add([], "yolo", replace=np.array([True, False])),
        lambda video: video.labels.detect(MotionDetector(), replace="no"),
        lambda video: video.budget.pin(tiles=np.zeros(2)),
        lambda video: video.budget.unpin(tiles="tiles"),
        lambda video: video.budget.evictions("all"),
        lambda video: video.budget.evictions(-1),
        lambda video: video.budget.what_if(None),
        lambda _: WorkloadQuery("car", times="20"),  # type: ignore[arg-type]
        lambda _: WorkloadQuery("car", times=2.5),  # type: ignore[arg-type]
        lambda _: WorkloadQuery("car", frames=[1, 2]),  # type: ignore[arg-type]
        lambda _: WorkloadQuery("car", span=5),  # type: ignore[arg-type]
        lambda _: WorkloadQuery(region="100x100"),
    ],
)
def test_invalid_video_calls_are_refused(video: Video, act: Callable[[Any], object]) -> None:
    with pytest.raises(UsageError):
        act(video)


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.find(codec=["h264", "hevc"]),
        lambda store: store.find(container=5),
        lambda store: store.find(seconds=5),
        lambda store: store.find(width=("a", "b")),
        lambda store: store.find(width=(math.nan, None)),
        lambda store: store.find(width=(1, 2, 3)),
        lambda store: store.find(width=(10**30, None)),
        lambda store: store.find(bytes=(None, -(10**30))),
        lambda store: store.find(seconds=(10**400, None)),
        lambda store: store.find(metadata="site"),
        lambda store: store.find(metadata={1: 2}),
        lambda store: store.catalog.tag(store[NAME], "night"),
        lambda store: store.catalog.tag(NAME, "night"),
        lambda store: store.catalog.tag(store[NAME].info, 5),
        lambda store: store.catalog.tag(store[NAME].info, ["night"]),
        lambda store: store.catalog.set_metadata(store[NAME], site=1),
        lambda store: store.catalog.set_metadata(store[NAME].info, site=object()),
        lambda store: store.catalog.set_metadata(store[NAME].info, site=math.nan),
        lambda store: store.tune(5),
        lambda store: store.tune(budget=np.zeros(2)),
        lambda store: overlaps(store, 5),  # type: ignore[arg-type]
        lambda store: join(store, NAME, NAME, settings=np.zeros(2)),  # type: ignore[arg-type]
        lambda store: join(store, NAME, NAME, dry_run="no"),  # type: ignore[arg-type]
        lambda store: store.recover(None),
        lambda store: store.set_policy(None, None),
        lambda store: store.undo([]),
        lambda store: store.undo(10**30),
        lambda store: store.set_policy("cam1", RetentionPolicy(delete_after=10**30)),
        lambda store: store.set_policy("cam1", RetentionPolicy(delete_below=10**30)),
        lambda store: store.ingest(TRAFFIC, NAME, replace=np.array([True, False])),
        lambda store: store.ingest(TRAFFIC, NAME, replace="no"),
        lambda store: store.ingest(TRAFFIC, NAME, link=1),
        lambda store: store.move(NAME, "b.mp4", replace=np.array([True, False])),
        lambda store: store.remove("cam1", recursive="yes"),
        lambda store: store.write("a.mp4", [], fps=25, replace=None),
        lambda store: store.writer("a.mp4", width=8, height=8, fps=25, replace=np.zeros(2)),
        lambda store: Store.open(store.path, read_only=np.zeros(2)),  # type: ignore[arg-type]
        lambda store: Store.create(store.path / "new", catalog_url=5),  # type: ignore[arg-type]
        lambda _: Catalog.open(None),  # type: ignore[arg-type]
        lambda store: list(store.find(tags=None)),
        lambda store: store.catalog.unverified("all"),
        lambda store: store.catalog.unverified(before_id="a.mp4"),
        lambda store: store.catalog.names(NAME),
        lambda store: store.catalog.segments(store[NAME]),
        lambda store: list(store.catalog.reads(NAME)),
        lambda store: list(store.catalog.reads(since="yesterday")),
        lambda store: list(store.catalog.reads(since=10**30)),
        lambda store: store.catalog.decisions(5),
        lambda store: store.catalog.detections.find(NAME),
        lambda store: store.catalog.detections.labels(store[NAME]),
        lambda store: store.catalog.frame_table(store[NAME].info),
        lambda store: store.catalog.locate(NAME, range(3)),
    ],
)
def test_invalid_store_calls_are_refused(kept: Store, act: Callable[[Any], object]) -> None:
    with pytest.raises(UsageError) as caught:
        act(kept)
    assert caught.value.hint or "tag" in str(caught.value)


def test_fractional_bounds_of_any_size(kept: Store) -> None:
    every: list[tuple[Any, Any]] = [
        (None, 1e30),
        (None, Fraction(10**400)),
        (-Fraction(10**400), None),
        (None, Decimal("1e400")),
        (-(2**63), 2**63 - 1),
    ]
    for bounds in every:
        assert kept.catalog.find(seconds=bounds).names() == [NAME], bounds
    longest: Any = Fraction(10**400)
    assert kept.catalog.find(seconds=(longest, None)).names() == []


def test_errors_name_the_removed_video(store: Store) -> None:
    video = store.ingest(TRAFFIC, NAME)
    store.remove(NAME)
    acts: list[Callable[[], object]] = [
        lambda: store.catalog.tag(video.info, "night"),
        lambda: store.catalog.untag(video.info, "night"),
        lambda: store.catalog.set_metadata(video.info, site=1),
        lambda: video.budget.set("5x"),
        lambda: video.budget.pin(),
        lambda: video.policy.hold("case 17"),
    ]
    for act in acts:
        with pytest.raises(NotFoundError, match=NAME):
            act()


@pytest.mark.parametrize("replace", [np.array([True, False]), np.zeros(2), "no", 1, None])
def test_replace_must_be_a_bool(video: Video, tmp_path: Path, replace: Any) -> None:
    (tmp_path / "a.mp4").write_text("mine")
    with pytest.raises(UsageError, match=r"replace must be True or False"):
        video.save(tmp_path / "a.mp4", span=(0, 1), replace=replace)
    assert (tmp_path / "a.mp4").read_text() == "mine"
    yes: Any = np.bool_(True)
    assert video.save(tmp_path / "a.mp4", span=(0, 1), replace=yes) > 1000


def test_videos_of_another_store_are_refused(store: Store, tmp_path: Path) -> None:
    mine = store.ingest(TRAFFIC, NAME)
    with new_store(tmp_path / "other") as other:
        info = other.ingest(TRAFFIC, "theirs.mp4").info
    assert (info.id, info.digest) == (mine.info.id, mine.info.digest)
    acts: list[Callable[[], object]] = [
        lambda: store.catalog.tag(info, "night"),
        lambda: store.catalog.untag(info, "night"),
        lambda: store.catalog.set_metadata(info, site=1),
    ]
    for act in acts:
        with pytest.raises(NotFoundError, match=r"'theirs.mp4' belongs to another store"):
            act()
    assert not store[NAME].info.tags


@pytest.mark.parametrize("number", [int, float, Decimal, Fraction, np.int64, np.float32])
def test_bounds_are_numbers_of_any_kind(kept: Store, number: Callable[[int], Any]) -> None:
    bounds = (number(1), number(10))
    assert [video.name for video in kept.find(seconds=bounds)] == [NAME]
    assert [video.name for video in kept.find(bytes=(number(1), None))] == [NAME]
    assert not list(kept.find(width=bounds))


def test_workload_may_be_an_iterator(video: Video) -> None:
    query = WorkloadQuery(region=(0, 0, 64, 64))
    assert video.tiles.advise(iter([query])).layouts() == video.tiles.advise([query]).layouts()  # type: ignore[arg-type]


def test_workload_accepts_regions_like_reads(video: Video) -> None:
    query = WorkloadQuery(region=(0, 0, 64, 64), times=2)
    assert query.region == Rect(0, 0, 64, 64)
    assert video.tiles.advise([query]).layouts() is not None


def test_frames_are_sliced_like_arrays(video: Video) -> None:
    frames = video[0:4]
    assert np.array_equal(np.asarray(frames), frames.data)
    assert np.array_equal(np.asarray(frames[2]), frames.data[2])
    assert np.asarray(frames, dtype=np.float32).dtype == np.float32
    some = frames[1:3]
    assert some.index.tolist() == [1, 2]
    assert np.array_equal(some.data, frames.data[1:3])
    last: Any = np.array(3)
    assert frames[last].index == 3
    assert frames[[0, 3]].index.tolist() == frames[frames.index % 3 == 0].index.tolist() == [0, 3]


class Number:
    def __index__(self) -> int:
        return 3


class Bare:
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError("only one")


def test_any_integer_type_is_a_frame_index(video: Video) -> None:
    number: Any
    nothing: Any
    frames = video[0:5]
    for number in (Number(), np.array(3), np.uint8(3)):
        assert video[number].index == frames[number].index == 3
        assert video[number:5].index.tolist() == [3, 4]
    assert video[np.array([3])].index.tolist() == [3]
    for nothing in (True, 1.5, "1", np.array(True)):
        with pytest.raises(UsageError):
            frames[nothing]
    for nothing in (True, np.array(True), np.array(1.5), [Bare()], Bare()):
        with pytest.raises(UsageError):
            video[nothing]
    with pytest.raises(IndexError):
        frames[5]


def test_array_without_copy_is_refused_if_a_copy_is_needed(video: Video) -> None:
    frames = video[0:2]
    for one in (frames, frames[1]):
        assert one.__array__(copy=False) is one.data
        assert one.__array__(np.uint8, copy=False) is one.data
        with pytest.raises(ValueError, match="copy"):
            one.__array__(np.float32, copy=False)
    with pytest.raises(ValueError, match="decoded"):
        video.seconds[0:0.1, :8, :8].__array__(copy=False)


def test_video_can_be_written_as_a_sequence_of_frames(store: Store) -> None:
    video = store.ingest(TRAFFIC, NAME)
    copy = store.write("copy.mp4", video, fps=video.fps)
    assert len(copy) == len(video)


@pytest.mark.parametrize("time_base", ["1/25", "0.04s", "0.04", 0.04])
def test_time_base_is_a_fraction_or_a_time(store: Store, time_base: str | float) -> None:
    pixels = np.zeros((3, 64, 64, 3), np.uint8)
    video = store.write("a.mp4", pixels, time_base=time_base, pts=[0, 1, 5])
    assert [float(frame.seconds) for frame in video] == [0, 0.04, 0.2]


def test_trailing_slash_means_a_directory(store: Store) -> None:
    assert store.ingest(TRAFFIC, "new/").name == "new/traffic.mp4"
    store.move("new/traffic.mp4", "newer/")
    assert list(store) == ["newer/traffic.mp4"]
    store.move("newer", "newest/")
    assert list(store) == ["newest/traffic.mp4"]


def test_hints_name_python_arguments(store: Store, tmp_path: Path) -> None:
    video = store.ingest(TRAFFIC, NAME)
    store.ingest(TRAFFIC, "b.mp4")
    (tmp_path / "c.mp4").touch()
    acts: list[tuple[str, Callable[[], object]]] = [
        ("replace=True", lambda: store.ingest(TRAFFIC, NAME)),
        ("replace=True", lambda: store.move("b.mp4", NAME)),
        ("replace=True", lambda: video.save(tmp_path / "c.mp4", span=(0, 1))),
        ("recursive=True", lambda: store.remove("cam1")),
    ]
    for word, act in acts:
        with pytest.raises(VfsdError) as caught:
            act()
        assert word in (caught.value.hint or "")


@pytest.mark.parametrize("form", [{"rgb24"}, ["rgb24"], np.array(3), b"rgb24", 7])
def test_format_must_be_a_name(video: Video, tmp_path: Path, form: Any) -> None:
    for act in (
        lambda: video.read(frames=[1], format=form),
        lambda: next(video.iterate(format=form)),
        lambda: video.renditions.write([], size=(64, 48), format=form),
        lambda: video.save(tmp_path / "a.raw", format=form),
        lambda: video.save(tmp_path / "a.mkv", codec=form),
    ):
        with pytest.raises(UsageError, match=r"(format|codec) must be"):
            act()


@pytest.mark.parametrize("fps", [Fraction(10**400), Fraction(1, 10**400), 5e-324])
def test_implausible_rate_is_refused(video: Video, tmp_path: Path, fps: Any) -> None:
    for act in (lambda: video.read(fps=fps), lambda: video.save(tmp_path / "a.mp4", fps=fps)):
        with pytest.raises(UsageError, match=r"rate|time must be at most"):
            act()


def test_psnr_must_be_one_number(video: Video) -> None:
    several: Any = np.array([40, 41])
    with pytest.raises(UsageError, match="psnr must be"):
        video.read(frames=[1], psnr=several)


@pytest.mark.parametrize(
    "requests",
    [5, None, np.array(3), "a.mp4", {NAME: {}}, [NAME], [5], [(NAME, 5)], [({NAME}, {})]],
)
def test_invalid_requests_are_refused(kept: Store, requests: Any) -> None:
    with pytest.raises(UsageError, match=r"requests? must be") as caught:
        list(kept.read_many(requests))
    assert caught.value.hint


def test_arrays_without_an_axis_are_refused(video: Video) -> None:
    one: Any = np.array(3)
    with pytest.raises(UsageError, match="times must be"):
        video.read(times=one)
    with pytest.raises(UsageError, match="labels must be"):
        video.scan(one)
    with pytest.raises(UsageError, match="with roi"):
        video.scan(np.array([1, 2]), roi=(0, 0, 8, 8))  # type: ignore[call-overload]


def test_times_beyond_the_float_range_are_refused(video: Video) -> None:
    for act in (video.index_at, video.frame_at):
        with pytest.raises(UsageError, match="time must be at most"):
            act(Fraction(10**400))
