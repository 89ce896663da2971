"""What the videos of an open store are read with, and share."""

from __future__ import annotations

from dataclasses import dataclass

from vfsd.decoders import DecoderPool
from vfsd.layouts import TileSources
from vfsd.packs import PackPool
from vfsd.parts import Parts


@dataclass(frozen=True, slots=True)
class Tools:
    """Thread-safe, and usable after a fork."""

    pool: DecoderPool
    packs: PackPool
    sources: TileSources

    @classmethod
    def of(cls, parts: Parts) -> Tools:
        return cls(DecoderPool(parts), PackPool(parts.objects), TileSources(parts.catalog))

    def close(self) -> None:
        self.pool.close()
        self.packs.close()
        self.sources.close()
