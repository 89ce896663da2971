"""The index of layers: bounds of counts, against counting all pixels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfsd.core.cell_index import RUN, CellIndex, CellIndexBuilder, Maps
from vfsd.errors import IntegrityError
from vfsd.tiling import Rect

Kind = Callable[[np.random.Generator, int, tuple[int, int, int]], npt.NDArray[np.int64]]


def noise(rng: np.random.Generator, top: int, shape: tuple[int, int, int]) -> Maps:
    return rng.integers(0, top, shape)


def classes(rng: np.random.Generator, top: int, shape: tuple[int, int, int]) -> Maps:
    return rng.choice(rng.integers(0, top, int(rng.integers(1, 20))), shape)


def smooth(rng: np.random.Generator, top: int, shape: tuple[int, int, int]) -> Maps:
    return np.cumsum(rng.integers(0, 3, shape), axis=2) % top


def built(maps: Maps, file_bytes: float, most_bytes: int) -> bytes:
    builder = CellIndexBuilder(maps[:: max(1, len(maps) // 4)], maps[:RUN], file_bytes)
    for first in range(0, len(maps), RUN):
        builder.add(maps[first : first + RUN])
    return builder.finish(most_bytes)


def opened(data: bytes) -> CellIndex:
    return CellIndex(lambda position, size: data[position : position + size])


@given(
    st.integers(0, 2**32),
    st.sampled_from([noise, classes, smooth]),
    st.sampled_from([np.uint8, np.uint16]),
    st.tuples(st.integers(1, 80), st.integers(1, 90), st.integers(1, 90)),
    st.sampled_from([50.0, 500.0, 5e3, 1e6]),
    st.sampled_from([1, 1_000, 10**9]),
)
def test_bounds_hold(
    seed: int,
    kind: Kind,
    dtype: type[np.unsignedinteger[npt.NBitBase]],
    shape: tuple[int, int, int],
    file_bytes: float,
    most_bytes: int,
) -> None:
    rng = np.random.default_rng(seed)
    top = np.iinfo(dtype).max + 1
    maps = kind(rng, top, shape).astype(dtype)
    index = opened(built(maps, file_bytes, most_bytes))
    assert (len(index), index.size) == (shape[0], (shape[2], shape[1]))
    for _ in range(8):
        x1, x2 = sorted(rng.choice(shape[2] + 1, 2, replace=False).tolist())
        y1, y2 = sorted(rng.choice(shape[1] + 1, 2, replace=False).tolist())
        rect = Rect(x1, y1, x2, y2)
        limits = rng.choice(
            [*rng.integers(0, top + 1, 2), maps.flat[0], int(maps.flat[-1]) + 1, top], 2
        )
        low, high = sorted(limits.tolist())
        part = maps[:, y1:y2, x1:x2].astype(np.int64)
        exact = ((low <= part) & (part < high)).sum((1, 2))
        of_runs = index.run_bounds(rect, low, high)
        for run in range(index.runs):
            places = index.run_maps(run)
            true = exact[places.start : places.stop]
            least, most = index.map_bounds(run, rect, low, high)
            assert (least >= 0).all()
            assert (least <= true).all()
            assert (true <= most).all()
            assert (most <= rect.area).all()
            assert of_runs[0][run] <= true.min()
            assert true.max() <= of_runs[1][run]
            one = index.map_bounds(run, rect, low, high, len(places) - 1)
            assert (one[0][0], one[1][0]) == (least[-1], most[-1])


def test_few_classes_and_whole_cells_are_exact() -> None:
    rng = np.random.default_rng(4)
    maps = rng.choice(np.array([0, 3, 4, 200], np.uint8), (40, 64, 96))
    index = opened(built(maps, 1e6, 10**9))
    assert (index.cell, index.bins) == (8, 4)
    for low, high in [(1, 256), (3, 4), (2, 5), (5, 201), (201, 256), (0, 0)]:
        least, most = index.map_bounds(1, Rect(8, 16, 96, 64), low, high)
        part = maps[32:, 16:64, 8:96]
        true = ((low <= part) & (part < high)).sum((1, 2))
        assert np.array_equal(least, true)
        assert np.array_equal(most, true)


def test_an_index_is_as_small_as_asked() -> None:
    maps = np.random.default_rng(1).integers(0, 256, (64, 240, 320)).astype(np.uint8)
    sizes = [len(built(maps, most / 64, most)) for most in (20_000, 100_000, 400_000)]
    assert sizes[0] < sizes[1] < sizes[2]
    assert [size <= most for size, most in zip(sizes, (20_000, 100_000, 400_000), strict=True)]


@pytest.mark.parametrize("at", [0, 5, 20, -1])
def test_damage_is_noticed(at: int) -> None:
    maps = np.random.default_rng(1).integers(0, 256, (40, 24, 32)).astype(np.uint8)
    data = bytearray(built(maps, 1e6, 10**9))
    data[at] ^= 1
    with pytest.raises(IntegrityError):
        _ = [opened(bytes(data)).map_bounds(run, Rect(0, 0, 9, 9), 3, 9) for run in range(2)]
    with pytest.raises(IntegrityError):
        opened(b"vfci")
