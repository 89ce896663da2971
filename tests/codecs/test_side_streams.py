"""Files with every kind of stream besides video and audio, in each container that carries it,
are served.  Other streams are compared packet by packet, including their times and durations."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ffmpeg_reference import alike
from tests.support.selection import one_in
from tests.support.side_streams import CLIPS
from vfsd.api.store import Store
from vfsd.codecs.inventory.inventory import require_same_streams
from vfsd.codecs.probing.probe import examine
from vfsd.errors import RefusedMediaError
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


@pytest.mark.parametrize("name", one_in(10, CLIPS))
def test_sandbox_finds_the_same(examiner: Examiner, tmp_path: Path, name: str) -> None:
    """The sandboxed child and this process return the same result."""
    path = CLIPS[name].make(tmp_path, name)
    expected = examine(path)
    found = examiner.examine(path)
    assert alike(found, expected)
    assert len(found.order) == 12
    streams = [(one.kind, one.codec) for one in found.media.side_streams]
    assert streams == list(CLIPS[name].found)
    assert examiner.inventory(path, found.media)


@pytest.mark.parametrize("name", one_in(10, CLIPS))
def test_frames_equal_ffmpeg(tmp_path: Path, store: Store, name: str) -> None:
    path = CLIPS[name].make(tmp_path, name)
    video = store.ingest(path)
    assert len(video) == 12
    assert video.read(format="yuv420p").data.tobytes() == ffmpeg_samples(path)


# --------------------------------------------------------------------------------------------------
# Other streams are compared packet by packet, including their times and durations


BLOCK_DURATION = b"\x9b\x81\xc8"  # 200 ms


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (BLOCK_DURATION, b"\x9b\x81\xc7", None),  # by a tick
        (BLOCK_DURATION, b"\x9b\x81\xf0", "their durations"),
        ("Grüße".encode(), "Größe".encode(), "its packets"),
    ],
)
def test_subtitles_are_compared(
    tmp_path: Path, old: bytes, new: bytes, changed: str | None
) -> None:
    path = CLIPS["subrip"].make(tmp_path, "one")
    other = tmp_path / "other.mkv"
    assert old in path.read_bytes()
    other.write_bytes(path.read_bytes().replace(old, new))
    media = examine(path).media
    if changed is None:
        require_same_streams(path, media, other, media)
        return
    with pytest.raises(RefusedMediaError, match=rf"stream 1 \(subtitle, subrip\).*{changed}"):
        require_same_streams(path, media, other, media)
