"""Other streams are compared packet by packet, in their times and in how long they last."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sidestreams import CLIPS
from vfsd.codecs.inventory.inventory_diff import require_same_streams
from vfsd.codecs.probing.probe import examine
from vfsd.errors import RefusedMediaError

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
