"""Helpers for tests of writing videos."""

from __future__ import annotations

import numpy as np

from vfsd.api.store import Store
from vfsd.core.pixel_array import Pixels


def smooth(count: int, width: int, height: int) -> Pixels:
    """Different RGB frames of slow waves of color."""
    t, y, x, c = np.meshgrid(
        np.arange(count), np.arange(height), np.arange(width), np.arange(3), indexing="ij"
    )
    waves = np.sin((x + 2 * t) / (17.0 + 3 * c)) + np.cos((y - t) / (23.0 + 2 * c))
    return (127.5 + 60 * waves).round().astype(np.uint8)


def is_as_before(store: Store, names: list[str]) -> bool:
    """Whether the store contains only those videos, also on disk."""
    tmp = store.parts.directory.objects_tmp
    with store.catalog.reading() as seen:
        recorded = set(seen.objects.sizes())
    keys = set(store.parts.objects.all_keys())
    return sorted(store) == names and not list(tmp.iterdir()) and keys == recorded
