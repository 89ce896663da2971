"""What pictures come with beside their samples, such as EXIF, which PyAV has no name for."""

from __future__ import annotations

import struct
from pathlib import Path

import av
import pytest

from tests.codecs.making import make_clip
from tests.codecs.reference import checksum, decoder_for, pyav_checksums
from vfsd.codecs.decoding.frame_side_data import carried_data, first_picture
from vfsd.codecs.encoding.archive_encoder import require_kept_data
from vfsd.codecs.probing.probe import examine
from vfsd.errors import RefusedMediaError

_START_OF_IMAGE = 2  # bytes


def _exif(orientation: int) -> bytes:
    """A JPEG segment that says how a picture is turned."""
    entry = struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    tiff = b"MM\0\x2a" + struct.pack(">IH", 8, 1) + entry + bytes(4)
    body = b"Exif\0\0" + tiff
    return b"\xff\xe1" + struct.pack(">H", 2 + len(body)) + body


def _with_exif(path: Path, orientation: int) -> Path:
    made = make_clip(path.with_suffix(".mkv"), "mjpeg", pixel_format="yuvj420p", frames=8)
    with av.open(str(made)) as source, av.open(str(path), "w") as target:
        old = source.streams.video[0]
        new = target.add_stream_from_template(old)
        for packet in source.demux(old):
            if packet.size:
                jpeg = bytes(packet)
                turned = av.Packet(
                    jpeg[:_START_OF_IMAGE] + _exif(orientation) + jpeg[_START_OF_IMAGE:]
                )
                turned.pts, turned.dts = packet.pts, packet.dts
                turned.time_base, turned.is_keyframe = packet.time_base, True
                turned.stream = new
                target.mux(turned)
    return path


@pytest.mark.parametrize("name", ["a.mov", "a.avi"])
@pytest.mark.parametrize(
    ("orientation", "rotation", "is_mirrored"),
    [
        (1, 0, False),
        (2, 0, True),
        (3, 180, False),
        (4, 180, True),
        (5, 270, True),
        (6, 90, False),
        (7, 90, True),
        (8, 270, False),
    ],
)
def test_pictures_with_exif_are_served_as_it_says(
    tmp_path: Path, name: str, orientation: int, rotation: int, is_mirrored: bool
) -> None:
    path = _with_exif(tmp_path / name, orientation)
    found = examine(path)
    assert (found.media.rotation, found.media.mirrored) == (rotation, is_mirrored)
    with decoder_for(path, found) as decoder:
        assert [checksum(frame) for _, frame in decoder.stream()] == pyav_checksums(path)


def test_exif_is_not_lost_silently(tmp_path: Path) -> None:
    path = _with_exif(tmp_path / "a.mov", 1)
    first = first_picture(path, examine(path).media)
    assert first is not None
    with pytest.raises(RefusedMediaError, match="EXIF"):
        require_kept_data(0, carried_data(first), {})
