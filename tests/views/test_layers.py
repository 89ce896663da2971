"""``layers/``: the maps of a video's layers, as pictures and arrays."""

from __future__ import annotations

import io
import json

import cv2
import numpy as np
import pytest

from tests.views.conftest import Shelf
from vfsd.errors import NotFoundError

NAME = "traffic.mp4"


def test_maps_are_exact_files(fresh: Shelf) -> None:
    video = fresh.video(NAME)
    ino = video.info.ino
    assert ("layers", True) not in fresh.views.list(ino, "")
    with pytest.raises(NotFoundError):
        fresh.views.list(ino, "layers")
    rng = np.random.default_rng(2)
    eight = rng.integers(0, 256, (12, 60, 80)).astype(np.uint8)
    sixteen = rng.integers(0, 1 << 16, (12, 120, 161)).astype(np.uint16)
    frames = range(0, 120, 10)
    video.layers.add("mask", eight, frames=frames)
    video.layers.add("the depth", sixteen, frames=frames, scale=0.5, unit="m", source="net")
    assert ("layers", True) in fresh.views.list(ino, "")
    assert fresh.views.list(ino, "layers") == [
        ("mask", True),
        ("the depth", True),
        ("mask.json", False),
        ("the depth.json", False),
    ]
    assert fresh.views.list(ino, "layers/mask")[1] == ("000010.png", False)
    for name, maps in (("mask", eight), ("the depth", sixteen)):
        for at, frame in enumerate(frames):
            data = fresh.read(NAME, f"layers/{name}/{frame:06}.npy")
            assert np.array_equal(np.load(io.BytesIO(data)), maps[at])
            data = fresh.read(NAME, f"layers/{name}/{frame:06}.png")
            shown = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
            assert shown is not None
            assert shown.dtype == maps.dtype
            assert np.array_equal(shown, maps[at])
    described = json.loads(fresh.read(NAME, "layers/the depth.json"))
    assert described["frames"][:2] == [[0, 1], [10, 11]]
    assert (described["size"], described["bits"], described["unit"]) == ([161, 120], 16, "m")
    assert described["source"]["name"] == "net"
    for missing in (
        "layers/mask/000001.png",
        "layers/mask/000000.jpg",
        "layers/none/000000.png",
        "layers/none.json",
    ):
        with pytest.raises(NotFoundError):
            fresh.views.stat(ino, missing)
    # A frame without a map has a reason.
    assert b"no map for frame 1" in fresh.read(NAME, "why/layers/mask/000001.png.txt")
    video.layers.remove("mask")
    with pytest.raises(NotFoundError):
        fresh.views.stat(ino, "layers/mask/000000.png")
    assert fresh.views.stat(ino, "layers/the depth/000000.npy").size == 128 + 2 * 120 * 161
