"""Encoder threads run at a lower priority than other work on the machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from sample_videos import FOLDER, Encoding, Scene, write
from tests.support.clips import pictures
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.codecs.cells.cell_encoders import TILE_CODECS
from vfsd.codecs.cells.decode_timing import timed_decodes
from vfsd.codecs.encoding.encoder import EncoderSettings, encode_pictures

SCENE = Scene(frames=5)

Use = Callable[[Store, Path], object]


def _encode(store: Store, folder: Path) -> None:
    """Encode like for views."""
    settings = EncoderSettings("av1", 320, 240, 30, Fraction(30))
    frames = pictures(5, 320, 240)
    assert list(encode_pictures(settings, [frame.reformat(format="yuv420p") for frame in frames]))


def _write(store: Store, folder: Path) -> None:
    array = np.stack([SCENE.frame(number) for number in range(SCENE.frames)])
    store.write("made.mp4", array, fps=SCENE.rate, codec="av1")


def _replace(store: Store, folder: Path) -> None:
    video = store.ingest(FOLDER / "traffic.mp4")
    video.policy.set("original=replaceable,psnr=20")
    video.policy.replace_original(codec="av1", psnr=24)


def _try(store: Store, folder: Path) -> None:
    next(timed_decodes("av1"))


def _try_tile(store: Store, folder: Path) -> None:
    assert TILE_CODECS["small"].codec == "av1"
    next(timed_decodes("small"))


def _sample(store: Store, folder: Path) -> None:
    write(SCENE, Encoding("av1"), folder / "sample.mp4")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise priorities")
@pytest.mark.parametrize("use", one_in(3, [_encode, _write, _replace, _try, _try_tile, _sample]))
def test_av1_threads_have_normal_priority(store: Store, tmp_path: Path, use: Use) -> None:
    """SVT-AV1 would use real-time priority, and leave it set in the calling thread."""
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    use(store, tmp_path)
    assert {_policy(int(name)) for name in os.listdir("/proc/self/task")} == {os.SCHED_OTHER}


def _policy(thread: int) -> int:
    try:
        return os.sched_getscheduler(thread)
    except ProcessLookupError:  # it has just ended
        return os.SCHED_OTHER
