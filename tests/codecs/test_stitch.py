"""Stitched streams equal their tiles, bit for bit, in two decoders."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cache, partial
from itertools import islice
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.codeccontext import VideoCodecContext
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.support.hevc_decoders import (
    Planes,
    are_equal,
    by_ffmpeg,
    by_libde265,
    crop,
    decoded,
    differing_tiles,
    rects,
    samples,
    scene,
    settings,
    tiles,
)
from tests.support.selection import examples, one_in
from vfsd.codecs.containers.muxers import Fmp4Muxer, encoder_packet_format
from vfsd.codecs.containers.tracks import PacketTimes, VideoTrack, overhead
from vfsd.codecs.encoding.encoder import EncoderSettings, encode_pictures, parameter_sets
from vfsd.codecs.stitching import kvazaar
from vfsd.codecs.stitching.hevc_tiles import (
    STITCHABLE,
    ParameterSets,
    TileStream,
    extract_tile,
    extract_tiles,
)
from vfsd.codecs.stitching.kvazaar import encode_tile, encode_tiled
from vfsd.codecs.stitching.stitch import (
    StitchedSegment,
    Stitcher,
    common_sets,
    max_stitched_bytes,
    stitch,
)
from vfsd.errors import RefusedMediaError, UsageError
from vfsd.tiling.layout import Rect

pytestmark = pytest.mark.usefixtures("kvazaar")

LAYOUTS = {
    "1x1": ((192,), (128,)),
    "2x2": ((192, 192), (128, 128)),
    "3x3": ((128, 128, 128), (64, 128, 64)),
    "4x4": ((64, 64, 128, 64), (64, 64, 64, 64)),
    "mixed": ((64, 192, 128), (192, 64)),
    "a column": ((64,) * 5, (128,)),
    "right and bottom not of whole blocks": ((128, 64, 120), (64, 104)),
    "nor of whole coding blocks": ((64, 64, 46), (64, 64, 90)),
    "a last tile of two pixels": ((64, 128, 2), (128, 2)),
}
GRID = LAYOUTS["4x4"]


def stitched(
    parts: Sequence[TileStream], picture_id: int = 0, level: int | None = None
) -> StitchedSegment:
    return stitch(parts, profile=STITCHABLE, picture_id=picture_id, level_idc=level)


def block(columns: tuple[int, int], rows: tuple[int, int]) -> list[TileStream]:
    """A block of the 4x4 grid."""
    parts = tiles(*GRID)
    return [parts[4 * row + column] for row in range(*rows) for column in range(*columns)]


def uneven() -> list[TileStream]:
    """The 4x4 grid with coarse and fine tiles, like a chessboard."""
    coarse, fine = tiles(*GRID, 40), tiles(*GRID, 20)
    return [(coarse, fine)[(index + index // 4) % 2][index] for index in range(16)]


def segments() -> list[list[TileStream]]:
    """Three segments of 384x256 pixels in three layouts."""
    return [list(tiles(*LAYOUTS[name])) for name in ("2x2", "3x3", "mixed")]


def shown(found: StitchedSegment) -> list[Planes]:
    return by_ffmpeg(found.pictures, found.parameter_sets)


@pytest.mark.parametrize("name", one_in(4, LAYOUTS))
def test_stitched_tiles_equal_single_tiles(name: str) -> None:
    parts = tiles(*LAYOUTS[name])
    found = stitched(parts)
    pictures = shown(found)
    assert len(pictures) == 10
    assert pictures[0][0].shape == (found.rect.height, found.rect.width)
    assert differing_tiles(pictures, found.rect, parts) == []


FILMED = {
    "birds_duck_1080x1920_hevc.mp4": ((256, 256, 256, 312), (448, 448, 512, 512)),
    "carpov_highway_960x540.mp4": ((320, 320, 320), (192, 192, 156)),
    "phone_pan_campus_720p.mp4": ((192, 512, 576), (448, 272)),
    "intel_cars_topdown_768x432.mp4": ((384, 384), (192, 240)),
}


@cache
def filmed(path: Path) -> tuple[TileStream, ...]:
    with av.open(str(path)) as container:
        frames = [
            frame.reformat(format="yuv420p") for frame in islice(container.decode(video=0), 12)
        ]
    chosen = settings(frames[0].width, frames[0].height)
    return tuple(encode_tiled(chosen, *FILMED[path.name], frames))


@pytest.mark.footage
@pytest.mark.parametrize("clip", one_in(4, FILMED))
def test_stitched_filmed_tiles_equal_single_tiles(clip: str, footage: Path) -> None:
    parts = filmed(footage / "real" / clip)
    found = stitched(parts)
    pictures = shown(found)
    assert len(pictures) == 12
    assert differing_tiles(pictures, found.rect, parts) == []


@pytest.mark.footage
@pytest.mark.parametrize("clip", FILMED)
def test_libde265_decodes_stitched_filmed_tiles(
    clip: str, footage: Path, libde265: str, tmp_path: Path
) -> None:
    found = stitched(filmed(footage / "real" / clip))
    pictures = by_libde265(libde265, found.packets, tmp_path)
    assert are_equal(pictures, shown(found))


def test_unconstrained_motion_vectors_cause_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    free = tuple(p for p in kvazaar._PARAMETERS if not p.startswith("mv-constraint"))
    monkeypatch.setattr(kvazaar, "_PARAMETERS", free)
    parts = encode_tiled(settings(384, 256), *LAYOUTS["mixed"], scene(384, 256))
    found = stitched(parts)
    assert differing_tiles(shown(found), found.rect, parts) != []


def test_separately_encoded_tiles_are_equal() -> None:
    widths, heights = LAYOUTS["mixed"]
    together = tiles(widths, heights)
    alone = [
        encode_tile(
            settings(rect.width, rect.height),
            [crop(frame, rect) for frame in scene(sum(widths), sum(heights))],
            x=rect.x1,
            y=rect.y1,
        )
        for rect in rects(widths, heights)
    ]
    assert alone == list(together)


@pytest.mark.parametrize(
    ("columns", "rows"),
    [((0, 2), (0, 2)), ((1, 3), (2, 4)), ((3, 4), (0, 4)), ((0, 4), (3, 4)), ((2, 3), (1, 2))],
)
def test_arbitrary_blocks_of_tiles(columns: tuple[int, int], rows: tuple[int, int]) -> None:
    chosen = block(columns, rows)
    found = stitched(chosen)
    assert found.rect.x1 == sum(GRID[0][: columns[0]])
    assert found.rect.y2 == sum(GRID[1][: rows[1]])
    assert differing_tiles(shown(found), found.rect, chosen) == []


def test_block_at_the_odd_corner() -> None:
    parts = tiles(*LAYOUTS["nor of whole coding blocks"])
    chosen = [parts[index] for index in (4, 5, 7, 8)]
    found = stitched(chosen)
    assert (found.rect.width, found.rect.height) == (110, 154)
    assert differing_tiles(shown(found), found.rect, chosen) == []


def test_tiles_of_different_quality() -> None:
    parts = uneven()
    found = stitched(parts)
    pictures = shown(found)
    assert differing_tiles(pictures, found.rect, parts) == []


def test_tile_order_does_not_matter() -> None:
    parts = tiles(*GRID)
    assert stitched(parts[::-1]) == stitched(parts)


def one_segment(name: str) -> list[Sequence[TileStream]]:
    return [tiles(*LAYOUTS[name])]


CASES: dict[str, Callable[[], list[Sequence[TileStream]]]] = {
    **{name: partial(one_segment, name) for name in LAYOUTS},
    "a block in the middle": lambda: [block((1, 3), (1, 3))],
    "a block at the corner": lambda: [block((2, 4), (3, 4))],
    "different quality": lambda: [uneven()],
    "layouts change": lambda: [*segments()],
}


@pytest.mark.parametrize("case", CASES)
def test_libde265_decodes_equally(case: str, libde265: str, tmp_path: Path) -> None:
    packets = [packet for parts in CASES[case]() for packet in stitched(parts).packets]
    assert are_equal(by_libde265(libde265, packets, tmp_path), by_ffmpeg(packets))


# ------------------------------------------------------------------------- segments that differ


def test_layout_change_within_a_stream() -> None:
    found = [stitched(parts) for parts in segments()]
    packets = [packet for one in found for packet in one.packets]
    pictures = by_ffmpeg(packets)
    assert len(pictures) == 30
    for at, (one, parts) in enumerate(zip(found, segments(), strict=True)):
        run = pictures[10 * at : 10 * at + 10]
        assert differing_tiles(run, one.rect, parts) == []


def test_one_header_serves_all_layouts() -> None:
    found = [stitched(parts, at, 123) for at, parts in enumerate(segments())]
    sets = common_sets(one.parameter_sets for one in found)
    assert len(sets) == 2 + 3
    framing = encoder_packet_format("hevc", sets, stream=False)
    context = av.CodecContext.create("hevc", "r")
    assert isinstance(context, VideoCodecContext)
    context.extradata = framing.configuration
    packets = [packet for one in found for packet in one.pictures]
    pictures = decoded(context, [framing.convert(packet, False) for packet in packets])
    assert are_equal(pictures, [picture for one in found for picture in shown(one)])


def test_layout_change_within_an_mp4_file() -> None:
    found = [stitched(parts, at, 123) for at, parts in enumerate(segments())]
    sets = common_sets(one.parameter_sets for one in found)
    framing = encoder_packet_format("hevc", sets, stream=False)
    muxer = Fmp4Muxer(VideoTrack("hevc", 384, 256, framing.configuration, Fraction(1, 30), 30, 10))
    written = [muxer.header()]
    for ordinal, one in enumerate(found):
        ticks = np.arange(10 * ordinal, 10 * ordinal + 10)
        keys = (ticks == ticks[0]).astype(np.int64)
        times = PacketTimes(ticks, np.ones_like(ticks), ticks, ticks[-1] + 1, keys)
        packets = [framing.convert(packet, False) for packet in one.pictures]
        size = overhead(muxer, times) + sum(len(packet) for packet in packets)
        written.append(muxer.segment(ordinal, times, packets, size))
    with av.open(io.BytesIO(b"".join(written)), "r") as container:
        stream = container.streams.video[0]
        container.seek(15, stream=stream)
        pictures = [samples(frame) for frame in container.decode(stream)]
    assert are_equal(pictures, [picture for one in found[1:] for picture in shown(one)])


def test_one_header_needs_ids_and_one_level() -> None:
    first, second, _ = segments()
    with pytest.raises(UsageError, match="the ID 0"):
        common_sets(stitched(parts, 0, 123).parameter_sets for parts in (first, second))
    with pytest.raises(UsageError, match="one level"):
        common_sets(
            stitched(parts, at, 120 + 3 * at).parameter_sets
            for at, parts in enumerate((first, second))
        )
    assert len(common_sets([stitched(first).parameter_sets] * 2)) == 3


def test_parameter_sets_do_not_depend_on_quality_or_pictures() -> None:
    coarse, fine = (Stitcher(tiles(*GRID, q), profile=STITCHABLE) for q in (40, 20))
    bare = [TileStream(part.rect, part.parameter_sets) for part in tiles(*GRID)]
    assert coarse.parameter_sets == fine.parameter_sets
    assert Stitcher(bare, profile=STITCHABLE).parameter_sets == fine.parameter_sets


def test_size_bounds_are_checked_before_stitching() -> None:
    parts = tiles(*GRID)
    found = stitched(parts, 63)
    for at, picture in enumerate(found.pictures):
        sizes = [len(part.pictures[at]) for part in parts]
        assert len(picture) <= max_stitched_bytes(sizes) <= len(picture) + 16 * 16


# ------------------------------------------------------------------------------- taking apart


@pytest.mark.parametrize("name", LAYOUTS)
def test_extracting_undoes_stitching(name: str) -> None:
    parts = tiles(*LAYOUTS[name])
    found = stitched(parts, 5)
    again = extract_tiles(found.parameter_sets, found.pictures, profile=STITCHABLE)
    assert again == list(parts)
    assert stitched(again, 5) == found


def test_extracting_one_tile() -> None:
    parts = tiles(*GRID)
    found = stitched(parts)
    for index in (0, 6, 15):
        one = extract_tile(found.parameter_sets, found.pictures, index, profile=STITCHABLE)
        assert one == parts[index]
    for index in (-1, 16):
        with pytest.raises(UsageError, match="has 16"):
            extract_tile(found.parameter_sets, found.pictures, index, profile=STITCHABLE)


# ------------------------------------------------------------------------- levels and windows


def test_level_and_window_of_the_stitched_picture() -> None:
    found = stitched(tiles(*LAYOUTS["nor of whole coding blocks"]))
    sequence = ParameterSets.parse(found.parameter_sets).sequence
    assert (sequence.width, sequence.height) == (176, 224)
    assert (sequence.window.right, sequence.window.bottom) == (2, 6)
    assert sequence.rate == 30
    # Three columns and rows of tiles are for level 3.1 on; the tiles alone are for level 1.
    assert sequence.level_idc == found.level_idc == 93
    assert ParameterSets.parse(tiles((64,), (64,))[0].parameter_sets).sequence.level_idc == 30


def test_narrow_columns_are_not_conformant() -> None:
    assert not stitched(tiles(*LAYOUTS["4x4"])).is_conformant
    # The last column counts as the 256 that its blocks take.
    assert stitched(tiles((256, 200), (64, 36))).is_conformant
    assert not stitched(tiles((256, 100), (64, 36))).is_conformant
    assert stitched(tiles((64,), (64,))).is_conformant
    assert not stitched(tiles((256, 200), (64, 36)), 0, 30).is_conformant


# ------------------------------------------------------------------------------ what is refused


def test_streams_of_other_profiles_are_refused() -> None:
    parts = tiles(*GRID)
    found = stitched(parts)
    with pytest.raises(RefusedMediaError, match="may leave the tile"):
        stitch(parts, profile="hevc")
    with pytest.raises(RefusedMediaError, match="may leave the tile"):
        extract_tile(found.parameter_sets, found.pictures, 0, profile="small")


@pytest.mark.parametrize("profile", [STITCHABLE, "hevc"])
def test_x265_is_refused(profile: str) -> None:
    chosen = EncoderSettings("hevc", 128, 128, 28, Fraction(30))
    packets = tuple(encode_pictures(chosen, scene(128, 128)))
    part = TileStream(Rect(0, 0, 128, 128), parameter_sets(chosen), packets)
    with pytest.raises(RefusedMediaError):
        stitch([part, dataclasses.replace(part, rect=Rect(128, 0, 256, 128))], profile=profile)


def test_tiles_that_do_not_form_a_grid_are_refused() -> None:
    parts = list(tiles(*GRID))
    for wrong in ([], parts[:5], [*parts, parts[3]], [*parts[:4], *parts[8:12]]):
        with pytest.raises(UsageError):
            stitched(wrong)


def test_tiles_with_different_frame_counts_are_refused() -> None:
    one, other = tiles(*GRID)[:2]
    with pytest.raises(UsageError, match="number of pictures"):
        stitched([one, dataclasses.replace(other, pictures=other.pictures[:-1])])
    with pytest.raises(UsageError, match="at least one"):
        stitched([dataclasses.replace(one, pictures=())])
    with pytest.raises(RefusedMediaError, match="different kinds"):
        stitched([one, dataclasses.replace(other, pictures=other.pictures[::-1])])
    with pytest.raises(RefusedMediaError, match="IDR"):
        stitched([dataclasses.replace(one, pictures=one.pictures[1:])])
    doubled = tuple(picture * 2 for picture in other.pictures)
    with pytest.raises(RefusedMediaError, match="one slice"):
        stitched([one, dataclasses.replace(other, pictures=doubled)])


def test_tiles_of_wrong_sizes_are_refused() -> None:
    one = tiles((64,), (64,))[0]
    with pytest.raises(UsageError, match="shows 64x64"):
        stitched([dataclasses.replace(one, rect=Rect(0, 0, 128, 64))])
    narrow = tiles((46,), (64,))[0]
    beside = dataclasses.replace(one, rect=one.rect.moved(46, 0))
    with pytest.raises(UsageError, match="multiples of 64"):
        stitched([narrow, beside])


def test_tiles_with_inner_tiles_are_refused() -> None:
    found = stitched(tiles(*LAYOUTS["2x2"]))
    part = TileStream(found.rect, found.parameter_sets, found.pictures)
    with pytest.raises(RefusedMediaError, match="itself tiled"):
        stitched([part])


def test_tiles_of_other_encoders_are_refused() -> None:
    one = tiles((64,), (64,))[0]
    chosen = dataclasses.replace(settings(64, 64), rate=Fraction(25))
    (other,) = encode_tiled(chosen, [64], [64], scene(64, 64))
    with pytest.raises(RefusedMediaError, match="different encoder settings"):
        stitched([one, dataclasses.replace(other, rect=Rect(64, 0, 128, 64))])


# -------------------------------------------------------------------------------------- damage

_SLOW = hypothesis_settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@_SLOW
@given(data=st.data())
def test_damaged_tiles_are_stitched_or_refused(data: st.DataObject) -> None:
    parts = list(tiles(*LAYOUTS["2x2"]))
    index = data.draw(st.integers(0, 3))
    part = parts[index]
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, 9))
        pictures = list(part.pictures)
        pictures[at] = _garbled(data, pictures[at])
        parts[index] = dataclasses.replace(part, pictures=tuple(pictures))
    else:
        at = data.draw(st.integers(0, 2))
        sets = list(part.parameter_sets)
        sets[at] = _garbled(data, sets[at])
        parts[index] = dataclasses.replace(part, parameter_sets=tuple(sets))
    with suppress(RefusedMediaError, UsageError):
        stitched(parts)


@_SLOW
@given(data=st.data())
def test_damaged_streams_are_split_or_refused(data: st.DataObject) -> None:
    found = stitched(tiles(*LAYOUTS["2x2"]))
    sets, pictures = list(found.parameter_sets), list(found.pictures)
    where = data.draw(st.sampled_from((sets, pictures)))
    at = data.draw(st.integers(0, len(where) - 1))
    where[at] = _garbled(data, where[at])
    with suppress(RefusedMediaError):
        extract_tiles(tuple(sets), pictures, profile=STITCHABLE)


def _garbled(data: st.DataObject, unit: bytes) -> bytes:
    """Truncated, or with a few changed bytes near its beginning."""
    if data.draw(st.booleans()):
        return unit[: data.draw(st.integers(0, len(unit) - 1))]
    changed = bytearray(unit)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, min(len(unit), 60) - 1))] = data.draw(st.integers(0, 255))
    return bytes(changed)
