"""Differences between samples, which compress better than samples do, and samples from them.

Everything is modulo what the type of the samples holds, so that any samples come back, to the bit.
Both ways are sums over whole arrays: what a neighbour is has to be decided before the first sample
is known, which leaves out predictors that choose among neighbours (see docs/adr/lossless-tiles.md).
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[Any]
"""Rows x columns, of uint8 or uint16."""

_SUMMED = (1 << 31) // 256
"""Bytes whose sum cannot be more than 31 bits hold."""


# The median predictor of FFV1 is 1 to 4 % smaller, but each sample needs those before it. Slopes
# are undone by sums along rows and columns, 1 ms for two megapixels.
def from_neighbours(samples: Samples) -> Samples:
    """Each sample less what a slope through three neighbours foretells: left + above - both.

    Beyond the edges lie zeros.
    """
    down = samples.copy()
    np.subtract(samples[1:], samples[:-1], out=down[1:])
    found = down.copy()
    np.subtract(down[:, 1:], down[:, :-1], out=found[:, 1:])
    return found


def onto_neighbours(differences: Samples) -> Samples:
    """What `from_neighbours` was given."""
    if differences.dtype != np.uint8:
        down = np.add.accumulate(differences, axis=0, dtype=differences.dtype)
        across: Samples = np.add.accumulate(down, axis=1, dtype=differences.dtype)
        return across
    samples = np.empty_like(differences)
    rows = max(1, _SUMMED // differences.shape[1])
    for top in range(0, len(samples), rows):
        part = samples[top : top + rows]
        sums = cv2.integral(differences[top : top + rows])  # four times as fast as numpy's sums
        np.copyto(part, sums[1:, 1:], casting="unsafe")  # the lowest eight bits
        if top:
            part += samples[top - 1]
    return samples


def folded(differences: Samples) -> Samples:
    """As bytes; of wide samples, all low bytes come first, then the high ones.

    Small differences of either sign have zeros in their high bytes.
    """
    if differences.dtype == np.uint8:
        return differences.reshape(-1)
    signed = differences.view(np.int16)
    small = ((signed << 1) ^ (signed >> 15)).reshape(-1)
    return np.ascontiguousarray(small.view(np.uint8).reshape(-1, 2).T).reshape(-1)


def unfolded(data: npt.NDArray[np.uint8], shape: tuple[int, int], dtype: npt.DTypeLike) -> Samples:
    """What `folded` was given, of that shape and type."""
    if np.dtype(dtype) == np.uint8:
        return data.reshape(shape)
    low, high = data.reshape(2, -1)
    small = low | high.astype(np.uint16) << 8
    signs = (small & 1) * np.uint16(0xFFFF)
    return ((small >> 1) ^ signs).reshape(shape)
