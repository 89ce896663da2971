"""Sound, all kinds of containers, and files with additional streams, through the kernel."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import av
import numpy as np
import pytest

from tests.codecs.test_containers import KINDS, made, moving_avif
from tests.mount.conftest import Mounted
from tests.support.audio_clips import RATE
from tests.support.side_streams import CLIPS
from tests.write.test_audio_pieces import decoded, noise, write_all
from vfsd import AudioFormat
from vfsd.api.store import Store

pytestmark = pytest.mark.mount


def test_written_sound(mounted: Mounted) -> None:
    at = mounted.mount()
    samples = noise("int32", 2)
    with (
        Store.open(mounted.store) as store,
        store.writer(
            "a.mp4",
            width=64,
            height=48,
            fps=25,
            sound=AudioFormat(RATE, "stereo", "int32"),
            sound_codec="flac",
        ) as writer,
    ):
        write_all(writer, samples)
        assert list(at.iterdir()) == []
    mounted.wait_for((at / "a.mp4").exists, "the mount does not see it")
    assert np.array_equal(_heard(at / "a.mp4"), samples)
    for name in ("t=0-2.mp4", "t=0-2.mkv"):
        found = _heard(at / "a.mp4@" / name)
        assert np.array_equal(found, samples[: len(found)])
        assert len(found) > 1.9 * RATE


def _heard(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    return decoded(io.BytesIO(path.read_bytes()))


# --------------------------------------------------------------------------------------------------
# Files in containers of all kinds, through the kernel


_NAMES = ("mpeg2.mxf", "a.wmv", "a.gif", "rv20.rm", "a.m2ts")


def test_each_container(mounted: Mounted) -> None:
    folder = mounted.root / "files"
    folder.mkdir()
    files = [made(folder / name, *KINDS[name]) for name in _NAMES]
    files.append(moving_avif(folder / "a.avif"))
    at = mounted.mount()
    for path in files:
        (at / path.name).write_bytes(path.read_bytes())
    for path in files:
        mounted.wait_for((at / f"{path.name}@").exists, f"{path.name} has no folder of views")
        assert (at / path.name).read_bytes() == path.read_bytes()
        with av.open(str(at / f"{path.name}@" / "t=0-0.4.mkv")) as view:
            assert len(list(view.decode(video=0))) in (10, 12), path.name
    (at / "annex").mkdir()
    (at / "annex" / "link.wmv").symlink_to("../a.wmv")
    with av.open(str(at / "annex" / "link.wmv@" / "t=0-0.4.mkv")) as view:
        assert len(list(view.decode(video=0))) == 10
    with Store.open(mounted.store, read_only=True) as store:
        for path in files:
            video = store[path.name]
            whole = video[7]
            part = video.read(frames=[7], region=(8, 6, 56, 42))
            np.testing.assert_array_equal(part.data[0], whole.data[6:42, 8:56], err_msg=path.name)


# --------------------------------------------------------------------------------------------------
# Files with streams besides video and sound


def test_files_become_videos(mounted: Mounted, tmp_path: Path) -> None:
    folder = mounted.mount()
    made = [clip.make(tmp_path, name) for name, clip in CLIPS.items()]
    for path in made:
        shutil.copyfile(path, folder / path.name)
    for path in made:
        told = json.loads((folder / f"{path.name}@/info.json").read_text())
        assert told["frames"] == 12, path.name
        assert (folder / path.name).read_bytes() == path.read_bytes()
