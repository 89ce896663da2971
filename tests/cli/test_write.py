"""``vfsd write``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.cli.conftest import Y4M, Run
from tests.support.audio_clips import make_talking
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.errors import ExistsError


def test_raw_pixels_from_a_pipe(run: Run, place: Path) -> None:
    data = np.random.default_rng(0).integers(0, 255, (6, 48, 64, 3), np.uint8)
    how = ("--size", "64x48", "--fps", "30000/1001", "--codec", "ffv1")
    done = run("write", "new/a.mp4", "-", *how, "--json", input=data.tobytes()).object
    assert done["name"] == "new/a.mp4"
    assert (done["frames"], done["width"], done["height"]) == (6, 64, 48)
    assert (done["codec"], done["pixel_format"]) == ("ffv1", "bgr0")
    assert done["seconds"] == pytest.approx(6 * 1001 / 30000)
    with Store.open(place / "videos") as store:
        assert np.array_equal(store["new/a.mp4"].read().data, data)
    assert run("fsck", "--deep").code == 0


@pytest.mark.thorough
def test_small_pieces_from_a_pipe(place: Path) -> None:
    """Small pieces of input are combined; stdin need not be named."""
    code = "import os\nfor byte in open('clip.y4m', 'rb').read(): os.write(1, bytes([byte]))"
    with subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE) as source:
        command = [sys.executable, "-m", "vfsd", "-s", "videos", "write", "a.mp4"]
        done = subprocess.run(command, stdin=source.stdout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "7 frames of 64x48" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "whole", "each"),
    one_in(
        2,
        [
            ((), Y4M, (len(Y4M) - Y4M.index(b"FRAME")) // 7),
            (("--size", "64x48", "--fps", "10"), bytes(64 * 48 * 3 * 7), 64 * 48 * 3),
        ],
    ),
    ids=["y4m", "bare"],
)
@pytest.mark.parametrize("left", one_in(4, [1, 4, 6, 4000]))
def test_broken_pipe_keeps_complete_frames(
    run: Run, place: Path, words: tuple[str, ...], whole: bytes, each: int, left: int
) -> None:
    """The process at the other end is killed in the middle of a frame."""

    def piped(size: int) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "vfsd", "-s", "videos", "write", "a.mp4", "-", *words]
        with subprocess.Popen(["head", "-c", str(size), "whole"], stdout=subprocess.PIPE) as source:
            return subprocess.run([*command, "--json"], stdin=source.stdout, capture_output=True)

    (place / "whole").write_bytes(whole)
    done = piped(len(whole) - 3 * each + left)
    told = json.loads(done.stderr)
    assert (done.returncode, told["error"], done.stdout) == (2, "CutOffError", b"")
    assert told["message"].startswith("frame 4 ")
    assert "truncated" in told["message"]
    assert "4 frames were saved" in told["hint"]
    assert "`vfsd recover`" in told["hint"]
    assert run("ls", "a.mp4").code == 3
    assert run("recover", "--json").object["frames"] == 4
    assert run("info", "a.mp4", "--json").object["frames"] == 4
    done = piped(len(whole) - 7 * each + left)
    assert (done.returncode, b"frame 0 " in done.stderr) == (2, True)
    assert run("recover", "--dry-run").out == ""
    assert run("fsck", "--deep").code == 0


def test_y4m_header_sets_the_format(run: Run, place: Path) -> None:
    assert run("write", "a.mp4", "clip.y4m", "--lossless", "--tag", "x").code == 0
    with Store.open(place / "videos") as store:
        video = store["a.mp4"]
        assert (len(video), float(video.fps)) == (7, 10.0)
        assert video.info.tags == {"x"}
        assert str(video.original.media.sample_aspect_ratio) == "4/3"
        assert video.original.media.color_range == "full"
        luma = video.read(format="yuv420p").data[:, 0, 0]
        assert luma.tolist() == [16 * number for number in range(7)]
    kept = run("write", "a.y4m", "clip.y4m", "--json").object
    assert kept["bytes"] == len(Y4M)


def test_numbered_pictures_are_sorted_by_number(run: Run, place: Path) -> None:
    how = ("--fps", "5", "--codec", "ffv1")
    assert run("write", "a.mp4", "stills/%06d.png", *how, "--json").object["frames"] == 3
    with Store.open(place / "videos") as store:
        assert store["a.mp4"].read().data[:, 0, 0, 0].tolist() == [3, 10, 200]
    cv2.imwrite("stills/deep-7.png", np.full((8, 16), 60000, np.uint16))
    assert run("write", "b.mkv", "stills/deep-%d.png", *how, "--json").object["pixel_format"] == (
        "gray16le"
    )
    cv2.imwrite("stills/000300.png", np.zeros((8, 8, 3), np.uint8))
    done = run("write", "c.mp4", "stills/%06d.png", *how)
    assert (done.code, "000300.png" in done.err) == (2, True)
    cv2.imwrite("stills/clear-1.png", np.zeros((8, 8, 4), np.uint8))
    assert "4 channels" in run("write", "c.mp4", "stills/clear-%d.png", *how).err
    assert run("write", "c.mp4", "stills/none-%d.png", *how).code == 3


def test_video_input_is_copied(run: Run, place: Path) -> None:
    original = Path("footage/open-gop.mkv").read_bytes()
    assert run("write", "a.mkv", input=original).code == 0
    with Store.open(place / "videos") as store:
        assert store.parts.originals.path_of(store["a.mkv"].original).read_bytes() == original


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("pixels.rgb", "--size", "64x48"), 2, "--fps"),
        (("pixels.rgb", "--fps", "5"), 2, "--size"),
        (("pixels.rgb", "--size", "64x46", "--fps", "5"), 2, "are left"),
        (("pixels.rgb", "--size", "64x48", "--fps", "5", "--codec", "vp9"), 2, "vp9"),
        (("pixels.rgb", "--size", "64x48", "--fps", "5", "--encode-as", "nv12"), 2, "nv12"),
        (("pixels.rgb", "--quality", "3"), 2, "stored unchanged"),
        (("pixels.rgb",), 5, "no supported video format"),
        (("clip.y4m", "--pix", "gray"), 2, "--pix"),
        (("stills/%06d.png",), 2, "--fps"),
        (("nothing.rgb", "--size", "64x48", "--fps", "5"), 3, "file not found"),
        (("clip.y4m", "--sound", "nothing.wav"), 3, "file not found: nothing.wav"),
        (("clip.y4m", "--sound", "stills"), 2, "stills"),
    ],
)
def test_failed_write_leaves_nothing(
    run: Run, words: tuple[str, ...], code: int, what: str
) -> None:
    done = run("write", "a.mp4", *words)
    assert (done.code, done.out) == (code, "")
    assert what in done.err
    assert run("ls", "a.mp4").code == 3
    assert run("fsck", "--deep").code == 0


def test_existing_name_is_refused(run: Run) -> None:
    how = ("pixels.rgb", "--size", "64x48", "--fps", "5")
    done = run("write", "cam1/traffic.mp4", *how)
    assert (done.code, "--replace" in done.err) == (4, True)
    assert run("write", "cam1/traffic.mp4", *how, "--replace", "--json").object["frames"] == 5


@pytest.mark.parametrize("header", ["W64 H48", "W64 H48 F25:0", "W64 H48 F25:1 It", "W0 H4 F1:1"])
def test_damaged_headers(run: Run, header: str) -> None:
    done = run("write", "a.mp4", input=Y4M.replace(b"W64 H48 F10:1 Ip", header.encode()))
    assert done.code == 2
    assert run("write", "a.mp4", input=Y4M[:-1]).code == 2
    assert run("write", "a.mp4", input=Y4M + b"nonsense").code == 2
    assert run("ls", "a.mp4").code == 3


@pytest.mark.parametrize("more", ["W32", "H48", "F10:1", "C420mpeg2"])
def test_repeated_y4m_header_fields_are_refused(run: Run, more: str) -> None:
    done = run("write", "a.mp4", input=Y4M.replace(b" Ip ", f" Ip {more} ".encode()))
    assert (done.code, f"must not have {more[0]} twice" in done.err) == (2, True)


def test_missing_rate_in_header_is_reported(run: Run) -> None:
    unknown = Y4M.replace(b"F10:1", b"F0:0")
    done = run("write", "a.mp4", input=unknown)
    assert (done.code, "add --fps" in done.err) == (2, True)
    done = run("write", "a.mp4", "--fps", "5", "--json", input=unknown)
    assert (done.object["frames"], done.object["seconds"]) == (7, 1.4)


def test_audio_from_a_second_file(run: Run, place: Path) -> None:
    make_talking(place / "talk.mp4", "aac", frames=25)
    assert run("write", "loud.mp4", "clip.y4m", "--sound", "talk.mp4", "--psnr", "40").code == 0
    told = run("info", "loud.mp4", "--json").object
    assert (told["frames"], told["sound"]["codec"], told["sound"]["silence"]) == (7, "aac", None)
    done = run("write", "kept.mp4", "footage/traffic.mp4", "--sound", "talk.mp4")
    assert done.code == 2


def test_target_below_a_file_is_refused_at_once(run: Run, place: Path) -> None:
    name = "cam1/traffic.mp4/x.mp4"
    for words in (
        ("write", name, "clip.y4m"),
        ("write", f"{name}/y.mp4", "clip.y4m", "--replace"),
        ("ingest", "footage/portrait.mp4", "--as", name),
        ("ingest", "footage/portrait.mp4", "--as", name, "--dry-run"),
    ):
        done = run(*words)
        assert done.code == 4
        assert "'traffic.mp4' in" in done.err.replace("\n", " ")
    with Store.open(place / "videos") as store, pytest.raises(ExistsError):
        store.writer(name, width=64, height=48, fps=10)
    assert run("recover", "--dry-run").out == ""
