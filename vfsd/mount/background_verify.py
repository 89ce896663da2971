"""`BackgroundVerifier` decodes every new video once, in idle time, to confirm its frame table."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import closing

from vfsd.api.store import Store
from vfsd.core.model import ByteLocation, LogicalVideo
from vfsd.errors import NotFoundError, VfsdError
from vfsd.storage.quarantine import QuarantineEntry

_PAUSE_SECONDS = 2.0
_LOWEST_PRIORITY = 19

_log = logging.getLogger(__name__)


class _VerifierStopError(Exception):
    """The verifier must stop in the middle of a video."""


class BackgroundVerifier:
    """A thread that decodes videos with a frame table made from packets only.

    It has the lowest priority. Closing it interrupts the current video; the next mount starts that
    again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stop = threading.Event()
        self._failed: set[int] = set()
        self._passed = 0  #: all originals up to this id have been tried
        self._barred: dict[ByteLocation, QuarantineEntry] = {}
        self._thread = threading.Thread(target=self._run, name="vfsd-verify", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        is_due = True
        with closing(self._store.catalog.watch()) as watch:
            while not self._stop.wait(_PAUSE_SECONDS):
                try:
                    is_due |= watch.changed()
                    is_due |= self._barred != self._store.parts.quarantine.barred()
                    if is_due:
                        self._verify_next()
                        is_due = False
                except _VerifierStopError:
                    return
                except Exception:
                    _log.exception("could not look for videos to verify; trying again")

    def _verify_next(self) -> None:
        """Verify quarantined videos, then the newest unverified one that does not fail.

        A verified video changes the catalog, which triggers the next call.
        """
        self._barred = self._store.parts.quarantine.barred()
        for info in self._quarantined():
            self._verify(info)
        newest, before = self._passed, None
        while some := self._store.catalog.unverified(before_id=before):
            newest = max(newest, some[0].original.id)
            new = [info for info in some if info.original.id > self._passed]
            verified = [self._verify(info) for info in new]
            if any(verified):
                return
            if len(new) < len(some):
                break
            before = some[-1].original.id
        self._passed = newest

    def _verify(self, info: LogicalVideo) -> bool:
        """Decode a video; return False if it failed, now or before."""
        if info.original.id in self._failed:
            return False
        try:
            if self._store.open_video(info).verify(on_progress=self._progress):
                _log.info("the frame table of %r was corrected", info.name)
        except NotFoundError:
            return False  # deleted in the meantime
        except (VfsdError, OSError) as error:
            # Remember it: retrying every two seconds would not help. `vfsd fsck` reports it.
            self._failed.add(info.original.id)
            _log.warning("%r could not be verified: %s", info.name, error)
            return False
        return True

    def _quarantined(self) -> list[LogicalVideo]:
        """Return quarantined videos with one crash: most of them did not cause it.

        After a second crash the user must verify them.
        """
        places = [place for place, one in self._barred.items() if one.crashes == 1]
        with self._store.catalog.reading() as seen:
            numbers = [number for place in places for number in seen.integrity.videos_of(place)]
            return [seen.videos.get(number) for number in numbers]

    def _progress(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise _VerifierStopError
