"""Confirming frame tables in the background: every new video is decoded once, in idle time."""

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
    """The verifier was told to stop in the middle of a video."""


class BackgroundVerifier:
    """A thread that decodes videos whose frame table nothing but their packets vouches for.

    It has the lowest priority, so that it costs time only where nobody else wants it.  Closing it
    interrupts the video at hand; the next mount starts it again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stop = threading.Event()
        self._failed: set[int] = set()
        self._passed = 0  #: nothing is left to be tried among originals up to this number
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
                        self._verify_some()
                        is_due = False
                except _VerifierStopError:
                    return
                except Exception:
                    _log.exception("could not look for videos to verify; trying again")

    def _verify_some(self) -> None:
        """Suspects, and the newest of the others, however many have failed that are newer still.

        What is verified changes the catalog, so that there is a next time.
        """
        self._barred = self._store.parts.quarantine.barred()
        for info in self._suspected():
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
        """Whether it was decoded in full; one that failed before is passed over."""
        if info.original.id in self._failed:
            return False
        try:
            if self._store.open_video(info).verify(on_progress=self._progress):
                _log.info("the frame table of %r was corrected", info.name)
        except NotFoundError:
            return False  # somebody has taken it away meanwhile
        except (VfsdError, OSError) as error:
            # A file that stopped decoding is `fsck`'s business; not every two seconds, though.
            self._failed.add(info.original.id)
            _log.warning("%r could not be verified: %s", info.name, error)
            return False
        return True

    def _suspected(self) -> list[LogicalVideo]:
        """Videos that one crash speaks against: most of them had nothing to do with it.

        After another one it takes a person to have them shown again.
        """
        places = [place for place, one in self._barred.items() if one.crashes == 1]
        with self._store.catalog.reading() as seen:
            numbers = [number for place in places for number in seen.integrity.videos_of(place)]
            return [seen.videos.get(number) for number in numbers]

    def _progress(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise _VerifierStopError
