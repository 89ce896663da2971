"""Sound that was written, through the kernel."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from tests.codecs.talking import RATE
from tests.mount.conftest import Mounted
from tests.test_writing_sound_pieces import decoded, noise, write_all
from vfsd import SoundFormat
from vfsd.api.store import Store

pytestmark = pytest.mark.mount


def test_a_video_that_was_written_while_it_is_mounted_is_heard_there(mounted: Mounted) -> None:
    at = mounted.mount()
    samples = noise("int32", 2)
    with (
        Store.open(mounted.store) as store,
        store.writer(
            "a.mp4",
            width=64,
            height=48,
            fps=25,
            sound=SoundFormat(RATE, "stereo", "int32"),
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
