"""A web server in a thread of the test, and a client that sends exactly what a test asks for."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vfsd.api.store import Store
from vfsd.views import Views
from vfsd.web.app import create_app
from vfsd.web.audit_log import AuditLog
from vfsd.web.server import WebServer, bind
from vfsd.web.settings import ServeOptions
from vfsd.web.users import Sessions, User, UserRole, Users
from vfsd.web.web_context import WebContext

TOKEN = "an-administrators-token"
USERS = (
    User("owner", UserRole.ADMIN, TOKEN),
    User("annotator", UserRole.LABEL, "an-annotators-token"),
    User("viewer", UserRole.VIEW, "a-viewers-token"),
    User("guest", UserRole.VIEW, "a-guests-token-of-cam1", ("cam1",)),
)


@dataclass(frozen=True)
class Reply:
    """A response."""

    status: int
    headers: Mapping[str, str]  #: names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class WebClient:
    """Sends requests of one user, each on a connection of its own."""

    def __init__(self, port: int, token: str | None, host: str | None = None) -> None:
        self.port = port
        self.token = token
        self.host = host or f"127.0.0.1:{port}"

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, headers=headers)

    def send(
        self,
        method: str,
        path: str,
        body: bytes | Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request; `_` in the name of a header is sent as ``-``."""
        given = {name.replace("_", "-").lower(): value for name, value in (headers or {}).items()}
        if self.token is not None:
            given.setdefault("authorization", f"Bearer {self.token}")
        if isinstance(body, Mapping):
            body = json.dumps(body).encode()
            given.setdefault("content-type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with closing(connection):
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            if "host" not in given:
                given["host"] = self.host
            if body is not None and "transfer-encoding" not in given:
                given.setdefault("content-length", str(len(body)))
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read())


@dataclass(frozen=True)
class RunningServer:
    """A server and the store behind it."""

    web: WebContext
    port: int

    @property
    def store(self) -> Store:
        return self.web.store

    def client(self, token: str | None = TOKEN, host: str | None = None) -> WebClient:
        return WebClient(self.port, token, host)


@contextmanager
def serving(store: Store, state: Path | None = None, **options: Any) -> Iterator[RunningServer]:
    """Serve `store` during the block; `options` are those of `ServeOptions`."""
    sockets = bind(ServeOptions(port=0))
    port = sockets[0].getsockname()[1]
    checked = ServeOptions(port=port, **options)
    users = Users(USERS)
    sessions = Sessions(b"key of the tests", users, None if state is None else state / "ended")
    with (
        closing(Views(store.parts, store.tools)) as views,
        closing(AuditLog(None if state is None else state / "audit")) as audit,
        closing(WebContext(store, views, checked, users, sessions, audit)) as web,
    ):
        server = WebServer(create_app(web), web, sockets)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield RunningServer(web, port)
        finally:
            server.stop()
            server.stop()
            thread.join()
            for one in sockets:
                one.close()
