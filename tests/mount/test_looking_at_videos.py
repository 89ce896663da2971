"""The folder beside every video, through the kernel."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.cli.conftest import run_command
from tests.mount.conftest import Mounted
from vfsd.api.store import Store

pytestmark = pytest.mark.mount

VIDEO = (FOLDER / "portrait.mp4").read_bytes()


def test_a_copied_video_can_be_looked_at_at_once(here: Path) -> None:
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
        "objects",
        "why",
    ]
    assert "no such view" in (here / "v.mp4@/why/no such view").read_text()
    with pytest.raises(OSError, match="Invalid argument"):
        (here / "v.mp4@/t=20-30.mp4").stat()
    reason = here / "v.mp4@/why/t=20-30.mp4"
    assert "20:30" in reason.read_text() or "20-30" in reason.read_text()
    assert reason.stat().st_size == len(reason.read_bytes())
    with pytest.raises(FileNotFoundError):
        (here / "v.mp4@/no such view").stat()
    with pytest.raises(OSError, match="Read-only file system"):
        (here / "v.mp4@/new").touch()


@pytest.mark.thorough
def test_a_view_that_was_read_is_read_anew_when_its_source_has_changed(mounted: Mounted) -> None:
    """The kernel keeps the bytes of views; those of other bytes it must forget."""
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
        time.sleep(0.1)  # the mount looks for what others change every 50 ms
        assert view.read_bytes() == tiled
        assert view.read_bytes() == tiled
        before.seek(0)
        assert before.read() == exact  # what is open goes on, with nothing of the other
    assert view.read_bytes() == tiled
    assert view.read_bytes() == tiled


def test_views_are_in_no_listing(here: Path, tmp_path: Path) -> None:
    (here / "v.mp4").write_bytes(VIDEO)
    assert (here / "v.mp4@/info.json").exists()
    assert os.listdir(here) == ["v.mp4"]
    subprocess.run(["cp", "-r", here, tmp_path / "copy"], check=True)
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["v.mp4"]


def test_a_picture_has_the_size_of_its_bytes_when_tiles_have_just_gone(
    mounted: Mounted, wide_clip: Path
) -> None:
    """The kernel has been told another one a moment ago."""
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


def test_a_picture_that_is_open_stays_what_is_found_by_its_name(
    mounted: Mounted, wide_clip: Path
) -> None:
    """Of a name the kernel knows one size."""
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


def test_a_view_that_is_open_cannot_be_removed_or_replaced_either(here: Path) -> None:
    (here / "v.mp4").write_bytes(VIDEO)
    (here / "plain").write_bytes(b"x")
    info = here / "v.mp4@/info.json"
    with info.open("rb"):
        for change in (info.unlink, lambda: (here / "plain").rename(info)):
            with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
                change()
