"""ONNX models: tiny ones, made here, with fixed outputs."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from sample_videos import FOLDER
from tests.support.onnx_models import Outputs, constant_model
from vfsd import Detection, Frame, Store
from vfsd.errors import ExtraMissingError, NotFoundError, UsageError
from vfsd.labels.detectors.onnx import Letterbox, OnnxDetector

SHOWN = Letterbox(320, 240, (64, 64))
"""traffic.mp4 in a model of 64 x 64: 64 x 48 pixels, bars of 8 above and below."""


@pytest.fixture(autouse=True)
def _needs_onnxruntime(request: pytest.FixtureRequest) -> None:
    if "tmp_path" in request.fixturenames and "without_onnxruntime" not in request.fixturenames:
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


def a_model(
    path: Path,
    outputs: Outputs,
    shape: tuple[object, ...] = (1, 3, 64, 64),
    names: str | None = "{0: 'car', 1: 'dog'}",
    kind: str = "FLOAT",
) -> Path:
    """A model with constant `outputs` and one input of `shape` and `kind`."""
    path.write_bytes(constant_model(outputs, shape, names, kind))
    return path


def columns(*rows: tuple[float, ...]) -> npt.NDArray[np.float32]:
    """The output of YOLOv8: transposed rows, with empty entries up to 20."""
    made = np.zeros((1, len(rows[0]), 20), np.float32)
    made[0, :, : len(rows)] = np.array(rows, np.float32).T
    return made


def shown(width: int = 64, height: int = 48) -> list[Frame]:
    return [Frame(np.zeros((height, width, 3), np.uint8), 9, 0, 0.0, 0.1)]


def boxes_of(detector: OnnxDetector) -> list[Detection]:
    size = detector.request(320, 240).size
    assert size is not None
    ((number, found),) = detector.detect(shown(*size), 320, 240)
    assert number == 9
    return found


def test_every_head_gives_the_same_boxes(tmp_path: Path) -> None:
    # The frame is shown five times smaller, 8 pixels lower.
    car, dog = (5.0, 10.0, 105.0, 60.0), (200.0, 100.0, 250.0, 200.0)
    corners = [(1, 10, 21, 20), (40, 28, 50, 48)]
    eight = columns((11, 15, 20, 10, 0.9, 0.1), (45, 38, 10, 20, 0, 0.5), (9, 9, 2, 2, 0.2, 0.2))
    five = np.zeros((1, 40, 7), np.float32)
    five[0, 30] = (11, 15, 20, 10, 0.9, 1, 0.1)
    five[0, 3] = (45, 38, 10, 20, 0.5, 0, 1)
    rows = np.zeros((1, 10, 6), np.float32)
    rows[0, :2] = [(*corners[0], 0.9, 0), (*corners[1], 0.5, 1)]
    ssd: Outputs = {
        "boxes": np.array(corners, np.float32),
        "labels": np.array([0, 1], np.int64),
        "scores": np.array([0.9, 0.5], np.float32),
    }
    swapped = np.array([[(y1, x1, y2, x2) for x1, y1, x2, y2 in corners]], np.float32) / 64
    tensorflow: Outputs = {
        "detection_boxes": swapped,
        "detection_classes": np.array([[0, 1]], np.float32),
        "detection_scores": np.array([[0.9, 0.5]], np.float32),
        "num_detections": np.array([2], np.float32),
    }
    answers: list[Outputs] = [{"o": eight}, {"o": five}, {"o": rows}, ssd, tensorflow]
    for outputs in answers:
        found = boxes_of(OnnxDetector(a_model(tmp_path / "m.onnx", outputs)))
        assert [one.label for one in found] == ["car", "dog"]
        assert [one.confidence for one in found] == pytest.approx([0.9, 0.5])
        for one, expected in zip(found, (car, dog), strict=True):
            assert one.box == pytest.approx(expected, abs=1e-3)


def test_overlaps_limits_and_names(tmp_path: Path) -> None:
    answer = columns(
        (20, 30, 10, 10, 0.8, 0, 0),
        (21, 30, 10, 10, 0.7, 0, 0),  # the same car once more
        (21, 30, 10, 10, 0, 0.7, 0),  # a dog in it
        (0, 8, 10, 10, 0, 0, 0.6),  # clipped at the corner; a class without a name
        (32, 2, 4, 4, 0.9, 0, 0),  # in the letterbox bar
        (float("nan"), 8, 10, 10, 0.9, 0, 0),
        (30, 30, -5, 5, 0.9, 0, 0),
        (30, 30, 5, 5, float("nan"), 0, 0),
    )
    path = a_model(tmp_path / "m.onnx", {"o": answer})
    found = boxes_of(OnnxDetector(path))
    assert [one.label for one in found] == ["car", "dog", "class 2"]
    assert found[2].box == pytest.approx((0, 0, 25, 25))
    assert len(boxes_of(OnnxDetector(path, overlap=1))) == 4
    assert [one.label for one in boxes_of(OnnxDetector(path, min_confidence=0.75))] == ["car"]
    assert {one.label for one in boxes_of(OnnxDetector(path, label="thing"))} == {"thing"}
    (tmp_path / "names.txt").write_text("auto\nhund\nkatze\n")
    named = OnnxDetector(path, names=tmp_path / "names.txt")
    assert [one.label for one in boxes_of(named)] == ["auto", "hund", "katze"]
    assert named.source != OnnxDetector(path).source
    assert OnnxDetector(path).source == OnnxDetector(path).source
    assert OnnxDetector(path).source.model == "m"


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((1, 3, "h", "w"), "FLOAT"),
        ((1, 64, 64, 3), "UINT8"),
        ((1, 3, 64, 64), "FLOAT16"),
        (("n", "h", "w", 3), "FLOAT"),
    ],
)
def test_inputs(tmp_path: Path, store: Store, shape: tuple[object, ...], kind: str) -> None:
    answer = {"o": columns((11, 15, 20, 10, 0.9, 0.1))}
    path = a_model(tmp_path / "m.onnx", answer, shape, kind=kind)
    video = store.ingest(FOLDER / "traffic.mp4", "a.mp4")
    detector = OnnxDetector(path, side=64)
    assert detector.request(320, 240).size == (64, 48)
    assert video.labels.detect(detector, every=60) == 2
    for one in video.labels.query("car"):
        assert one.box == pytest.approx((5, 10, 105, 60), abs=1e-3)
    # it has examined that frame
    assert video.labels.detect(OnnxDetector(path, side=64), every=60) == 0


def test_unsupported_models_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    good = a_model(path, {"o": columns((1, 1, 1, 1, 1))}).read_bytes()
    for data in (b"", b"no model", b"\xff" * 1000, good[: len(good) // 2], bytes(5000)):
        path.write_bytes(data)
        with pytest.raises(UsageError, match=r"m\.onnx"):
            OnnxDetector(path)
    rng = np.random.default_rng(0)
    for _ in range(50):
        damaged = bytearray(good)
        for at in rng.integers(0, len(good), 8):
            damaged[at] = int(rng.integers(256))
        path.write_bytes(damaged)
        with contextlib.suppress(UsageError):  # and no other exception
            boxes_of(OnnxDetector(path))
    with pytest.raises(UsageError):
        OnnxDetector(tmp_path)
    with pytest.raises(NotFoundError):
        OnnxDetector(tmp_path / "none.onnx")


def test_models_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    some = columns((1, 1, 1, 1, 1))
    for shape in ((1, 3), (1, 1, 64, 64), (1, 3, 10**6, 10**6)):
        with pytest.raises(UsageError, match="must be one picture"):
            OnnxDetector(a_model(path, {"o": some}, shape))
    for names in ("[1, ", "{0: 'a\\nb'}", "7", "(" * 5000, "{'x': 'y'}", "['']"):
        with pytest.raises(UsageError):
            OnnxDetector(a_model(path, {"o": some}, names=names))
    for outputs in (
        {"o": np.zeros((1, 5), np.float32)},
        {"o": np.zeros((2, 7, 20), np.float32)},
        {"o": np.zeros((1, 3, 20), np.float32)},
        {name: np.zeros((1, 5), np.float32) for name in "abc"},
    ):
        with pytest.raises(UsageError, match="the outputs of the model"):
            boxes_of(OnnxDetector(a_model(path, outputs)))
    with pytest.raises(UsageError):
        OnnxDetector(path, head="x")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        OnnxDetector(path, overlap=2)


@pytest.fixture
def without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)


@pytest.mark.usefixtures("without_onnxruntime")
def test_missing_extra_is_reported(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"x")
    with pytest.raises(ExtraMissingError) as caught:
        OnnxDetector(tmp_path / "m.onnx")
    assert caught.value.hint == "pip install 'vfsd[onnx]'"


def test_letterboxes_are_exact() -> None:
    for width, height, picture in (
        (320, 240, (64, 64)),
        (1919, 1079, (640, 640)),
        (1, 5000, (640, 384)),
        (333, 77, (416, 416)),
    ):
        letterbox = Letterbox(width, height, picture)
        across, down = letterbox.scaled_size
        left, top = letterbox.offset
        made = letterbox.embed(np.full((down, across, 3), 7, np.uint8))
        assert made.shape == (picture[1], picture[0], 3)
        assert set(np.unique(made)) <= {7, 114}
        corners = np.array([[left, top, left + across, top + down]], np.float64)
        assert letterbox.to_frame(corners) == pytest.approx(np.array([[0, 0, width, height]]))
    assert SHOWN.scaled_size == (64, 48)
    assert SHOWN.offset == (0, 8)
