"""`EventHub` finds events: jobs, changed videos, and new footage of cameras."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, NamedTuple

from vfsd.api.store import Store
from vfsd.core.timebase import iso_time
from vfsd.web.camera_index import CameraIndex
from vfsd.web.jobs import Jobs

LOOK_SECONDS = 1.0
_KEPT = 500


class ServerEvent(NamedTuple):
    """An event, and the directory that its receivers must see; None: users with access to all."""

    id: int
    kind: str  #: job, video or spans
    data: dict[str, Any]
    place: str | None


class EventHub:
    """Finds events by comparing the store with its last state.  Thread-safe.

    One comparison serves all clients; without a client, none is made.
    """

    def __init__(self, store: Store, cameras: CameraIndex, jobs: Jobs) -> None:
        self._store = store
        self._cameras = cameras
        self._jobs = jobs
        self._guard = threading.Lock()
        self._events: deque[ServerEvent] = deque(maxlen=_KEPT)
        # Numbers go on after a restart of the server, so that a client notices what it missed.
        self._last = int(time.time() * 1000)
        self._looked = 0.0
        self._known_jobs: dict[str, Any] | None = None
        self._known_spans: dict[str, int] | None = None
        self._changes = -1
        self.clients = 0

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._last

    def look(self) -> None:
        """Compare the store with its state at the last look, at most once a second."""
        with self._guard:
            now = time.monotonic()
            if now - self._looked < LOOK_SECONDS:
                return
            self._looked = now
            jobs = {job["id"]: job for job in self._jobs.all()}
            if self._known_jobs is not None:
                for number, job in jobs.items():
                    if self._known_jobs.get(number) != job:
                        self._add("job", job, None)
            self._known_jobs = jobs
            changes = self._store.tools.catalog_changes.count()
            if changes == self._changes:
                return
            if self._changes != -1:
                self._add("video", {"changed": True}, "")
            self._changes = changes
            spans = {camera.name: camera.last_ns for camera in self._cameras.all()}
            if self._known_spans is not None:
                for name, last in spans.items():
                    if self._known_spans.get(name) != last:
                        self._add("spans", {"camera": name, "last": iso_time(last)}, name)
            self._known_spans = spans

    def after(self, number: int) -> list[ServerEvent]:
        """Return the events after a number; an event `reset` if some are lost."""
        with self._guard:
            found = [event for event in self._events if event.id > number]
            oldest = self._events[0].id if self._events else self._last + 1
            if number < oldest - 1 and number != self._last:
                return [ServerEvent(self._last, "reset", {}, "")]
            return found

    def _add(self, kind: str, data: dict[str, Any], place: str | None) -> None:
        self._last += 1
        self._events.append(ServerEvent(self._last, kind, data, place))
