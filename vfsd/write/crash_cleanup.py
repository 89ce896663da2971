"""What processes that died have left on its way to somewhere."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from vfsd.disk.safe_open import STAYS
from vfsd.disk.tempfiles import is_in_hand
from vfsd.disk.tempfiles import take_away as take_file_away
from vfsd.storage.context import Parts
from vfsd.write.recordings import Recording, recordings

_log = logging.getLogger(__name__)


def leftovers(parts: Parts, *, but: Sequence[Recording] | None = None) -> list[Path]:
    """Bytes that nobody writes any more, and that belong to nobody: objects, files beside the
    catalog, and copies that a mount or a backup made.  Not those of recordings, `but` of these, or
    of all."""
    kept = {one.path for one in (recordings(parts) if but is None else but)}
    own = [path for path in parts.objects.leftovers() if parts.objects.main_file(path) not in kept]
    beside = [*parts.directory.files_on_their_way(), *parts.directory.spool_copies()]
    return [*own, *(path for path in beside if not is_in_hand(path))]


def take_away(parts: Parts, path: Path) -> bool:
    """Delete one of the `leftovers`; whether it is gone, or somebody has it in hand by now.

    Raises `IntegrityError` for a directory that is not empty, `OSError`.
    """
    if path.parent == parts.directory.objects_tmp:
        return parts.objects.take_away(path)
    return take_file_away(path)


def take_all_away(parts: Parts, left: Sequence[Path]) -> list[Path]:
    """Delete `leftovers`; those that are gone.  Others have come into somebody's hands since, or
    cannot be deleted."""
    gone = []
    for path in left:
        try:
            if take_away(parts, path):
                gone.append(path)
        except STAYS as error:
            _log.warning("%s", error)
    return gone
