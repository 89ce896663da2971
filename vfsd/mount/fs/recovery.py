"""Putting a store right that nobody has mounted: what a crash, or a power cut, has left."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from vfsd.core.model import FileState
from vfsd.disk.safe_open import STAYS, remove
from vfsd.storage.context import Parts
from vfsd.storage.reclaim import reclaim
from vfsd.write.crash_cleanup import leftovers, take_all_away
from vfsd.write.offline_classify import recover_orphans
from vfsd.write.recordings import recordings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found, and put right."""

    orphans: int  #: files without a name that were open
    stray: int  #: private files that belong to nobody, and temporary ones
    emptied: int  #: new files whose bytes had not reached the disk
    unjudged: list[int]  #: inodes that wait to be judged

    def __str__(self) -> str:
        counts = (
            (len(self.unjudged), "new to be looked at"),
            (self.emptied, "empty, as their bytes had not reached the disk"),
            (self.orphans, "removed that had lost their names while they were open"),
            (self.stray, "removed that belonged to nobody"),
        )
        return ", ".join(f"{count} {what}" for count, what in counts if count)


def recover(parts: Parts) -> Recovered:
    """To be called before the store is used; nobody else may have it mounted."""
    with parts.catalog.writing() as change:
        orphans = recover_orphans(change)
    with parts.catalog.reading() as seen:
        spooled = {node.ino for node in seen.tree.files_in_state(FileState.SPOOLED)}
        private = seen.tree.private_inodes()
    for recording in recordings(parts):
        _log.warning("%s", recording)
    stray = _remove_stray(parts, private)
    emptied = 0
    for ino in spooled:
        path = parts.directory.spool_file(ino)
        if not os.path.lexists(path):
            # As with any file that was never synced: the name survived, the bytes did not.
            with parts.catalog.reading() as seen:
                name = " or ".join(map(repr, seen.tree.paths_of(ino)))
            _log.warning("%s is empty: a crash came before its bytes were on the disk", name)
            path.touch(mode=0o600)
            emptied += 1
    reclaim(parts)
    found = Recovered(orphans, stray, emptied, sorted(spooled))
    if orphans or stray or emptied or spooled:
        _log.info("files that the last mount left: %s", found)
    return found


def _remove_stray(parts: Parts, private: set[int]) -> int:
    listed = parts.directory.spooled() if parts.directory.has_own_spool else ()
    stray = [path for ino, path in listed if ino not in private]
    left = leftovers(parts)
    if stray or left:
        parts.catalog.sync()
    gone = 0
    for path in stray:
        try:
            remove(path)
            gone += 1
        except STAYS as error:
            _log.warning("%s", error)
    return gone + len(take_all_away(parts, left))
