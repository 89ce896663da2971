"""Writing frames of another size to ``NAME@/``, and reading views, through the kernel."""

from __future__ import annotations

import errno
import math
import mmap
import os
import shutil
import subprocess
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.stream import VideoStream

from sample_videos import FOLDER
from tests.cli.conftest import run_command
from tests.mount.conftest import Mounted
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.core.pixel_array import Pixels

pytestmark = pytest.mark.mount

CLIP = FOLDER / "traffic.mp4"
SIZE = (160, 120)


@pytest.fixture
def at(mounted: Mounted) -> Path:
    """A mount with a video in it."""
    place = mounted.mount()
    shutil.copy(CLIP, place / "a.mp4")
    assert (place / "a.mp4@").is_dir()
    return place


def read(mounted: Mounted, format: str = "yuv420p") -> Pixels:
    with Store.open(mounted.store) as store:
        return store["a.mp4"].read(size=SIZE, format=format, psnr=math.inf).data


def renditions(mounted: Mounted) -> int:
    """The number of frames in all renditions."""
    with Store.open(mounted.store) as store:
        found = store.catalog.renditions(store["a.mp4"].info)
        left = list(store.parts.directory.objects_tmp.iterdir())
    assert not left
    return sum(len(segment.frames) for segment in found)


def failing(path: Path, data: bytes) -> str:
    """The name of the errno when writing a file fails."""
    try:
        with open(path, "wb", 0) as file:
            for at in range(0, len(data), 1 << 20):
                file.write(data[at : at + (1 << 20)])
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def y4m(pixels: Pixels) -> bytes:
    header = b"YUV4MPEG2 W160 H120 F30:1 Ip A0:0 C420mpeg2\n"
    return header + b"".join(b"FRAME\n" + picture.tobytes() for picture in pixels)


def encoded(path: Path, pixels: Pixels, codec: str) -> bytes:
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=30, options={"crf": "8"})
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        for number, picture in enumerate(pixels):
            frame = av.VideoFrame.from_ndarray(picture, format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 30)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return path.read_bytes()


@pytest.mark.parametrize(
    "name", one_in(4, ["size=160x120.yuv", "160x120.rgb", "160x120.y4m", "160x0.mp4"])
)
def test_write_rendition(mounted: Mounted, at: Path, tmp_path: Path, name: str) -> None:
    source = tmp_path / f"x.{name.rpartition('.')[2]}"
    if name.endswith(".rgb"):
        source.write_bytes(read(mounted, "rgb24").tobytes())
    elif name.endswith(".yuv"):
        source.write_bytes(read(mounted).tobytes())
    elif name.endswith(".y4m"):
        source.write_bytes(y4m(read(mounted)))
    else:
        encoded(source, read(mounted), "libx264")
    name = name.replace("160x0", "size=160x0")
    before = (at / "a.mp4@" / name).stat()
    subprocess.run(["cp", "-p", source, at / "a.mp4@" / name], check=True)
    assert renditions(mounted) == 120
    assert (at / "a.mp4@" / name).stat().st_size == before.st_size
    pixels = np.frombuffer((at / "a.mp4@" / "size=160x120.yuv").read_bytes(), np.uint8)
    wanted = read(mounted)
    luma = pixels.reshape(wanted.shape)[:, :120].astype(float) - wanted[:, :120]
    assert 10 * math.log10(255**2 / float(np.mean(luma**2))) >= 40
    assert "a.mp4@" not in {entry.name for entry in at.iterdir()}
    assert (at / "a.mp4").read_bytes() == CLIP.read_bytes()


def test_truncate_without_write(at: Path) -> None:
    """The kernel must not use the size 0 that it cached for the truncation."""
    view = at / "a.mp4@" / "size=160x120.yuv"
    before = view.read_bytes()
    with open(view, "r+b", 0) as file:
        file.truncate(0)
    assert view.stat().st_size == len(before)
    assert view.read_bytes() == before


def test_redirect_part_of_timeline(mounted: Mounted, at: Path, tmp_path: Path) -> None:
    """A shell opens, duplicates and closes before anything is written."""
    (tmp_path / "x.yuv").write_bytes(read(mounted)[30:60].tobytes())
    view = at / "a.mp4@" / "t=1-2,size=160x120.yuv"
    script = f"(head -c 100000; cat) < {tmp_path}/x.yuv > {view}"
    subprocess.run(["sh", "-c", script], check=True)
    subprocess.run(
        ["dd", f"if={tmp_path}/x.yuv", f"of={view}", "bs=64k", "status=none"], check=True
    )
    assert renditions(mounted) == 30


def test_other_frames_refused(mounted: Mounted, at: Path, tmp_path: Path) -> None:
    right = read(mounted)
    wrong = right.copy()
    wrong[60] = 16
    views = at / "a.mp4@"
    assert failing(views / "160x120.yuv", wrong.tobytes()) == "EMEDIUMTYPE"
    assert failing(views / "160x120.yuv", right.tobytes()[:-1]) == "EINVAL"
    assert failing(views / "160x120.yuv", right.tobytes() + b"x") == "EINVAL"
    assert failing(views / "160x120.y4m", y4m(right)[:-1]) == "EINVAL"
    assert failing(views / "160x120.y4m", y4m(right[:, :, :158])) == "EMEDIUMTYPE"
    assert failing(views / "160x120.mp4", b"no video") == "EMEDIUMTYPE"
    short = encoded(tmp_path / "short.mp4", right[:100], "libx264")
    assert failing(views / "160x120.mp4", short) == "EMEDIUMTYPE"
    assert renditions(mounted) == 0
    assert "luma of frame 60" in mounted.log.read_text()
    done = subprocess.run(["cp", CLIP, views / "160x120.mp4"], capture_output=True, text=True)
    assert done.returncode == 1  # in its full size
    assert renditions(mounted) == 0
    assert len((views / "160x120.yuv").read_bytes()) == right.size


def test_write_errors(at: Path) -> None:
    views = at / "a.mp4@"
    assert failing(views / "full.mp4", b"x") == "EINVAL"
    assert failing(views / "320x240.yuv", b"x") == "EINVAL"
    assert failing(views / "640x480.yuv", b"x") == "EINVAL"
    assert failing(views / "size=160x120,pix=nv12.raw", b"x") == "EINVAL"
    refused = "info.json", "frames/000000.png", "roi=80x60+0+0,size=40x30.yuv", "new.txt"
    for name in (*refused, "160x120x80y60.yuv"):
        assert failing(views / name, b"x") in ("EROFS", "EACCES")
    with pytest.raises(OSError, match="Invalid argument"):
        open(views / "160x120.yuv", "ab").close()
    assert (views / "info.json").stat().st_mode & 0o777 == 0o444
    assert (views / "160x120.yuv").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("name", "error"),
    one_in(
        4,
        [
            ("160x120.mp4", "EMEDIUMTYPE"),
            ("160x120.y4m", "EMEDIUMTYPE"),
            ("160x120.yuv", "EINVAL"),
            ("t=1-2,size=160x120.raw", "EINVAL"),
        ],
    ),
)
def test_empty_file(mounted: Mounted, at: Path, tmp_path: Path, name: str, error: str) -> None:
    (tmp_path / "empty").touch()
    view = at / "a.mp4@" / name
    assert failing(view, b"") == error
    done = subprocess.run(["cp", "-p", tmp_path / "empty", view], capture_output=True, text=True)
    assert done.returncode == 1
    assert "closing" in done.stderr or "close" in done.stderr
    assert view.stat().st_size
    assert renditions(mounted) == 0


def test_close_without_write(mounted: Mounted, at: Path) -> None:
    view = at / "a.mp4@" / "160x120.yuv"
    subprocess.run(["touch", view], check=True)
    with open(view, "r+b"):
        pass
    assert renditions(mounted) == 0
    assert "refused" not in mounted.log.read_text()


@pytest.mark.thorough
def test_views_of_read_only_mount(mounted: Mounted) -> None:
    shutil.copy(CLIP, mounted.mount() / "a.mp4")
    mounted.unmount()
    views = mounted.mount("ro") / "a.mp4@"
    assert failing(views / "160x120.yuv", b"x") == "EROFS"


# --------------------------------------------------------------------------------------------------
# Reading views


VIDEO = (FOLDER / "portrait.mp4").read_bytes()


def test_views_of_new_video(here: Path) -> None:
    for number in range(5):
        subprocess.run(["cp", FOLDER / "portrait.mp4", here / f"{number}.mp4"], check=True)
        info = subprocess.run(["cat", here / f"{number}.mp4@/info.json"], capture_output=True)
        assert info.returncode == 0
        assert b"portrait" in info.stdout or b"frames" in info.stdout


def test_views_are_files(here: Path) -> None:
    (here / "v.mp4").write_bytes(VIDEO)
    picture = here / "v.mp4@/frames/000003.png"
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) == os.stat(picture).st_size
    with open(picture, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:] == data
        file.seek(100)
        assert file.read(50) == data[100:150]
    assert sorted(os.listdir(here / "v.mp4@")) == [
        "README.txt",
        "explain",
        "frames",
        "info.json",
        "layout",
        "layout.png",
        "moments",
        "objects",
        "why",
    ]
    assert "no such view" in (here / "v.mp4@/why/no such view").read_text()
    with pytest.raises(OSError, match="Invalid argument"):
        (here / "v.mp4@/t=20-30.mp4").stat()
    reason = here / "v.mp4@/why/t=20-30.mp4"
    assert "20:30" in reason.read_text() or "20-30" in reason.read_text()
    assert reason.stat().st_size == len(reason.read_bytes())
    drawn = here / "v.mp4@/layout.png"
    assert len(drawn.read_bytes()) == drawn.stat().st_size
    told = here / "v.mp4@/why/full.mp4.txt"
    assert "Its packets are copied" in told.read_text()
    assert told.stat().st_size == len(told.read_bytes())
    with pytest.raises(FileNotFoundError):
        (here / "v.mp4@/no such view").stat()
    with pytest.raises(OSError, match="Read-only file system"):
        (here / "v.mp4@/new").touch()


@pytest.mark.thorough
def test_view_of_changed_source(mounted: Mounted) -> None:
    """The kernel caches the bytes of views, and must drop them when the source changes."""
    mounted.mount()
    at = mounted.at / "v.mp4"
    at.write_bytes((FOLDER / "traffic.mp4").read_bytes())
    view = Path(f"{at}@/roi=40x40+20+20.rgb")
    exact = view.read_bytes()
    with open(view, "rb") as before:
        assert before.read(4800) == exact[:4800]
        with Store.open(mounted.store) as store:
            store["v.mp4"].tiles.retile("uniform:3x4")
            tiled = store["v.mp4"].read(region=(20, 20, 60, 60)).data.tobytes()
        assert tiled != exact
        time.sleep(0.1)  # the mount polls for changes every 50 ms
        assert view.read_bytes() == tiled
        assert view.read_bytes() == tiled
        before.seek(0)
        assert before.read() == exact  # an open view keeps its own bytes
    assert view.read_bytes() == tiled
    assert view.read_bytes() == tiled


def test_sound_view_equals_that_of_the_library(mounted: Mounted) -> None:
    place = mounted.mount()
    shutil.copy(FOLDER / "late-start.mp4", place / "late.mp4")
    assert (place / "late.mp4@").is_dir()
    with (
        Store.open(mounted.store) as store,
        store["late.mp4"].views.open("t=0.5-2,rate=16000.wav") as file,
    ):
        expected = file.read()
    view = place / "late.mp4@" / "t=0.5-2,rate=16000.wav"
    assert view.stat().st_size == len(expected) == 44 + 2 * 16000
    assert view.read_bytes() == expected
    samples = np.frombuffer(expected[44:], "<i2")
    assert np.abs(samples[len(samples) // 2 :]).max() > 1000


def test_view_with_boxes_follows_its_boxes(mounted: Mounted, at: Path) -> None:
    view = at / "a.mp4@" / "frames=0-4,boxes=car.rgb"
    plain = (at / "a.mp4@" / "frames=0-4.rgb").read_bytes()
    with Store.open(mounted.store) as store:
        labels = store["a.mp4"].labels
        labels.add([(1, "car", (40, 40, 120, 120))], "me")
        first = view.read_bytes()
        assert view.read_bytes() == first != plain
        with open(view, "rb") as held:
            labels.add([(2, "car", (90, 90, 170, 170))], "me")
            changed = view.read_bytes()
            assert len(changed) == len(first)
            assert changed != first
            with store["a.mp4"].views.open(view.name) as file:
                assert file.read() == changed
            assert held.read(64) == first[:64]
        labels.remove(labels="car")
        assert view.read_bytes() == plain


def test_moments_are_files(mounted: Mounted, at: Path) -> None:
    folder = at / "a.mp4@" / "moments"
    assert list(folder.iterdir()) == []
    with Store.open(mounted.store) as store:
        video = store["a.mp4"]
        video.moments.add_many([(range(10, 40), "red/light"), (range(2, 5), "queue")], "me")
        video.moments.add(range(10, 40), "red/light", source="other")
        assert sorted(path.name for path in folder.iterdir()) == ["queue", "red%2Flight"]
        (clip,) = (folder / "red%2Flight").iterdir()
        assert clip.name == "000010-000040.mp4"
        with video.views.open("frames=10-40.mp4") as file:
            assert clip.read_bytes() == file.read()
        with pytest.raises(FileNotFoundError):
            (folder / "queue" / "000002-000006.mp4").read_bytes()
        video.moments.remove(labels="red/light")
    assert [path.name for path in folder.iterdir()] == ["queue"]
    with pytest.raises(FileNotFoundError):
        clip.read_bytes()


def test_views_not_listed(here: Path, tmp_path: Path) -> None:
    (here / "v.mp4").write_bytes(VIDEO)
    assert (here / "v.mp4@/info.json").exists()
    assert os.listdir(here) == ["v.mp4"]
    subprocess.run(["cp", "-r", here, tmp_path / "copy"], check=True)
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["v.mp4"]


def test_picture_size_after_tile_drop(mounted: Mounted, wide_clip: Path) -> None:
    """The kernel has cached another size a moment ago."""
    mounted.mount()
    shutil.copyfile(wide_clip, mounted.at / "a.mp4")
    tiles = ("--layout", "uniform:2x2", "--span", "0-1")
    assert run_command("-s", mounted.store, "retile", mounted.at / "a.mp4", *tiles).code == 0
    picture = mounted.at / "a.mp4@" / "frames" / "000005.jpg"
    before = picture.stat().st_size
    assert run_command("-s", mounted.store, "layout", "drop", "a.mp4").code == 0
    with open(picture, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read()
    assert len(data) == size != before


def test_open_picture_keeps_bytes(mounted: Mounted, wide_clip: Path) -> None:
    """The kernel caches one size for a name."""
    mounted.mount()
    shutil.copyfile(wide_clip, mounted.at / "a.mp4")
    picture = mounted.at / "a.mp4@" / "frames" / "000005.jpg"
    first = picture.read_bytes()
    with open(picture, "rb", 0) as file:
        tiles = ("--layout", "uniform:2x2", "--span", "0-1")
        assert run_command("-s", mounted.store, "retile", mounted.at / "a.mp4", *tiles).code == 0
        with open(picture, "rb", 0) as other:
            assert os.fstat(other.fileno()).st_size == os.fstat(file.fileno()).st_size
            assert other.read() == file.read() == first
    mounted.wait_for(lambda: picture.read_bytes() != first, "it does not come from tiles")
    assert picture.stat().st_size == len(picture.read_bytes()) != len(first)


def test_open_view_not_removable(here: Path) -> None:
    (here / "v.mp4").write_bytes(VIDEO)
    (here / "plain").write_bytes(b"x")
    info = here / "v.mp4@/info.json"
    with info.open("rb"):
        for change in (info.unlink, lambda: (here / "plain").rename(info)):
            with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
                change()
