"""`WebContext`: the state that all requests of a server share."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from vfsd.api.store import Store
from vfsd.api.store_files import StoreFiles
from vfsd.core.process_control import available_cores
from vfsd.mount.background_work import ForegroundReads, ObservedViews
from vfsd.views import Views
from vfsd.web.audit_log import AuditLog
from vfsd.web.camera_index import CameraIndex
from vfsd.web.event_hub import EventHub
from vfsd.web.http_errors import HttpError
from vfsd.web.jobs import Jobs
from vfsd.web.metrics import RequestCounts
from vfsd.web.request_limits import ClientCounts, FailedLogins, WorkQueue
from vfsd.web.settings import ServeOptions
from vfsd.web.stills import StillCache
from vfsd.web.thumbnails import Thumbnails
from vfsd.web.users import Sessions, User, UserRole, Users
from vfsd.web.view_playlists import ViewPlaylists

_T = TypeVar("_T")
_EXTRA_THREADS = 4
_KEPT_SHEETS = 64


class CropSheets:
    """The newest sheets of crops in memory.  Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def get(self, key: str) -> bytes | None:
        with self._guard:
            return self._kept.get(key)

    def put(self, key: str, data: bytes) -> None:
        with self._guard:
            self._kept[key] = data
            while len(self._kept) > _KEPT_SHEETS:
                self._kept.popitem(last=False)


class WebContext:
    """The store, its views, the users and the limits of a server."""

    def __init__(
        self,
        store: Store,
        views: Views,
        options: ServeOptions,
        users: Users,
        sessions: Sessions,
        audit: AuditLog,
    ) -> None:
        self.store = store
        self.foreground = ForegroundReads()
        self.views = ObservedViews(views, self.foreground)
        timelines = ObservedViews(views.timelines, self.foreground)
        self.files = StoreFiles(store, self.views, timelines)
        self.options = options
        self.users = users
        self.sessions = sessions
        self.audit = audit
        self.stills = StillCache()
        self.failed_logins = FailedLogins()
        limits = options.limits
        self.clients = ClientCounts(limits.per_client, "requests")
        self.working_clients = ClientCounts(
            limits.work_per_client, "requests that encode or decode"
        )
        self.work = WorkQueue(limits.encodes, limits.queue, limits.queue_seconds)
        self.cameras = CameraIndex(store)
        self.playlists = ViewPlaylists(store)
        self.thumbnails = Thumbnails(store)
        self.crop_sheets = CropSheets()
        self.requests = RequestCounts(self.work, self.clients)
        self.jobs = Jobs(store)
        self.events = EventHub(store, self.cameras, self.jobs)
        self.stopping = threading.Event()  #: set when the server ends; long responses end then
        threads = available_cores() + _EXTRA_THREADS
        # Two pools: readers that wait for an encoder must not delay the API.
        self._media = ThreadPoolExecutor(threads, "vfsd-web-media")
        self._api = ThreadPoolExecutor(threads, "vfsd-web-api")

    @property
    def can_write(self) -> bool:
        """Whether requests may change the store."""
        return self.options.write and not self.store.parts.read_only

    def require_change(self, user: User, role: UserRole) -> None:
        """Raises `HttpError` unless a user with that role may change the store."""
        if user.role < role:
            raise HttpError(403, f"this needs the role {role.name.lower()}")
        if not self.can_write:
            raise HttpError(
                403, "the server is read-only", hint="start it with `vfsd serve --write`"
            )

    async def read(self, call: Callable[[], _T]) -> _T:
        """Run a blocking read of media in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._media, call)

    async def run(self, call: Callable[[], _T]) -> _T:
        """Run any other blocking call in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._api, call)

    def close(self) -> None:
        """Wait for the threads; the caller closes the store and its views."""
        self.stopping.set()
        self.jobs.close()
        self._media.shutdown(cancel_futures=True)
        self._api.shutdown(cancel_futures=True)
