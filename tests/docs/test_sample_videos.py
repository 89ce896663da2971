"""The sample videos: scenes match their description, and the committed clips contain them."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import numpy.typing as npt
import pytest

from sample_videos import (
    CLIPS,
    FOLDER,
    Encoding,
    GroundTruth,
    Scene,
    problems,
    read_frame_number,
    write,
)
from sample_videos.__main__ import main
from sample_videos.stamp import write_frame_number
from tests.support.selection import one_in

BUSY = Scene(320, 240, frames=150, density=0.2, pan=10, drift=0.3, seed=21)
EMPTY = dataclasses.replace(BUSY, density=0.0)


def changed(index: int) -> npt.NDArray[np.uint8]:
    """The difference in levels that the objects make, per pixel."""
    difference = cv2.absdiff(BUSY.frame(index), EMPTY.frame(index))
    return np.asarray(difference.max(axis=2), np.uint8)


def top_level_atoms(path: Path) -> list[str]:
    """The names of an MP4 file's outermost atoms, in the order of the file."""
    data, names, position = path.read_bytes(), [], 0
    while position < len(data):
        names.append(data[position + 4 : position + 8].decode("ascii"))
        position += int.from_bytes(data[position : position + 4])
    return names


def leading_frames(path: Path) -> int:
    """The number of frames displayed before the key frame that they follow in the file."""
    newest_key, leading = None, 0
    with av.open(str(path)) as source:
        for packet in source.demux(video=0):
            if packet.pts is None:
                continue
            if packet.is_keyframe:
                newest_key = packet.pts
            elif newest_key is not None and packet.pts < newest_key:
                leading += 1
    return leading


# --------------------------------------------------------------------------------------- scenes


def test_frames_are_deterministic() -> None:
    scene = Scene(320, 240, frames=30, density=0.2, pan=10, seed=5)
    forwards = [scene.frame(index) for index in range(scene.frames)]
    for index in reversed(range(scene.frames)):
        assert np.array_equal(scene.frame(index), forwards[index])
    program = (
        "import hashlib; from sample_videos import Scene;"
        "s = Scene(320, 240, frames=30, density=0.2, pan=10, seed=5);"
        "print(hashlib.sha256(s.frame(17).tobytes() + repr(s.boxes(17)).encode()).hexdigest())"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    here = hashlib.sha256(forwards[17].tobytes() + repr(scene.boxes(17)).encode()).hexdigest()
    assert elsewhere.stdout.strip() == here


def test_returned_frame_may_be_changed() -> None:
    before = BUSY.frame(3)
    BUSY.frame(3)[:] = 0
    assert np.array_equal(BUSY.frame(3), before)


@pytest.mark.parametrize("index", [-1, BUSY.frames])
def test_out_of_range_indices_are_refused(index: int) -> None:
    with pytest.raises(IndexError):
        BUSY.frame(index)
    with pytest.raises(IndexError):
        BUSY.boxes(index)


@pytest.mark.parametrize("index", one_in(3, [0, 40, 149]))
def test_objects_are_inside_their_boxes(index: int) -> None:
    difference = changed(index)
    boxes = BUSY.boxes(index)
    assert boxes
    outside = np.ones(difference.shape, bool)
    for box in boxes:
        outside[box.y1 : box.y2, box.x1 : box.x2] = False
        inside = difference[box.y1 : box.y2, box.x1 : box.x2]
        stamped = box.y1 < 16 and box.x1 < 96
        assert stamped or inside.mean() > 15, box
    assert not difference[outside].any()


def test_boxes_are_tight() -> None:
    measured = 0
    for index in range(0, BUSY.frames, 10):
        boxes = BUSY.boxes(index)
        for box in boxes:
            alone = not any(
                other.track != box.track
                and max(box.x1, other.x1) < min(box.x2, other.x2)
                and max(box.y1, other.y1) < min(box.y2, other.y2)
                for other in boxes
            )
            if alone and box.y1 >= 16:
                part = changed(index)[box.y1 : box.y2, box.x1 : box.x2]
                x, y, width, height = cv2.boundingRect((part > 0).astype(np.uint8))
                # An outermost pixel may have the color of the background.
                assert max(x, y) <= 1, (index, box)
                assert width >= part.shape[1] - 2, (index, box)
                assert height >= part.shape[0] - 2, (index, box)
                measured += 1
    assert measured > 10


def test_tracks_move_smoothly_and_enter_at_the_sides() -> None:
    frames_of: dict[int, list[int]] = {}
    entered = left = 0
    for index in range(BUSY.frames):
        for box in BUSY.boxes(index):
            assert 0 <= box.x1 < box.x2 <= BUSY.width
            assert 0 <= box.y1 < box.y2 <= BUSY.height
            frames_of.setdefault(box.track, []).append(index)
    for track, frames in frames_of.items():
        assert frames == list(range(frames[0], frames[-1] + 1))
        boxes = [next(b for b in BUSY.boxes(i) if b.track == track) for i in frames]
        assert len({box.label for box in boxes}) == 1
        # At the sides a box shrinks to its visible part, which may jump.
        whole = [box for box in boxes if box.x1 > 0 and box.x2 < BUSY.width]
        for before, after in itertools.pairwise(whole):
            assert abs(after.x1 - before.x1) <= 8
            assert abs(after.y1 - before.y1) <= 2
        if frames[0] > 0:
            assert boxes[0].x1 == 0 or boxes[0].x2 == BUSY.width
            entered += 1
        if frames[-1] < BUSY.frames - 1:
            assert boxes[-1].x1 == 0 or boxes[-1].x2 == BUSY.width
            left += 1
    assert entered
    assert left
    labels = {box.label for index in range(BUSY.frames) for box in BUSY.boxes(index)}
    assert len(labels) >= 3


@pytest.mark.parametrize("density", one_in(3, [0.02, 0.1, 0.4]))
def test_density_is_close_to_the_request(density: float) -> None:
    scene = Scene(640, 360, frames=1500, density=density, seed=2)
    covered = []
    for index in range(0, scene.frames, 15):
        mask = np.zeros((scene.height, scene.width), bool)
        for box in scene.boxes(index):
            mask[box.y1 : box.y2, box.x1 : box.x2] = True
        covered.append(mask.mean())
    assert np.mean(covered) == pytest.approx(density, rel=0.25)


def test_only_requested_classes_appear() -> None:
    scene = dataclasses.replace(BUSY, classes=("dog", "person"))
    labels = {box.label for index in range(0, 150, 10) for box in scene.boxes(index)}
    assert labels == {"dog", "person"}


def test_noise_is_independent_per_frame_and_of_requested_strength() -> None:
    scene = Scene(320, 240, frames=20, density=0, noise=2.0, numbered=False)
    pictures = [scene.frame(index).astype(float) for index in range(20)]
    steps = [np.std(b - a) for a, b in itertools.pairwise(pictures)]
    assert min(steps) > 0
    assert np.median(steps) == pytest.approx(2.0 * 2**0.5, rel=0.1)


def test_background_is_textured() -> None:
    grey = Scene(density=0, noise=0, numbered=False).frame(0).mean(axis=2)
    assert np.abs(np.diff(grey, axis=1)).mean() > 1
    assert grey.std() > 8


def test_light_drifts_periodically() -> None:
    scene = Scene(frames=100, density=0, drift=0.5)
    day, night, morning = (scene.frame(index)[20:].mean() for index in (0, 50, 99))
    assert night == pytest.approx(day / 2, rel=0.05)
    assert morning == pytest.approx(day, rel=0.05)


def test_pan_shifts_background_and_boxes() -> None:
    still = Scene(frames=91, density=0, noise=0, numbered=False, seed=4)
    panning = dataclasses.replace(still, pan=16)
    # After a quarter of its period the camera is 16 pixels to the right.
    assert np.array_equal(panning.frame(90)[:, :-16], panning.frame(0)[:, 16:])
    assert np.array_equal(still.frame(90), still.frame(0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 64},
        {"frames": 0},
        {"rate": Fraction(0)},
        {"density": 1.0},
        {"classes": ("unicorn",)},
        {"classes": ()},
        {"noise": -1.0},
        {"drift": 1.5},
        {"pan": -1},
    ],
)
def test_impossible_scenes_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Scene(**wrong)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- frame numbers


@pytest.mark.parametrize("size", [(96, 16), (160, 120), (321, 243), (1920, 1080)])
@pytest.mark.parametrize("number", one_in(4, [0, 1, 0x5A5A5A, 0xFFFFFF]))
def test_frame_numbers_are_read_back(size: tuple[int, int], number: int) -> None:
    width, height = size
    picture = np.full((height, width, 3), 128, np.uint8)
    write_frame_number(picture, number)
    assert read_frame_number(picture) == number


def test_frame_numbers_survive_scaling_and_heavy_compression() -> None:
    picture = Scene(1280, 720, frames=3000, density=0).frame(2741)
    small = cv2.resize(picture, (480, 270), interpolation=cv2.INTER_AREA)
    written, coded = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, 10])
    assert written
    again = cv2.imdecode(coded, cv2.IMREAD_COLOR)
    assert again is not None
    assert read_frame_number(again.astype(np.uint8)) == 2741


def test_frame_without_a_number_has_none() -> None:
    with pytest.raises(ValueError, match="neither black nor white"):
        read_frame_number(Scene(numbered=False).frame(0))
    with pytest.raises(ValueError, match="too small"):
        read_frame_number(np.zeros((10, 10, 3), np.uint8))


# ---------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("name", "encoding"),
    one_in(
        4,
        [
            ("a.mp4", Encoding(audio=True, gop=10)),
            ("a.mkv", Encoding("hevc", closed_gop=False, variable_rate=True)),
            ("a.webm", Encoding("vp9", audio=True)),
            ("b.mp4", Encoding("av1")),
            ("a.avi", Encoding("mpeg4", bframes=0, audio=True)),
            ("b.avi", Encoding("mjpeg")),
            ("a.ts", Encoding(bframes=0, audio=True)),
            ("a.hevc", Encoding("hevc")),
            ("a.mov", Encoding(preset="medium", rotation=180, start=Fraction(-1, 5))),
        ],
    ),
    ids=lambda value: value if isinstance(value, str) else value.codec,
)
def test_equal_arguments_give_equal_bytes(tmp_path: Path, name: str, encoding: Encoding) -> None:
    scene = Scene(160, 128, frames=25, density=0.2, seed=3)
    files = []
    for folder in (tmp_path / "once", tmp_path / "again"):
        folder.mkdir()
        write(scene, encoding, folder / name)
        files.append((folder / name).read_bytes())
        assert problems(folder / name) == []
    assert files[0] == files[1]


def test_ground_truth_round_trip(tmp_path: Path) -> None:
    scene = Scene(frames=12, rate=Fraction(30000, 1001), classes=("car", "dog"), density=0.3)
    told: list[int] = []
    truth = write(scene, Encoding(audio=True), tmp_path / "x.mov", told.append)
    assert GroundTruth.load(tmp_path / "x.mov") == truth
    assert told == list(range(1, 13))


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("x.webm", Encoding("h264")),
        ("x.flv", Encoding()),
        ("x.mp4", Encoding("theora")),
        ("x.h264", Encoding(audio=True)),
        ("x.avi", Encoding("mpeg4", bframes=2)),
        ("x.avi", Encoding("mpeg4", bframes=0, variable_rate=True)),
        ("x.mkv", Encoding(faststart=True)),
        ("x.mkv", Encoding(start=Fraction(1))),
        ("x.mp4", Encoding("vp9", closed_gop=False)),
        ("x.mp4", Encoding(rotation=45)),
        ("x.mp4", Encoding(faststart=True, fragmented=True)),
    ],
)
def test_unsupported_codecs_of_a_container_are_refused(
    tmp_path: Path, name: str, encoding: Encoding
) -> None:
    with pytest.raises(ValueError, match=name.removeprefix("x")):
        write(Scene(frames=2), encoding, tmp_path / name)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------- clips


@pytest.mark.parametrize("name", one_in(5, CLIPS))
def test_committed_clips_match_their_ground_truth(name: str) -> None:
    truth = GroundTruth.load(FOLDER / name)
    assert (truth.scene, truth.encoding) == (CLIPS[name].scene, CLIPS[name].encoding)
    assert len(truth.boxes) == truth.frames
    assert 40 <= truth.frames <= 120
    assert problems(FOLDER / name) == []


def test_clips_are_small_and_all_listed() -> None:
    kept = {path.name for path in FOLDER.iterdir() if path.suffix not in {".py", ".md", ".json"}}
    assert kept - {"__pycache__"} == set(CLIPS)
    sizes = [(FOLDER / name).stat().st_size for name in CLIPS]
    assert max(sizes) < 300_000
    assert sum(sizes) < 1_500_000


def test_deviation_from_ground_truth_is_detected(tmp_path: Path) -> None:
    for name in ("late-start.mp4", "late-start.mp4.json"):
        shutil.copy(FOLDER / name, tmp_path / name)
    video = tmp_path / "late-start.mp4"
    truth = GroundTruth.load(video)
    assert truth.pts is not None
    departures = {
        "at tick": dataclasses.replace(truth, pts=(*truth.pts[:-1], truth.pts[-1] + 1)),
        "stands in the place": dataclasses.replace(truth, first_frame=1),
        "differs from its scene": dataclasses.replace(
            truth, scene=dataclasses.replace(truth.scene, seed=99)
        ),
        "the boxes of frame 3": dataclasses.replace(
            truth, boxes=(*truth.boxes[:3], (), *truth.boxes[4:])
        ),
        "45 frames are shown, not 44": dataclasses.replace(truth, first_frame=1),
    }
    for words, departure in departures.items():
        departure.save(video)
        assert any(words in problem for problem in problems(video)), words


def test_index_positions() -> None:
    behind = top_level_atoms(FOLDER / "traffic.mp4")
    assert behind.index("mdat") < behind.index("moov")
    before = top_level_atoms(FOLDER / "open-gop.mov")
    assert before.index("moov") < before.index("mdat")
    assert top_level_atoms(FOLDER / "fragmented.mp4").count("moof") == 4


@pytest.mark.parametrize("name", ["open-gop.mov", "open-gop.mkv"])
def test_open_gops_have_leading_frames(name: str) -> None:
    assert leading_frames(FOLDER / name) >= 6


@pytest.mark.parametrize("name", one_in(3, ["traffic.mp4", "variable-rate.mkv", "fragmented.mp4"]))
def test_closed_gops_have_no_leading_frames(name: str) -> None:
    assert leading_frames(FOLDER / name) == 0
    with av.open(str(FOLDER / name)) as source:
        order = [packet.pts for packet in source.demux(video=0) if packet.pts is not None]
    assert order != sorted(order)


def test_edit_lists_hide_and_delay() -> None:
    hidden = GroundTruth.load(FOLDER / "edit-list.mp4")
    assert hidden.first_frame == 7
    assert hidden.pts is not None
    assert hidden.pts[0] == 0
    late = GroundTruth.load(FOLDER / "late-start.mp4")
    assert late.pts is not None
    assert late.time_base is not None
    assert late.pts[0] * late.time_base == Fraction(1, 2)


@pytest.mark.parametrize("name", ["variable-rate.mkv", "variable-rate.mp4"])
def test_variable_rates_vary(name: str) -> None:
    truth = GroundTruth.load(FOLDER / name)
    assert truth.pts is not None
    steps = np.diff(truth.pts)
    assert steps.min() > 0
    assert steps.max() > 3 * steps.min()


@pytest.mark.parametrize("name", one_in(5, CLIPS))
def test_audio_matches_the_description(name: str) -> None:
    with av.open(str(FOLDER / name)) as source:
        assert len(source.streams.audio) == int(CLIPS[name].encoding.audio)
        if source.streams.audio:
            loudness = [np.abs(frame.to_ndarray()).max() for frame in source.decode(audio=0)]
            assert np.mean(np.array(loudness) > 0) > 0.8


def test_portrait_clip_has_a_rotation() -> None:
    with av.open(str(FOLDER / "portrait.mp4")) as source:
        frame = next(source.decode(video=0))
    assert (frame.width, frame.height, frame.rotation) == (320, 240, -90)


# --------------------------------------------------------------------------------- command line


def test_command_line_makes_a_scene(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.mkv"
    arguments = "--size 192x108 --rate 24 --seconds 1.5 --density 0.3 --codec hevc --gop 12"
    assert main(["scene", str(file), *arguments.split(), "--open-gop", "--vfr", "--seed", "7"]) == 0
    truth = GroundTruth.load(file)
    assert truth.scene == Scene(192, 108, frames=36, rate=Fraction(24), density=0.3, seed=7)
    assert truth.encoding == Encoding("hevc", gop=12, closed_gop=False, variable_rate=True)
    assert problems(file) == []
    assert "36/36 frames" in capsys.readouterr().err


def test_command_line_lists_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(CLIPS)
    assert main(["--check", "--out", str(tmp_path)]) == 1


def test_command_line_refuses_impossible_scenes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["scene", str(tmp_path / "x.webm"), "--codec", "h264"])
    assert "does not fit" in capsys.readouterr().err
