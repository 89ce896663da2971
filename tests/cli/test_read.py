"""``vfsd read``: the right frames, in the right form."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from sample_videos import FOLDER, read_frame_number
from tests.cli.conftest import Run
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.api.video import context_of
from vfsd.codecs.frames.planes import PIXEL_FORMATS
from vfsd.core.frame_table_pages import PacketColumns, paginate
from vfsd.core.output_formats import PIXEL_LAYOUTS
from vfsd.errors import ExistsError, UsageError

TRAFFIC = "cam1/traffic.mp4"
VFSD = (sys.executable, "-m", "vfsd")


def numbers(path: Path) -> list[int]:
    """The frame numbers drawn into the frames of an array."""
    return [read_frame_number(picture) for picture in np.load(path)]


@pytest.mark.parametrize(
    ("what", "frames"),
    one_in(
        3,
        [
            (("--frames", "3:9"), range(3, 9)),
            (("--frames", "10:100:30"), range(10, 100, 30)),
            (("--frames", "-2:"), range(118, 120)),
            (("--frames", "7"), range(7, 8)),
            (("--span", "0.5-1"), range(15, 30)),
            (("--span", "0:03.5-0:04"), range(105, 120)),
            (("--span", "3.9-"), range(117, 120)),
            (("--at", "1.99"), range(59, 60)),
            (("--span", "0-2", "--fps", "5"), range(0, 60, 6)),
            ((), range(120)),
        ],
    ),
)
def test_array_contains_the_requested_frames(
    run: Run, place: Path, what: tuple[str, ...], frames: range
) -> None:
    done = run("read", TRAFFIC, "out.npy", *what, "--json")
    assert done.code == 0, done.err
    assert numbers(place / "out.npy") == list(frames)
    assert done.object["frames"] == len(frames)
    assert done.object["bytes"] == (place / "out.npy").stat().st_size


def test_region_is_cropped_and_scaled(run: Run, place: Path) -> None:
    run("read", TRAFFIC, "all.npy", "--frames", "0:2")
    run("read", TRAFFIC, "cut.npy", "--frames", "0:2", "--region", "80x60+100+50")
    whole, cut = np.load(place / "all.npy"), np.load(place / "cut.npy")
    assert np.array_equal(whole[:, 50:110, 100:180], cut)
    done = run("read", TRAFFIC, "s.npy", "--at", "0", "--region", "80x60+100+50", "--size", "40x0")
    assert done.code == 0, done.err
    assert np.load(place / "s.npy").shape == (1, 30, 40, 3)


def test_png_is_lossless(run: Run, place: Path) -> None:
    done = run("read", TRAFFIC, "still.png", "--at", "1.5", "--json")
    assert done.object["files"] == ["still.png"]
    picture = cv2.imread(str(place / "still.png"), cv2.IMREAD_UNCHANGED)
    assert picture is not None
    with Store.open(place / "videos") as store:
        frame = store[TRAFFIC].frame_at(1.5)
    assert np.array_equal(picture[..., ::-1], frame.data)


def test_several_pictures_have_frame_numbers_in_their_names(run: Run, place: Path) -> None:
    done = run("read", TRAFFIC, "f-%04d.jpg", "--frames", "0:120:50", "--json")
    assert done.object["files"] == ["f-0000.jpg", "f-0050.jpg", "f-0100.jpg"]
    for number in (0, 50, 100):
        picture = cv2.imread(str(place / f"f-{number:04}.jpg"))
        assert picture is not None
        assert read_frame_number(picture[..., ::-1].astype(np.uint8)) == number


def test_several_frames_need_a_pattern(run: Run, place: Path) -> None:
    assert run("read", TRAFFIC, "still.png", "--frames", "0:2").code == 2
    assert not (place / "still.png").exists()


@pytest.mark.parametrize(
    ("out", "form", "per_frame"),
    [
        ("a.rgb", (), 320 * 240 * 3),
        ("a.yuv", (), 320 * 240 * 3 // 2),
        ("a.raw", ("--format", "gray"), 320 * 240),
        ("a.raw", ("--format", "gray16"), 320 * 240 * 2),
        ("a.yuv", ("--format", "yuv422p"), 320 * 240 * 2),
    ],
)
def test_raw_pixels(run: Run, place: Path, out: str, form: tuple[str, ...], per_frame: int) -> None:
    done = run("read", TRAFFIC, out, "--frames", "4:7", *form)
    assert done.code == 0, done.err
    assert (place / out).stat().st_size == 3 * per_frame


def test_overwriting_needs_an_option(run: Run, place: Path) -> None:
    (place / "a.rgb").write_bytes(b"mine")
    assert run("read", TRAFFIC, "a.rgb", "--at", "0").code == 4
    assert (place / "a.rgb").read_bytes() == b"mine"
    assert run("read", TRAFFIC, "a.rgb", "--at", "0", "--replace").code == 0
    assert (place / "a.rgb").stat().st_size == 320 * 240 * 3


def test_output_to_a_device(run: Run) -> None:
    assert run("read", TRAFFIC, "/dev/null", "--at", "0").code == 2
    os.symlink("/dev/null", "sink.rgb")
    assert run("read", TRAFFIC, "sink.rgb", "--at", "0").code == 0
    assert Path("sink.rgb").is_symlink()


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("a.npy", "--frames", "119:121"), 6),
        (("a.npy", "--at", "4"), 6),
        (("a.npy", "--span", "5-6"), 6),
        (("a.npy", "--region", "10x10+311+0"), 6),
        (("a.npy", "--at", "0", "--frames", "0"), 2),
        (("a.npy", "--span", "2-1"), 2),
        (("a.npy", "--region", "10x10"), 2),
        (("a.npy", "--size", "0x0"), 2),
        (("a.npy", "--fps", "0"), 2),
        (("a.npy", "--fps", "1/0"), 2),
        (("a.npy", "--at", "soon"), 2),
        (("a.gif",), 2),
        (("a",), 2),
        (("a.png", "--at", "0", "--format", "yuv420p"), 2),
        (("-", "--json"), 2),
    ],
)
def test_failed_read_leaves_no_files(
    run: Run, place: Path, args: tuple[str, ...], code: int
) -> None:
    before = sorted(os.listdir(place))
    done = run("read", TRAFFIC, *args)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(("vfsd: ", "{"))
    assert sorted(os.listdir(place)) == before


def test_every_pixel_format() -> None:
    assert sorted(PIXEL_LAYOUTS) == sorted(PIXEL_FORMATS)


def test_missing_video_is_reported(run: Run) -> None:
    assert run("read", "cam1/none.mp4", "a.npy").code == 3


# ---------------------------------------------------------------------------------- wrong tables


def promise_another_frame(root: Path, name: str) -> None:
    """Make the frame table list one extra frame with bytes from its start."""
    with Store.open(root) as store:
        video = store[name]
        table, original = context_of(video).table, video.original
        old = table.columns(0, table.packets)
        end = original.end_pts
        columns = PacketColumns(
            np.append(old.pts, end),
            np.append(old.dts, end),
            np.append(old.position, 0),
            np.append(old.size, 8),
            np.append(old.flags, np.uint8(0)),
        )
        order = np.append(table.packets_of(range(len(table))), len(old))
        wrong = dataclasses.replace(
            original, frames=len(order), packets=len(columns), end_pts=end + 512, verified=False
        )
        with store.catalog.writing() as change:
            change.videos.replace_table(original.id, wrong, paginate(columns, order))


@pytest.mark.parametrize("out", one_in(2, ["all.npy", "all.mp4"]))
def test_read_corrects_a_table_with_an_extra_frame(run: Run, place: Path, out: str) -> None:
    promise_another_frame(place / "videos", TRAFFIC)
    assert run("info", TRAFFIC, "--json").object["frames"] == 121
    done = run("read", TRAFFIC, out, "--size", "160x120", "--json")
    assert done.code == 0, done.err
    assert done.object["frames"] == 120
    assert run("info", TRAFFIC, "--json").object["frames"] == 120


def test_verify_corrects_the_table(run: Run, place: Path) -> None:
    promise_another_frame(place / "videos", TRAFFIC)
    done = run("verify", "--all", "--json")
    found = {video["name"]: (video["status"], video["frames"]) for video in done.objects}
    assert (done.code, found[TRAFFIC]) == (0, ("corrected", 120))


# ----------------------------------------------------------------------------------------- videos


@pytest.mark.parametrize(
    ("out", "what", "frames"),
    one_in(
        2,
        [
            ("cut.mp4", ("--span", "1-2"), range(30, 60)),
            ("cut.mkv", ("--frames", "7:20"), range(7, 20)),
            ("cut.mp4", ("--span", "1-2", "--codec", "hevc"), range(30, 60)),
            ("cut.h264", ("--span", "0-2", "--fps", "10"), range(0, 60, 3)),
        ],
    ),
)
def test_video_output_has_the_requested_frames(
    run: Run, place: Path, out: str, what: tuple[str, ...], frames: range
) -> None:
    done = run("read", TRAFFIC, out, *what, "--json")
    assert done.code == 0, done.err
    assert (done.object["frames"], done.object["width"]) == (len(frames), 320)
    assert done.object["bytes"] == (place / out).stat().st_size
    assert run("ingest", out).code == 0
    assert run("read", out, "again.npy").code == 0
    assert numbers(place / "again.npy") == list(frames)
    codec = "hevc" if "hevc" in what else "h264"
    assert run("info", out, "--json").object["codec"] == codec


def test_region_of_video_output_has_an_even_size(run: Run, place: Path) -> None:
    args = ("--frames", "0:5", "--region", "81x61+100+50")
    done = run("read", TRAFFIC, "cut.mp4", *args, "--json")
    assert done.code == 0, done.err
    assert (done.object["width"], done.object["height"]) == (80, 60)


@pytest.mark.thorough
def test_region_of_raw_planes_keeps_every_column(run: Run, place: Path) -> None:
    args = ("--frames", "0:5", "--region", "81x61+100+50")
    done = run("read", TRAFFIC, "cut.y4m", *args, "--json")
    assert done.code == 0, done.err
    assert (done.object["width"], done.object["height"]) == (81, 61)
    assert (place / "cut.y4m").read_bytes().startswith(b"YUV4MPEG2 W81 H61 ")
    each = 81 * 61 + 2 * 41 * 31
    done = run("read", TRAFFIC, "cut.yuv", *args, "--json")
    assert done.code == 0, done.err
    assert (done.object["width"], done.object["height"]) == (81, 61)
    assert done.object["bytes"] == (place / "cut.yuv").stat().st_size == 5 * each
    piped = subprocess.run(
        [*VFSD, "-s", "videos", "read", TRAFFIC, "-", *args, "--format", "yuv420p"],
        capture_output=True,
        check=True,
    )
    assert piped.stdout == (place / "cut.yuv").read_bytes()


@pytest.mark.parametrize(
    "args",
    [("a.mp4", "--format", "rgb24"), ("a.h264", "--codec", "hevc"), ("a.npy", "--codec", "h264")],
)
def test_impossible_video_options_are_refused(run: Run, place: Path, args: tuple[str, ...]) -> None:
    assert run("read", TRAFFIC, *args).code == 2
    assert not (place / args[0]).exists()


def test_video_output_has_audio_unless_disabled(run: Run, place: Path) -> None:
    loud = run("read", TRAFFIC, "loud.mp4", "--span", "1-2", "--json")
    assert (loud.object["sound"], loud.object["silence"]) == ("aac", None)
    silent = run("read", TRAFFIC, "silent.mkv", "--span", "1-2", "--no-sound", "--json")
    assert (silent.object["sound"], silent.object["silence"]) == (None, "no sound was requested")
    for name, count in (("loud.mp4", 1), ("silent.mkv", 0)):
        with av.open(str(place / name)) as opened:
            assert len(opened.streams.audio) == count
    bare = run("read", TRAFFIC, "bare.h264", "--span", "1-2", "--json")
    assert (bare.object["sound"], bare.object["silence"]) == (None, "h264 has no sound")
    said = {
        "fast.mp4": ("--frames", "0:50:5"),
        "quiet.mp4": ("--span", "1-2", "--no-sound"),
        "bare.hevc": ("--frames", "0:2"),
    }
    for name, words in said.items():
        missed = "without sound (the view runs faster" in run("read", TRAFFIC, name, *words).err
        assert missed == (name == "fast.mp4")
    refused = run("read", TRAFFIC, "a.npy", "--no-sound")
    assert refused.code == 2
    assert "cannot have sound" in refused.err


def test_info_shows_audio(run: Run) -> None:
    told = run("info", TRAFFIC, "--json").object["sound"]
    assert (told["codec"], told["silence"]) == ("aac", None)
    assert told["packets"] > 100
    assert "aac, also in views" in run("info", TRAFFIC).out


@pytest.mark.parametrize("out", ["a.npy", "a.png", "frame-%06d.jpg", "a.raw", "a.mp4"])
def test_empty_span_keeps_the_existing_file(run: Run, place: Path, out: str) -> None:
    """The span lies between frames 30 and 31 of a video with 30 fps."""
    (place / out).write_bytes(b"good")
    done = run("read", TRAFFIC, out, "--span", "1.001-1.002", "--replace")
    assert done.code == 6
    assert "no frame appears" in done.err
    assert (place / out).read_bytes() == b"good"
    assert [file.name for file in place.iterdir() if file.suffix == Path(out).suffix] == [out]


@pytest.mark.parametrize("span", ["1:30", "5", "1:2:3", "1-2-3", ":"])
def test_ambiguous_span(run: Run, place: Path, span: str) -> None:
    done = run("read", TRAFFIC, "out.npy", "--span", span)
    assert done.code == 2
    assert not (place / "out.npy").exists()


def test_span_without_dash_names_both_readings(run: Run, place: Path) -> None:
    done = run("read", TRAFFIC, "out.npy", "--span", "1:30")
    assert "span must be A-B in seconds, got '1:30'" in done.err
    assert "write 1-30 for 1 s to 30 s, or 1:30- from 90 s on" in done.err


@pytest.mark.parametrize("name", ["out.npy", "out.mp4", "out.png"])
def test_psnr_must_be_a_number(run: Run, place: Path, name: str) -> None:
    done = run("read", TRAFFIC, name, "--frames", "0", "--psnr", "nan")
    assert done.code == 2
    assert "must be a number, got 'nan'" in done.err


def test_psnr_must_be_a_number_in_python(place: Path) -> None:
    with Store.open(place / "videos") as store:
        video = store[TRAFFIC]
        with pytest.raises(UsageError, match=r"psnr must be .*, got nan"):
            video.read(frames=range(1), psnr=math.nan)
        with pytest.raises(UsageError, match=r"psnr must be .*, got nan"):
            video.save(place / "out.mp4", frames=range(1), psnr=math.nan)


def test_failed_output_is_reported_by_its_own_name(run: Run, place: Path) -> None:
    name = f"{'n' * 252}.png"
    done = run("read", TRAFFIC, name, "--at", "1")
    assert done.code == 1
    assert f"{name}: File name too long" in done.err
    assert ".part" not in done.err


def test_growing_video_is_read_to_its_current_end(run: Run, place: Path) -> None:
    with Store.open(place / "videos") as store:
        with store.writer("live.mp4", width=64, height=48, fps=10, codec="ffv1") as writer:
            early = run("read", "live.mp4", "early.png", "--at", "0")
            assert (early.code, "nothing can be read of" in early.err) == (12, True)
            for level in range(40):
                writer.write(np.full((48, 64, 3), 5 * level, np.uint8))
            told = run("read", "live.mp4", "still.png", "--at", "0.5", "--json").object
            assert (told["frames"], told["growing"], told["psnr"]) == (1, True, None)
            assert np.array_equal(cv2.imread("still.png"), np.full((48, 64, 3), 25))  # type: ignore[arg-type]
            done = run("read", "live.mp4", "some.npy", "--frames", "0:10:5", "--size", "32x24")
            assert "from the part written so far" in done.err
            assert np.load("some.npy").shape == (2, 24, 32, 3)
            late = run("read", "live.mp4", "late.png", "--at", "60")
            assert late.code == 6
            assert "still being written: so far " in late.err
            assert run("read", "live.mp4", "late.npy", "--frames", "30:4000").code == 6
            for refused in (("clip.mp4",), ("odd.yuv", "--region", "33x31+0+0")):
                done = run("read", "live.mp4", *refused)
                assert (done.code, "is still being written" in done.err) == (12, True)
        told = run("read", "live.mp4", "whole.npy", "--json").object
    assert (told["frames"], told["growing"]) == (40, False)
    assert not list(place.glob("late*"))


def test_video_being_published_is_not_missing(run: Run, place: Path) -> None:
    with Store.open(place / "videos") as store:
        writer = store.writer("done.mp4", width=64, height=48, fps=10, codec="ffv1")
        writer.write(np.zeros((30, 48, 64, 3), np.uint8))
        # Finished but not published: another video takes the name and releases it.
        store.ingest(FOLDER / "traffic.mp4", "done.mp4")
        with pytest.raises(ExistsError):
            writer.close()
        store.remove("done.mp4")
        done = run("read", "done.mp4", "still.png", "--at", "0")
        assert (done.code, "'done.mp4' is being finished" in done.err) == (12, True)
        assert "in a moment" in done.err
        writer.close()
    assert run("read", "done.mp4", "still.png", "--at", "0").code == 0
    assert run("read", "gone.mp4", "other.png", "--at", "0").code == 3


def test_crops_of_a_file(run: Run, place: Path) -> None:
    boxes = [(90, (10, 20, 50, 60)), (7, (0.5, 0, 30, 40)), (90, (100, 100, 140, 120))]
    lines = [f"{frame},car,{','.join(map(str, box))}" for frame, box in boxes]
    (place / "boxes.csv").write_text("\n".join(["frame,label,x1,y1,x2,y2", *lines, ""]))
    done = run("read", TRAFFIC, "c-%02d.png", "--crops", "boxes.csv", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["files"] == ["c-00.png", "c-01.png", "c-02.png"]
    done = run("read", TRAFFIC, "c.npy", "--crops", "boxes.csv", "--size", "24x16", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["width"] == 24
    with Store.open(place / "videos") as store:
        video = store[TRAFFIC]
        for at, crop in enumerate(video.crops(boxes)):
            picture = cv2.imread(str(place / f"c-{at:02}.png"))
            assert picture is not None
            assert np.array_equal(picture[..., ::-1], crop.data)
        want = np.stack([crop.data for crop in video.crops(boxes, size=(24, 16))])
        assert np.array_equal(np.load(place / "c.npy"), want)


@pytest.mark.parametrize(
    ("text", "args", "words"),
    [
        ("frame,x1,y1,x2\n", ["c.png"], "must have the columns"),
        ("frame,x1,y1,x2,y2\n", ["c.png"], "at least one box"),
        ("frame,x1,y1,x2,y2\n1,2,3,4,wide\n", ["c.png"], "line 2"),
        ("frame,x1,y1,x2,y2\n1,2,3,4,5\n", ["c.npy"], "need --size WxH"),
        ("frame,x1,y1,x2,y2\n1,2,3,4,5\n", ["c.mp4"], "not with a video"),
        ("frame,x1,y1,x2,y2\n1,2,3,4,5\n", ["c.png", "--span", "0-1"], "--crops goes with"),
    ],
)
def test_malformed_crops_are_refused(
    run: Run, place: Path, text: str, args: list[str], words: str
) -> None:
    (place / "boxes.csv").write_text(text)
    done = run("read", TRAFFIC, *args, "--crops", "boxes.csv")
    assert (done.code, words in done.err) == (2, True), done.err
    assert not (place / args[0]).exists()
