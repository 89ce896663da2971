"""Confirming frame tables in the background: every new video is decoded once, in idle time."""

from __future__ import annotations

import logging
import os
import threading

from vfsd.errors import NotFoundError, VfsdError
from vfsd.model import LogicalVideo
from vfsd.store import Store

_PAUSE_SECONDS = 2.0
_LOWEST_PRIORITY = 19

_log = logging.getLogger(__name__)


class _StopError(Exception):
    """The verifier was told to stop in the middle of a video."""


class Verifier:
    """A thread that decodes videos whose frame table nothing but their packets vouches for.

    It has the lowest priority, so that it costs time only where nobody else wants it.  Closing it
    interrupts the video at hand; the next mount starts it again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stop = threading.Event()
        self._failed: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="vfsd-verify", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        while not self._stop.wait(_PAUSE_SECONDS):
            try:
                self._verify_all()
            except _StopError:
                return
            except Exception:
                _log.exception("could not look for videos to verify; trying again")

    def _verify_all(self) -> None:
        for info in [*self._suspected(), *self._store.catalog.unverified()]:
            if info.original.id in self._failed:
                continue
            try:
                if self._store.open_video(info).verify(on_progress=self._progress):
                    _log.info("the frame table of %r was corrected", info.name)
            except NotFoundError:
                continue  # somebody has taken it away meanwhile
            except (VfsdError, OSError) as error:
                # A file that stopped decoding is `fsck`'s business; not every two seconds, though.
                self._failed.add(info.original.id)
                _log.warning("%r could not be verified: %s", info.name, error)

    def _suspected(self) -> list[LogicalVideo]:
        """Videos that one crash speaks against: most of them had nothing to do with it.

        After another one it takes a person to have them shown again.
        """
        suspects = self._store.parts.suspects
        if not suspects.any_barred:
            return []
        found = []
        for info in self._store.catalog.find():
            suspicion = suspects.of(info.original)
            if suspicion is not None and suspicion.barred and suspicion.crashes == 1:
                found.append(info)
        return found

    def _progress(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise _StopError
