"""The folder beside every video, through the kernel."""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path

import pytest

from sample_videos import FOLDER

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
        "explain",
        "frames",
        "info.json",
        "layout",
        "layout.png",
        "objects",
    ]
    with pytest.raises(FileNotFoundError):
        (here / "v.mp4@/no such view").stat()
    with pytest.raises(OSError, match="Read-only file system"):
        (here / "v.mp4@/new").touch()


def test_views_are_in_no_listing(here: Path, tmp_path: Path) -> None:
    (here / "v.mp4").write_bytes(VIDEO)
    assert (here / "v.mp4@/info.json").exists()
    assert os.listdir(here) == ["v.mp4"]
    subprocess.run(["cp", "-r", here, tmp_path / "copy"], check=True)
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["v.mp4"]
