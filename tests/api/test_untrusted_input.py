"""Hostile or malformed input is refused with a message."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from vfsd.cli.retile_plan import read_layout_file
from vfsd.codecs.cells.cell_decoders import cell_decoder
from vfsd.codecs.cells.pack import PackedCell, read_table
from vfsd.core.frame_table_pages import decode_page
from vfsd.core.model import PageBounds
from vfsd.core.timebase import seconds
from vfsd.derive.workload import read_workload
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import IntegrityError, NoStoreError, UsageError
from vfsd.labels.formats.label_file import parse_decimal, read_names
from vfsd.tiling import Rect, TileLayout

DIGITS = "9" * 5000
DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (Rect.parse, f"{DIGITS}x1+0+0"),
        (TileLayout.parse, f"{DIGITS}x1"),
        (seconds, DIGITS),
        (seconds, f"{DIGITS}:00:01"),
        (seconds, f"0.{DIGITS}"),
    ],
)
def test_digits_of_numbers_are_limited(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(UsageError):
        read(text)


@pytest.mark.parametrize("text", [DEEP, f"[{DIGITS}]", "\udcff"])
def test_deeply_nested_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match="must be a JSON file"):
        read_workload(path)
    with pytest.raises(UsageError, match="must be a JSON file"):
        read_layout_file(path, 10, TileLayout.parse, {})


def test_damaged_store_files(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"verify = '\xff'")
    with pytest.raises(UsageError):
        StoreSettings.load(path)
    for text in ('{"format": 1}', DEEP, f'{{"format": {DIGITS}}}', '{"format": 1e999}', "[]"):
        (tmp_path / "vfsd-store.json").write_text(text)
        with pytest.raises(NoStoreError):
            StoreDirectory.open(tmp_path)


@pytest.mark.parametrize("text", ["{'car': 'a'}", "{None: 'a'}", "{1e999: 'a'}"])
def test_class_ids_must_be_numbers(tmp_path: Path, text: str) -> None:
    path = tmp_path / "data.yaml"
    path.write_text(f"names: {text}\n")
    with pytest.raises(UsageError, match="names must be a list"):
        read_names(path)


def test_memory_for_a_page_is_bounded_by_its_columns() -> None:
    bomb = b"vfp1" + zlib.compress(bytes(1 << 28), 9)
    with pytest.raises(IntegrityError, match="unexpected length"):
        decode_page(PageBounds(0, 64, 0, 64, 0, 64, 0), bomb)


@pytest.mark.parametrize(
    "damage",
    [
        {"codec": 5},
        {"width": -1},
        {"height": 1 << 40},
        {"width": True},
        {"at": 1.5},
        {"at": -1},
        {"sizes": [True]},
        {"sizes": [-1]},
        {"sizes": [1 << 60]},
    ],
)
def test_impossible_pack_header_is_refused(damage: dict[str, object]) -> None:
    cell = {"codec": "h264", "width": 2, "height": 2, "extradata": "", "at": 0, "sizes": [1]}
    cell["sums"] = "AAAAAA=="

    def read(told: dict[str, object]) -> None:
        table = json.dumps({"frames": 1, "cells": [cell | told]}).encode()
        head = b"vfpk\x02" + struct.pack("<II", len(table), zlib.crc32(table))
        data = head + table
        read_table(lambda at, size: data[at : at + size])

    read({})
    with pytest.raises(IntegrityError):
        read(damage)


def test_tiles_use_tile_decoders_only() -> None:
    for codec in ("png", "aac", "no such codec", "hls"):
        with pytest.raises(IntegrityError):
            cell_decoder(PackedCell(codec, 2, 2, b"", (0, 1)))


def test_tile_without_bytes_is_damaged() -> None:
    """FFmpeg treats an empty packet as the end of the stream."""
    decoder = cell_decoder(PackedCell("h264", 16, 16, b"", (0, 0)))
    for _ in range(2):
        assert decoder.decode(memoryview(b"")) == []
        with pytest.raises(IntegrityError, match="last packets"):
            decoder.drain()
        decoder.restart(PackedCell("h264", 16, 16, b"", (0, 0)))


@pytest.mark.parametrize("text", ["1e999999", "-1e9999995", "nan", "inf"])
def test_non_finite_numbers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a finite number"):
        parse_decimal(text)
