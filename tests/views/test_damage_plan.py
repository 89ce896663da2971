"""Views of originals that are damaged on disk: copied except around known damage."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.storage.test_checksum_registry import LAST, flip
from tests.support.audio_clips import make_talking
from tests.support.stores import new_store
from tests.views.conftest import Shelf, decoded
from tests.views.test_audio import packets, shelved
from vfsd.api.store import Store
from vfsd.derive.tile_encoder import TileSettings
from vfsd.errors import DamagedFileError
from vfsd.views import Views

CLIP = FOLDER / "traffic.mp4"


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Shelf]:
    """A clip with undetected damage in its last block; tiles show its last second."""
    with new_store(tmp_path / "store") as store:
        video = store.ingest(CLIP, CLIP.name)
        video.budget.set("none")
        video.tiles.retile("uniform:1x1", span=(3, None), settings=TileSettings("lossless"))
        flip(store.parts.originals.path_of(video.original), LAST[100])
    # A process does not verify the same data twice.
    with Store.open(tmp_path / "store") as store:
        views = Views(store.parts, store.tools)
        yield Shelf(store, views)
        views.close()


def made(shelf: Shelf, view: str) -> str:
    told: dict[str, str] = json.loads(shelf.read(CLIP.name, f"explain/{view}.json"))
    return told["made"]


def test_plan_avoids_known_damage(damaged: Shelf) -> None:
    exact = [frame.to_ndarray() for frame in decoded(CLIP.read_bytes())]
    assert made(damaged, "full.mp4") == "copied"
    with pytest.raises(DamagedFileError):
        damaged.read(CLIP.name, "full.mp4")
    assert made(damaged, "full.mp4") == "spliced"
    for view, first in (("full.mp4", 0), ("frames=95-120.mkv", 95), ("frames=110-120.mp4", 110)):
        found = [frame.to_ndarray() for frame in decoded(damaged.read(CLIP.name, view))]
        assert len(found) == len(exact) - first
        for place, picture in enumerate(found, first):
            assert np.abs(picture.astype(int) - exact[place]).mean() < 3, (view, place)
        if not first:  # copied where nothing is lost
            assert all(np.array_equal(found[place], exact[place]) for place in range(60))
    assert made(damaged, "frames=110-120.mp4") == "encoded"
    assert made(damaged, "frames=0-60.mp4") == "copied"


def test_exact_copies_ignore_tiles(damaged: Shelf) -> None:
    """`psnr=inf` excludes tiles: intact parts can be read, the rest is refused."""
    for _ in range(2):
        assert made(damaged, "psnr=inf.mp4") == "copied"
        with pytest.raises(DamagedFileError):
            damaged.read(CLIP.name, "psnr=inf.mp4")


def test_damaged_audio_packets_are_left_out(tmp_path: Path) -> None:
    clip = make_talking(tmp_path / "clip.mp4", "aac")
    with shelved(tmp_path, clip) as shelf:
        video, catalog = shelf.video(clip.name), shelf.store.catalog
        before = packets(shelf.read(clip.name, "full.mp4"))
        sound = catalog.sound(video.original)
        assert sound is not None
        position = int(sound[1].columns(20, 21).position[0])
        with catalog.writing() as change:
            place = video.original.place
            change.integrity.add_damage(
                place, [range(position, position + 1)], now_ns=time.time_ns()
            )
        after = packets(shelf.read(clip.name, "full.mp4"))
        (gone,) = (content for _, content in before if content not in dict(after).values())
        assert gone == clip.read_bytes()[position : position + len(gone)]
        assert after == [(begin, content) for begin, content in before if content != gone]
        assert packets(shelf.read(clip.name, "t=0.93-2.61,fps=7.mkv"))
        with catalog.writing() as change:
            size = video.original.size
            change.integrity.add_damage(place, [range(size)], now_ns=time.time_ns())
        told = json.loads(shelf.read(clip.name, "explain/full.mp4.json"))
        assert "damaged" in told["silence"]
