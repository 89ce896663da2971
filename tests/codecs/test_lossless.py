"""Lossless packets: decoding restores all samples, for any frames."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.support.selection import examples
from vfsd.codecs.cells.cell_decoders import cell_decoder
from vfsd.codecs.cells.lossless import (
    LOSSLESS_PIXEL_FORMATS,
    MAX_LEVEL,
    RAW_LEVEL,
    LosslessCellDecoder,
    LosslessCellEncoder,
    PicturePacker,
    PictureUnpacker,
    from_byte_planes,
    is_key_packet,
    neighbour_residuals,
    recompressed,
    restore_from_residuals,
    to_byte_planes,
)
from vfsd.codecs.cells.pack import CellStream, PackedCell
from vfsd.codecs.frames.planes import copy_colors, fingerprint, plane_bytes
from vfsd.codecs.frames.quality import SourcePicture
from vfsd.core.model import IDENTICAL, MediaInfo
from vfsd.errors import IntegrityError, UsageError
from vfsd.tiling import Rect

LEVELS = (RAW_LEVEL, 1, 3)


def picture(width: int, height: int, pixel_format: str, fill: Any) -> av.VideoFrame:
    made = av.VideoFrame(width, height, pixel_format)
    for plane in plane_bytes(made):
        plane[...] = fill(plane.shape)
    return made


def noise(rng: np.random.Generator) -> Any:
    return lambda shape: rng.integers(0, 256, shape)


def copied(source: av.VideoFrame) -> av.VideoFrame:
    copy = av.VideoFrame(source.width, source.height, source.format.name)
    copy_colors(source, copy)
    for plane, target in zip(plane_bytes(source), plane_bytes(copy), strict=True):
        target[...] = plane
    return copy


def filmed(name: str, pixel_format: str, count: int) -> list[av.VideoFrame]:
    with av.open(str(FOLDER / name)) as container:
        found = [frame for _, frame in zip(range(count), container.decode(video=0), strict=False)]
    return [frame.reformat(format=pixel_format) for frame in found]


def colors(one: av.VideoFrame) -> tuple[int, ...]:
    return one.colorspace, one.color_range, one.color_trc, one.color_primaries


def assert_comes_back(pictures: list[av.VideoFrame], level: int) -> list[bytes]:
    packer = PicturePacker(level)
    first = pictures[0]
    unpacker = PictureUnpacker(first.width, first.height, first.format.name, "left")
    packets = [packer.pack(one) for one in pictures]
    for one, packet in zip(pictures, packets, strict=True):
        again = unpacker.unpack(memoryview(packet))
        assert fingerprint(again) == fingerprint(one)
        assert colors(again) == colors(one)
    return packets


@st.composite
def samples(draw: st.DrawFn) -> npt.NDArray[Any]:
    shape = (draw(st.integers(1, 40)), draw(st.integers(1, 40)))
    bits = draw(st.sampled_from((8, 16)))
    dtype = np.uint8 if bits == 8 else np.uint16
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    highest = draw(st.integers(0, (1 << bits) - 1))
    return rng.integers(0, highest, shape, endpoint=True).astype(dtype)


@given(samples())
def test_differences_round_trip(given_samples: npt.NDArray[Any]) -> None:
    differences = neighbour_residuals(given_samples)
    data = to_byte_planes(differences)
    assert data.dtype == np.uint8
    assert data.nbytes == given_samples.nbytes
    there = from_byte_planes(data, differences.shape, differences.dtype)
    assert np.array_equal(restore_from_residuals(there), given_samples)


def test_differences_of_a_slope_are_zero() -> None:
    slope = np.add.outer(np.arange(20) * 3, np.arange(30) * 2).astype(np.uint8)
    assert not neighbour_residuals(slope)[1:, 1:].any()


def test_sums_beyond_32_bits() -> None:
    """They occur in 8K and more; each sample below is 255 less than predicted."""
    differences = np.full((3000, 4000), 255, np.uint8)
    down = np.cumsum(differences, axis=0, dtype=np.uint8)
    expected = np.cumsum(down, axis=1, dtype=np.uint8)
    assert np.array_equal(restore_from_residuals(differences), expected)


@settings(max_examples=examples(60), deadline=None)
@given(
    pixel_format=st.sampled_from(LOSSLESS_PIXEL_FORMATS),
    width=st.integers(2, 70),
    height=st.integers(2, 70),
    level=st.sampled_from(LEVELS),
    kinds=st.lists(st.sampled_from(("noise", "same", "flat", "near")), min_size=1, max_size=5),
    seed=st.integers(0, 1 << 32),
)
def test_arbitrary_frames_round_trip(
    pixel_format: str, width: int, height: int, level: int, kinds: list[str], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pictures: list[av.VideoFrame] = []
    for kind in kinds:
        if kind == "noise" or not pictures:
            pictures.append(picture(width, height, pixel_format, noise(rng)))
        elif kind == "flat":
            pictures.append(picture(width, height, pixel_format, np.zeros))
        else:
            pictures.append(copied(pictures[-1]))
        if kind == "near":
            plane = plane_bytes(pictures[-1])[0]
            plane[: len(plane) // 2] += 1
    packets = assert_comes_back(pictures, level)
    assert is_key_packet(packets[0])
    head = len(packets[0]) - len(assert_comes_back(pictures, RAW_LEVEL)[0])
    assert head <= 0  # incompressible data is stored unchanged


@pytest.mark.parametrize("pixel_format", ["rgb24", "gbrp", "yuv420p", "yuv420p10le", "gray"])
def test_filmed_frames_shrink_and_round_trip(pixel_format: str) -> None:
    pictures = filmed("traffic.mp4", pixel_format, 6)
    raw = assert_comes_back(pictures, RAW_LEVEL)
    packed = assert_comes_back(pictures, 1)
    assert 2 * sum(map(len, packed)) < sum(map(len, raw))
    assert sum(map(len, assert_comes_back(pictures, MAX_LEVEL))) < sum(map(len, packed))


def test_still_scene_is_cheap_after_the_first_frame() -> None:
    rng = np.random.default_rng(1)
    still = picture(320, 240, "yuv420p", noise(rng))
    first, *others = assert_comes_back([still, still, still], 1)
    assert all(len(packet) < len(first) / 100 for packet in others)
    assert not any(is_key_packet(packet) for packet in others)


def test_unrelated_frames_are_coded_separately() -> None:
    rng = np.random.default_rng(2)
    smooth = np.add.outer(np.arange(240), np.arange(320)).astype(np.uint8)
    pictures = [
        picture(320, 240, "gray", lambda _, level=level: smooth + level * noise(rng)((240, 320)))
        for level in (0, 1, 0)
    ]
    packets = assert_comes_back(pictures, 1)
    assert [is_key_packet(packet) for packet in packets] == [True, True, True]


def test_large_frames_round_trip() -> None:
    rng = np.random.default_rng(3)
    assert_comes_back([picture(4098, 2162, "yuv420p", noise(rng))], 1)


@pytest.mark.parametrize("level", [-1, MAX_LEVEL + 1])
def test_invalid_levels_are_refused(level: int) -> None:
    with pytest.raises(UsageError, match="0 to 19"):
        PicturePacker(level)


def test_damage_is_reported() -> None:
    pictures = filmed("traffic.mp4", "yuv420p", 2)
    first, second = assert_comes_back(pictures, 1)
    (raw,) = assert_comes_back(pictures[:1], RAW_LEVEL)
    assert not is_key_packet(second)
    fresh = PictureUnpacker(320, 240, "yuv420p", "left")
    middle = len(first) // 2
    flipped = first[:middle] + bytes([first[middle] ^ 1]) + first[middle + 1 :]
    wrong_size = assert_comes_back(filmed("mjpeg.avi", "yuv420p", 1), 1)[0]
    for bad in (b"", first[:5], first[:-9], flipped, raw[:-1], raw + b"x", second, wrong_size):
        with pytest.raises(IntegrityError):
            fresh.unpack(memoryview(bad))
    with pytest.raises(IntegrityError):
        fresh.unpack(memoryview(b"\xff" + first[1:]))
    assert fingerprint(fresh.unpack(memoryview(first))) == fingerprint(pictures[0])


# ---------------------------------------------------------------------------------------- cells


def media(like: av.VideoFrame) -> MediaInfo:
    return MediaInfo(
        container="",
        codec="rawvideo",
        profile=None,
        width=like.width,
        height=like.height,
        pixel_format=like.format.name,
        time_base=Fraction(1, 25),
        average_rate=None,
    )


def packed(stream: CellStream) -> PackedCell:
    return PackedCell(stream.codec, stream.width, stream.height, stream.extradata, ())


def cell_of(pictures: list[av.VideoFrame], rect: Rect, level: int) -> CellStream:
    encoder = LosslessCellEncoder(media(pictures[0]), rect, level)
    for one in pictures:
        encoder.put(SourcePicture(one))
    stream, likeness = encoder.finish()
    assert likeness == IDENTICAL
    return stream


def shown(stream: CellStream, first: int = 0) -> list[int]:
    decoder = cell_decoder(packed(stream))
    decoder.skip(first)
    return [
        fingerprint(one)
        for packet in stream.packets[decoder.fed :]
        for number, one in decoder.decode(memoryview(packet))
        if number >= first
    ]


@pytest.mark.parametrize("pixel_format", ["yuv420p", "rgb24"])
def test_recompressed_cells_decode_equally(pixel_format: str) -> None:
    pictures = filmed("traffic.mp4", pixel_format, 12)
    raw = cell_of(pictures, Rect(16, 32, 237, 213), RAW_LEVEL)
    assert (raw.width, raw.height) == (222, 182)
    wanted = shown(raw)
    assert len(set(wanted)) == len(pictures)
    size = sum(map(len, raw.packets))
    for level in (1, 9):
        stream = recompressed(packed(raw), map(memoryview, raw.packets), level)
        assert shown(stream) == wanted
        assert sum(map(len, stream.packets)) < size / 2
        back = recompressed(packed(stream), map(memoryview, stream.packets), RAW_LEVEL)
        assert back.packets == raw.packets


def test_decoding_begins_at_the_nearest_key_packet() -> None:
    rng = np.random.default_rng(4)
    scenes = [picture(64, 64, "yuv420p", noise(rng)) for _ in range(3)]
    stream = cell_of([scenes[n // 4] for n in range(12)], Rect(0, 0, 64, 64), 1)
    alone = [n for n, packet in enumerate(stream.packets) if is_key_packet(packet)]
    assert alone == [0, 4, 8]
    wanted = shown(stream)
    for first in range(12):
        decoder = LosslessCellDecoder(packed(stream))
        decoder.skip(first)
        assert decoder.fed == first // 4 * 4
        assert shown(stream, first) == wanted[first:]
    raw = LosslessCellDecoder(packed(cell_of(scenes, Rect(0, 0, 64, 64), RAW_LEVEL)))
    raw.skip(2)
    assert raw.fed == 2


def test_decoder_moves_between_cells() -> None:
    pictures = filmed("traffic.mp4", "yuv420p", 4)
    one = cell_of(pictures, Rect(0, 0, 64, 64), 1)
    other = cell_of(pictures[::-1], Rect(64, 64, 128, 128), 1)
    decoder = cell_decoder(packed(one))
    decoder.decode(memoryview(one.packets[0]))
    assert decoder.fits(packed(other))
    decoder.restart(packed(other))
    with pytest.raises(IntegrityError, match="previous picture is missing"):
        decoder.decode(memoryview(other.packets[1]))
    decoder.restart(packed(other))
    came = [decoder.decode(memoryview(packet))[0] for packet in other.packets[:1]]
    assert (came[0][0], fingerprint(came[0][1])) == (0, shown(other)[0])
    larger = cell_of(pictures, Rect(0, 0, 80, 64), 1)
    assert not decoder.fits(packed(larger))


@pytest.mark.parametrize(
    "told",
    [
        *(b"", b"[]", b'{"pixels": "yuv420p", "siting": "left"}'),
        b'{"pixels": "nv12", "siting": "left", "alone": [0]}',
        b'{"pixels": "yuv420p", "siting": "right", "alone": [0]}',
        *(
            b'{"pixels": "yuv420p", "siting": "left", "alone": %s}' % bad
            for bad in (b"[]", b"[1]", b"[0, 3, 2]", b"7")
        ),
    ],
)
def test_impossible_cell_headers_are_refused(told: bytes) -> None:
    with pytest.raises(IntegrityError):
        cell_decoder(PackedCell("lossless", 64, 64, told, ()))


def test_format_changes_are_refused() -> None:
    pictures = filmed("traffic.mp4", "yuv420p", 1) + filmed("traffic.mp4", "yuv422p", 1)
    encoder = LosslessCellEncoder(media(pictures[0]), Rect(0, 0, 64, 64), 1)
    encoder.put(SourcePicture(pictures[0]))
    with pytest.raises(UsageError, match="yuv422p"):
        encoder.put(SourcePicture(pictures[1]))
