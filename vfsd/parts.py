"""What a store is made of; the verbs (`ingest`, `reader`, `check` ...) work on this."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vfsd.catalog import Catalog
from vfsd.config import Settings
from vfsd.examiner import Examiner
from vfsd.model import PhysicalVideo
from vfsd.objects import ObjectStore
from vfsd.storedir import StoreDirectory
from vfsd.suspects import Suspects


@dataclass(frozen=True, slots=True)
class Parts:
    directory: StoreDirectory
    catalog: Catalog
    objects: ObjectStore
    settings: Settings
    examiner: Examiner
    suspects: Suspects
    read_only: bool = False

    def bytes_of(self, physical: PhysicalVideo) -> Path:
        """The file that holds an encoding: an object, or a file indexed in place."""
        if physical.object_key is not None:
            return self.objects.path(physical.object_key)
        assert physical.link_path is not None
        return Path(physical.link_path)
