"""What the videos of an open store are read with, and share."""

from __future__ import annotations

from dataclasses import dataclass

from vfsd.read.damage_fallback import Mender
from vfsd.read.decoder_pool import DecoderPool
from vfsd.read.pack_pool import PackPool
from vfsd.read.read_log import NoReadLog, ReadLog, ReadNotes
from vfsd.read.tile_index import TileSources
from vfsd.storage.context import Parts


@dataclass(frozen=True, slots=True)
class Tools:
    """Thread-safe, and usable after a fork."""

    pool: DecoderPool
    packs: PackPool
    sources: TileSources
    reads: ReadNotes
    mender: Mender

    @classmethod
    def of(cls, parts: Parts, threads: int | None = None) -> Tools:
        """`threads` decode side by side; default: as many as there are cores to run on."""
        reads: ReadNotes = NoReadLog()
        if not parts.read_only:
            reads = ReadLog(parts.catalog, parts.settings.remembered_reads)
        pool = DecoderPool(parts, threads)
        sources = TileSources(parts.catalog, pool.threads)
        return cls(pool, PackPool(parts.objects), sources, reads, Mender(parts))

    def cool(self, seconds: float) -> None:
        """Give up decoders, and pictures, that nobody has used for so long."""
        self.pool.cool(seconds)
        self.packs.cool(seconds)

    def close(self) -> None:
        self.reads.close()
        self.pool.close()
        self.packs.close()
        self.sources.close()
