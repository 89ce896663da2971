"""Facts about earlier renders: what encoding took on this host, and what the cache holds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vfsd.core.hostinfo import host_name
from vfsd.errors import VfsdError
from vfsd.storage.context import Parts
from vfsd.storage.file_cache import FileCache, file_of
from vfsd.views.encodetimes import EncodeTimes
from vfsd.views.rendered_view import Rendition
from vfsd.views.transcode import EncodedRendition

_log = logging.getLogger(__name__)

_LEAST_PIXELS = 5_000_000
"""Fewer pixels are not a measurement: a second of 640x360 has 7 million."""


def cache_name(rendition: Rendition, slot: int) -> str:
    """The name of a slot's file in the cache, see `vfsd.storage.file_cache.file_of`."""
    if isinstance(rendition, EncodedRendition):
        return file_of(rendition.digest, rendition.key_of_slot(slot))
    return file_of(rendition.digest, f"{rendition.key}.{slot}")


@dataclass(frozen=True, slots=True)
class RenderFacts:
    """What is known of renders on this host."""

    encode_pixel: Mapping[str, float] = field(default_factory=dict)
    """CPU seconds for a pixel of a view, by codec; codecs without a measurement are missing."""
    is_cached: Callable[[str], bool] | None = None
    """Whether the cache has a file of that name, see `cache_name`; None if unknown."""

    @classmethod
    def of_store(cls, parts: Parts) -> RenderFacts:
        """Facts from the catalog and from the files of the cache."""
        return cls(parts.catalog.encode_costs(host_name()), FileCache.of_store(parts).has)

    def count_cached(self, rendition: Rendition) -> int | None:
        """How many slots of a rendition the cache holds; None if unknown, or none can be kept."""
        if self.is_cached is None or not rendition.storable:
            return None
        return sum(self.is_cached(cache_name(rendition, slot)) for slot in rendition.storable)


def keep_times(parts: Parts, times: EncodeTimes) -> None:
    """Move the sums of `times` into the catalog; small sums stay for the next call.

    A catalog that cannot be written keeps the older measurement.
    """
    if parts.read_only:
        return
    measured = times.take(_LEAST_PIXELS)
    if not measured:
        return
    try:
        with parts.catalog.writing() as change:
            for codec, seconds in measured.items():
                change.costs.put_encoding(host_name(), codec, seconds, time.time_ns())
    except VfsdError as error:
        _log.debug("the time of encoding is not kept: %s", error)
