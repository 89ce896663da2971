"""Every kind of stream besides video and sound, in each container that carries it, is served."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.codecs.reference import alike
from tests.selection import one_in
from tests.sidestreams import CLIPS
from vfsd.api.store import Store
from vfsd.codecs.probing.probe import examine
from vfsd.storage.sandbox_pool import Examiner
from vfsd.storage.sandbox_protocol import SandboxLimits


@pytest.fixture(scope="module")
def examiner() -> Iterator[Examiner]:
    made = Examiner(SandboxLimits())
    yield made
    made.close()


def ffmpeg_samples(path: Path) -> bytes:
    """All samples of the first video stream, by FFmpeg's own command."""
    command = shutil.which("ffmpeg")
    if command is None:
        pytest.skip("there is no ffmpeg command")
    quiet = (command, "-nostdin", "-v", "error", "-threads", "1", "-i", path, "-map", "0:v:0")
    raw = ("-fps_mode", "passthrough", "-pix_fmt", "yuv420p", "-f", "rawvideo", "-")
    return subprocess.run([*quiet, *raw], capture_output=True, check=True).stdout


@pytest.mark.parametrize("name", one_in(5, CLIPS))
def test_sandbox_finds_the_same(examiner: Examiner, tmp_path: Path, name: str) -> None:
    """The child that may open no file, and this process, which may."""
    path = CLIPS[name].make(tmp_path, name)
    expected = examine(path)
    found = examiner.examine(path)
    assert alike(found, expected)
    assert len(found.order) == 12
    streams = [(one.kind, one.codec) for one in found.media.side_streams]
    assert streams == list(CLIPS[name].found)
    assert examiner.inventory(path, found.media)


@pytest.mark.parametrize("name", one_in(5, CLIPS))
def test_frames_are_those_of_ffmpeg(tmp_path: Path, store: Store, name: str) -> None:
    path = CLIPS[name].make(tmp_path, name)
    video = store.ingest(path)
    assert len(video) == 12
    assert video.read(format="yuv420p").data.tobytes() == ffmpeg_samples(path)
