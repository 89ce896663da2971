"""Rich representations: right pixels, bounded bytes and decoding, escaped text, no log entry."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd.api import previews
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core import rich_repr
from vfsd.core.frames import Batch, Crop, Frame, Frames
from vfsd.read.read_executor import PlanExecutor

EVIL = "<script>alert('&')</script>"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(tmp_path_factory.mktemp("reprs") / "store") as made:
        video = made.ingest(FOLDER / "traffic.mp4", f"cam1/{EVIL.replace('/', '')}.mp4")
        made.catalog.tag(video.info, EVIL)
        video.labels.add(
            [(number, EVIL, (10, 20, 60, 50)) for number in range(0, 120, 3)], f"me {EVIL}"
        )
        made.move(video.name, "cam1/<b>x&.mp4")
        yield made


@pytest.fixture
def video(store: Store) -> Video:
    return store["cam1/<b>x&.mp4"]


def decoded(data: bytes) -> Any:
    found: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return found[..., ::-1]


def pictures(html: str) -> list[Any]:
    return [
        decoded(base64.b64decode(text)) for text in re.findall(r"base64,([A-Za-z0-9+/=]+)", html)
    ]


def noise(*shape: int, dtype: Any = np.uint8) -> Any:
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype)


def test_a_frame_is_its_picture(video: Video) -> None:
    frame = video[7]
    assert np.array_equal(decoded(frame._repr_png_() or b""), frame.data)
    assert frame._repr_html_() is None


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_bounded(dtype: Any, channels: int) -> None:
    frame = Frame(noise(2160, 3840, channels, dtype=dtype), 0, 0, 0.0, 0.0)
    began = time.process_time()
    data = frame._repr_png_() or b""
    assert len(data) <= rich_repr.MAX_BYTES
    assert 160 <= max(decoded(data).shape) <= rich_repr.MAX_SIDE
    assert time.process_time() - began < 2


def test_what_is_no_picture_shows_text() -> None:
    planar = Frame(noise(90, 60), 0, 0, 0.0, 0.0)
    assert planar._repr_png_() is None
    assert Frame(np.zeros((4, 4, 3), np.float32), 0, 0, 0.0, 0.0)._repr_png_() is None
    whole, real = np.empty(0, np.int64), np.empty(0)
    none = Frames(noise(0, 4, 4, 3), whole, whole, real, real)
    assert "img" not in (none._repr_html_() or "")


def test_contact_sheet(video: Video) -> None:
    frames = video[0:120]
    html = frames._repr_html_() or ""
    found = pictures(html)
    assert len(found) == rich_repr.MAX_PICTURES == 24
    assert "... and 96 more" in html
    assert ">0: 0.000 s<" in html
    assert ">119: 3.967 s<" in html
    small = cv2.resize(frames.data[0], (160, 120), interpolation=cv2.INTER_AREA)
    assert np.abs(found[0].astype(int) - small).mean() < 4  # JPEG
    assert len(pictures(video[5:7]._repr_html_() or "")) == 2


def test_html_is_bounded() -> None:
    many = noise(30, 400, 400, 3)
    zeros = np.zeros(30)
    html = Frames(many, zeros.astype(int), zeros.astype(int), zeros, zeros)._repr_html_() or ""
    assert len(html.encode()) <= rich_repr.MAX_BYTES
    text = rich_repr.table("x" * 10_000, ["y" * 10_000] * 8, [["<" * 10_000] * 8] * 1000, 1000)
    assert len(text.encode()) <= rich_repr.MAX_BYTES
    assert "... and 980 more" in text


def test_crops_and_batches(video: Video) -> None:
    (crop,) = video.crops([(6, (10, 20, 60, 50))])
    assert np.array_equal(decoded(crop._repr_png_() or b""), crop.data)
    batch = next(video.scan([EVIL]).batches(3, (32, 24)))
    html = batch._repr_html_() or ""
    assert len(pictures(html)) == 3
    assert "&lt;script&gt;" in html
    assert isinstance(batch, Batch)
    assert isinstance(batch.crops[0], Crop)


def every(store: Store, video: Video) -> dict[str, Any]:
    return {
        "array": video[...][10:90, 20:100, 40:160],
        "seconds": video.seconds[1:2],
        "one frame": video[...][3],
        "no frames": video[...][5:5],
        "scan": video.scan(),
        "regions": video.scan(roi=(10, 20, 60, 50)),
        "query": video.labels.query(),
        "explanation": video.explain(span=(1, 2), region=(0, 0, 64, 64)),
        "save": video.views.explain_save("x.mp4", span=(0.5, 2)),
        "video": video,
        "store": store,
    }


def test_nothing_is_logged_and_all_is_escaped(store: Store, video: Video) -> None:
    store.tools.read_log.flush()
    before = len(list(store.catalog.reads()))
    for name, value in every(store, video).items():
        html = value._repr_html_()
        assert "<script" not in html, name
        assert "<b>" not in html, name
        assert len(html.encode()) <= rich_repr.MAX_BYTES, name
    store.tools.read_log.flush()
    assert len(list(store.catalog.reads())) == before


def test_representations_show_the_right_pixels(store: Store, video: Video) -> None:
    values = every(store, video)
    shown = {name: pictures(value._repr_html_()) for name, value in values.items()}
    assert [len(shown[name]) for name in ("array", "one frame", "no frames", "video")] == [
        12,
        1,
        0,
        1,
    ]
    region = video.read(frames=[10], region=(40, 20, 160, 100)).data[0]
    assert np.abs(shown["array"][0].astype(int) - region).mean() < 4
    assert np.abs(shown["video"][0].astype(int) - video[0].data).mean() < 4
    crop = next(video.scan().crops())
    assert np.abs(shown["scan"][0].astype(int) - crop.data).mean() < 5
    assert len(shown["scan"]) == 24
    assert "... and 16 more" in values["scan"]._repr_html_()
    assert "... and 20 more" in values["query"]._repr_html_()
    assert "10, 20, 60, 50" in values["query"]._repr_html_()
    assert "None" not in values["query"]._repr_html_()


def test_expensive_frames_are_left_out(
    store: Store, video: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    inner = PlanExecutor.execute

    def execute(self: Any, plan: Any, **options: Any) -> Any:
        asked.append(len(plan.frames))
        return inner(self, plan, **options)

    monkeypatch.setattr(PlanExecutor, "execute", execute)
    # As on a host where all pictures take twice the time that is allowed.
    places = np.linspace(0, 119, 12).round().astype(int).tolist()
    predicted = previews._predicted(context_of(video), places, None)
    monkeypatch.setattr(previews, "MAX_SECONDS", predicted / 2)
    html = video[...]._repr_html_()
    assert 0 < sum(asked) < 12
    assert f"... and {120 - sum(asked)} more" in html
    asked.clear()
    one = previews._predicted(context_of(video), [0], None)
    monkeypatch.setattr(previews, "MAX_SECONDS", one / 2)
    for value in (video, video[...], video.scan()):
        assert "img" not in value._repr_html_()
    assert not asked


def test_damage_fails_no_representation(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        video = store.ingest(FOLDER / "traffic.mp4", "a.mp4")
        video.labels.add([(1, "car", (1, 2, 30, 40))], "me")
        path = store.parts.objects.path(video.original.object_key or "")
        path.chmod(0o644)
        path.write_bytes(b"\0" * 100)
        for value in (video, video[...], video.scan()):
            assert "img" not in value._repr_html_()
        removed = video.labels.query()
        store.remove("a.mp4")
        assert "a.mp4" in removed._repr_html_()
        assert "a.mp4" in video._repr_html_()
