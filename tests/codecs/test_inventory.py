"""Inventories of untrusted files, and comparisons of two."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.side_data_clips import noisy_clip
from tests.support.side_streams import CLIPS
from vfsd.codecs.inventory.file_inventory import take_inventory
from vfsd.codecs.inventory.inventory import (
    InventoryItem,
    ItemCollector,
    differences,
    early_differences,
    pack_inventory,
    place_name,
    unpack_inventory,
)
from vfsd.codecs.inventory.matroska_elements import add_elements
from vfsd.codecs.inventory.mp4_boxes import FileWindow, add_boxes
from vfsd.disk.checksums import MediaSource
from vfsd.errors import IntegrityError, RefusedMediaError


def test_inventory_round_trip(tmp_path: Path) -> None:
    path = noisy_clip(tmp_path / "a.mp4")
    with MediaSource(path) as source:
        found = take_inventory(source, "mp4", 0)
    assert "moov/pictures/mdia/hdlr/name" in found
    assert "pictures/packets/SEI 5 (user data) dc45e9bde6d948b7962cd820d923eeef" in found
    assert unpack_inventory(pack_inventory(found)) == found
    assert differences(found, found) == []


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{}", b"[1]", b"[[]]", b"[" * 5000, b'[["a", 1, 0, "", ""'),
        *(b'[["a", -1, 0, "", ""]]', b'[["a", NaN, 0, "", ""]]', b'[["a", 1.0, 0, "", ""]]'),
        *(b'[["a", true, 0, "", ""]]', b'[["a", 1, 4611686018427387904, "", ""]]'),
        *(b'[["a", 1, 0, 5, ""]]', b'[[5, 1, 0, "", ""]]', b'[["a", 1, 0, "", "", ""]]'),
        b'[["%s", 1, 0, "", ""]]' % (b"a" * 1001),
        b'[["a", 1, 0, "%s", ""]]' % (b"a" * 33),
        b'[["a", 1, 0, "", "%s"]]' % (b"a" * 84),
        b"[%s]" % b",".join([b'["a", 1, 0, "", ""]'] * 20_001),
    ],
    ids=lambda data: data[:30].decode(),
)
def test_invalid_answers_are_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        unpack_inventory(data)


@pytest.mark.parametrize("kind", ["chapters-mkv", "mov-text"])
def test_damaged_files_are_handled(tmp_path: Path, kind: str) -> None:
    path = CLIPS[kind].make(tmp_path, "clip")
    whole, rng = path.read_bytes(), random.Random(3)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 4, 20))):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 255, rng.randrange(256)))
        path.write_bytes(data[: rng.choice((len(data), rng.randrange(1, len(data))))])
        with MediaSource(path) as source:
            try:
                into = ItemCollector()
                add = add_elements if path.suffix == ".mkv" else add_boxes
                add(FileWindow(source), 0, into)
            except RefusedMediaError:
                continue
            assert len(into.items()) < 500


def test_differences_are_named() -> None:
    one, other = InventoryItem(1, 3, "aa", "abc"), InventoryItem(1, 3, "bb", "abd")
    places = ("moov/udta/\xa9xyz", "moov/udta/\xa9too", "ftyp", "pictures/packets/user data")
    before = dict.fromkeys(places, one)
    assert [str(each) for each in differences(before, {})] == [
        "location (moov/udta/\xa9xyz): abc would be lost",
        "pictures/packets/user data: abc would be lost",
    ]
    assert [str(each) for each in differences({}, {"moov/zzzz": one})] == [
        "moov/zzzz would be added: abc"
    ]
    (changed,) = differences(before, {**before, "moov/udta/\xa9xyz": other})
    assert "would become abd; it is abc" in str(changed)


def test_only_the_writer_of_user_data_may_differ() -> None:
    place = "pictures/packets/user data"
    writer, told = InventoryItem(1, 4, "aa", "Lavc59.37.100"), InventoryItem(1, 4, "bb", "GPS 48.1")
    assert differences({place: writer}, {}) == []
    assert differences({place: told}, {place: writer}) != []


def test_comparison_covers_the_first_frame_only() -> None:
    """A file of the first frame has fewer messages, and no other streams."""
    many, one = InventoryItem(9, 90, "aa"), InventoryItem(1, 10, "bb")
    path = "pictures/packets/SEI 200"

    def never(_: str) -> bool:
        return False

    assert early_differences({path: many, "moov/stream 1/zzzz": one}, {path: one}, never) == []
    assert len(early_differences({path: many}, {}, never)) == 1
    assert early_differences({path: many}, {}, lambda told: told == path) == []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("moov/pictures/mdia/minf/stbl/stsd/clap", "crop"),
        ("Segment/Tracks/pictures/Video/Projection/ProjectionType", "spherical projection"),
        ("Segment/Cluster/pictures/BlockAdditional 1", "alpha channel"),
        ("moov/pictures/zzzz", None),
    ],
)
def test_plain_names(path: str, name: str | None) -> None:
    assert place_name(path) == name
