"""Which sources are videos of a store, and programs that run with patched libraries."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import cv2
import pytest

from sample_videos import FOLDER
from tests.support.forking import exit_code_of_child
from vfsd.compat.cv2 import VideoCapture
from vfsd.compat.resolve import close_stores, shared_store, video_of
from vfsd.disk.store_config import StoreSettings
from vfsd.errors import NotFoundError, UsageError
from vfsd.mount import control

ROOT = FOLDER.parent

_PROGRAM = """
import sys
import cv2
capture = cv2.VideoCapture(sys.argv[1])
print(capture.getBackendName(), int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), __name__, sys.argv)
"""


def test_urls_and_names(named: Path, clips: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in (
        f"vfsd://{named}//cam1/traffic.mp4",
        "vfsd://cam1/traffic.mp4",
        "cam1/traffic.mp4",
        Path("cam1/traffic.mp4"),
    ):
        video = video_of(source)
        assert video is not None
        assert video.name == "cam1/traffic.mp4"
    for other in ("cam1/none.mp4", clips / "traffic.mp4", "rtsp://host/a", 0, b"a.mp4", "", None):
        assert video_of(other) is None
    with pytest.raises(NotFoundError):
        video_of("vfsd://cam1/none.mp4")
    monkeypatch.delenv("VFSD_STORE")
    assert video_of("cam1/traffic.mp4") is None
    with pytest.raises(UsageError, match="STORE//NAME"):
        video_of("vfsd://cam1/traffic.mp4")


def test_an_existing_file_comes_before_a_name(
    named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert video_of("cam1/traffic.mp4") is not None
    (tmp_path / "cam1").mkdir()
    (tmp_path / "cam1/traffic.mp4").touch()
    assert video_of("cam1/traffic.mp4") is None


def test_a_store_is_opened_once(named: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(named)
    assert shared_store(named) is shared_store(link)


def test_a_capture_goes_on_in_a_forked_child(named: Path) -> None:
    capture = VideoCapture("cam1/traffic.mp4")
    expected = [capture.read()[1] for _ in range(10)]
    capture.set(cv2.CAP_PROP_POS_FRAMES, 0)
    for _ in range(5):
        capture.read()

    def work() -> None:
        found = capture.read()[1]
        assert found is not None
        assert (found == expected[5]).all()

    assert exit_code_of_child(work) == 0
    assert (capture.read()[1] == expected[5]).all()  # type: ignore[union-attr]


@pytest.mark.mount
def test_paths_in_a_mount(mountable: None, filled: Path, tmp_path: Path) -> None:
    StoreSettings(verify=False, tune=False, compress=False).save(
        shared_store(filled).parts.directory.settings
    )
    close_stores()
    place = tmp_path / "mnt"
    place.mkdir()
    control.mount(filled, place, (), log_file=tmp_path / "log")
    try:
        path = place / "cam1/traffic.mp4"
        video = video_of(path)
        assert video is not None
        assert video.name == "cam1/traffic.mp4"
        link = tmp_path / "link.mp4"
        link.symlink_to(path)
        assert video_of(str(link)) is not None
        (place / "note.txt").write_text("plain")
        for other in (place, place / "note.txt", place / "none.mp4", f"{path}@/t=1-2.mp4"):
            assert video_of(other) is None
        assert VideoCapture(str(path)).getBackendName() == "VFSD"
        view = VideoCapture(f"{path}@/t=1-2.mp4")
        assert (view.getBackendName(), view.get(cv2.CAP_PROP_FRAME_COUNT)) == ("FFMPEG", 30)
        view.release()
    finally:
        close_stores()
        control.unmount(place)


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "vfsd.compat", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
        env=os.environ | environment,
    )
    return done.stdout or done.stderr


def test_programs_run_with_the_patch(named: Path, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(_PROGRAM)
    shown = run(str(program), "cam1/traffic.mp4")
    assert shown == f"VFSD 120 __main__ {[str(program), 'cam1/traffic.mp4']!r}\n"


def test_usage() -> None:
    assert run().startswith("usage: python -m vfsd.compat")


def test_patched_names(named: Path) -> None:
    """In another process, since the patch stays."""
    code = "from vfsd.compat import install; first = install(); assert install() == first; "
    code += "import cv2; assert cv2.VideoCapture('cam1/traffic.mp4').getBackendName() == 'VFSD'; "
    if importlib.util.find_spec("decord") is not None:
        code += "from decord import VideoReader; assert len(VideoReader('cam1/traffic.mp4')) == 120"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)
