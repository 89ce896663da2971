"""Bytes that change on disk: detected before they are shown, and replaced by other sources."""

from __future__ import annotations

import io
import json
import math
import os
import random
import zlib
from pathlib import Path

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.composed_tiles import take_tiles
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.codecs.cells.pack import CellStream, read_table, write_pack
from vfsd.core.detections import Detection
from vfsd.core.model import Segment
from vfsd.derive.tile_encoder import TileSettings
from vfsd.disk.object_store import ObjectStore
from vfsd.errors import DamagedPackError, IntegrityError
from vfsd.maintenance import fsck
from vfsd.read.pack_pool import OpenPack


@pytest.fixture
def video(store: Store) -> Video:
    video = store.ingest(FOLDER / "traffic.mp4")
    video.budget.set("none")
    return video


def flip(path: Path, bit: int) -> None:
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        (value,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([value ^ 1 << bit % 8]))


def everything(objects: ObjectStore, segment: Segment) -> list[bytes]:
    pack = OpenPack(objects, segment)
    frames = len(segment.frames)
    return [bytes(packet) for cell in pack.cells for packet in pack.packets(cell, 0, frames)]


def test_every_flipped_bit_of_a_pack_is_detected(store: Store, video: Video) -> None:
    segment = video.tiles.retile("uniform:2x2", span=(0, 1))[0]
    path = store.parts.objects.path(segment.object_key)
    before = everything(store.parts.objects, segment)
    dice = random.Random(5)
    for bit in dice.sample(range(8 * segment.size), 400):
        flip(path, bit)
        with pytest.raises(DamagedPackError) as caught:
            everything(store.parts.objects, segment)
        assert caught.value.object_key == segment.object_key
        flip(path, bit)
    assert everything(store.parts.objects, segment) == before


@pytest.mark.parametrize("how", one_in(3, ["read", "stream", "scan"]))
def test_reads_fall_back_and_damaged_tiles_are_removed(
    store: Store, video: Video, how: str
) -> None:
    made = video.tiles.retile("uniform:1x1", settings=TileSettings("lossless"))
    take_tiles(store)
    region = (40, 40, 120, 100)
    exact = video.read(region=region, psnr=math.inf).data
    flip(store.parts.objects.path(made[1].object_key), 8 * made[1].cells[0].position + 4001)
    if how == "read":
        found = video.read(region=region, psnr=99).data
    elif how == "stream":
        found = np.stack([frame.data for frame in video.iterate(region=region, psnr=99)])
    else:
        boxes = [Detection(frame, "thing", region) for frame in range(len(video))]
        video.labels.add(boxes, "somebody")
        found = np.stack([crop.data for crop in video.scan("thing").crops()])
    assert np.array_equal(found, exact)
    assert store.catalog.segments(video.info) == [made[0], *made[2:]]
    assert not store.parts.objects.path(made[1].object_key).exists()
    assert fsck.run(store.parts, deep=True) == []


def test_read_only_store_keeps_damaged_packs(store: Store, video: Video) -> None:
    (made,) = video.tiles.retile("uniform:1x1", span=(0, 1), settings=TileSettings("lossless"))
    exact = video.read(span=(0, 1), psnr=math.inf).data
    flip(store.parts.objects.path(made.object_key), 8 * made.cells[0].position + 4001)
    take_tiles(store)
    with Store.open(store.path, read_only=True) as reading:
        assert np.array_equal(reading[video.name].read(span=(0, 1), psnr=99).data, exact)
    assert store.catalog.segments(video.info) == [made]


@pytest.mark.parametrize("version", [0, 1, 3])
def test_pack_of_another_version_is_refused(version: int) -> None:
    data = _pack()
    other = data[:4] + bytes([version]) + data[5:]
    with pytest.raises(IntegrityError, match="not a pack"):
        read_table(lambda at, size: other[at : at + size])


def test_pack_without_checksums_is_damaged() -> None:
    data = _pack()
    length = int.from_bytes(data[5:9], "little")
    table = json.loads(data[13 : 13 + length])
    del table["cells"][0]["sums"]
    text = json.dumps(table).encode()
    head = data[:5] + len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little")
    other = head + text + data[13 + length :]
    with pytest.raises(IntegrityError, match="damaged"):
        read_table(lambda at, size: other[at : at + size])


def _pack() -> bytes:
    buffer = io.BytesIO()
    write_pack(buffer, [CellStream("h264", 64, 64, b"sets", [b"first", b"", b"third"])])
    return buffer.getvalue()


def test_new_pack_does_not_reuse_a_damaged_one(store: Store) -> None:
    objects = store.parts.objects
    key = objects.put_bytes(b"a pack", "tiles").key
    flip(objects.path(key), 9)
    assert objects.put_bytes(b"a pack", "tiles").key == key
    assert objects.path(key).read_bytes() == b"a pack"


def test_read_error_is_not_proof_of_damage(
    store: Store, video: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made,) = video.tiles.retile("uniform:1x1", span=(0, 1))
    error = DamagedPackError("it looked like that", made.object_key)
    store.tools.drop_damaged_tiles(error)
    assert store.catalog.segments(video.info) == [made]  # its bytes are unchanged

    def fails(*_: object) -> int:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr("vfsd.storage.reclaim.digest", fails)
    flip(store.parts.objects.path(made.object_key), 4000)
    store.tools.drop_damaged_tiles(error)
    assert store.catalog.segments(video.info) == [made]
