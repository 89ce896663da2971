"""`serve_store`: a store as a web server, from its options to the last request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from vfsd.api.store import Store
from vfsd.core.process_control import MallocTrimmer
from vfsd.disk.state_directory import state_directory
from vfsd.views import Views
from vfsd.web.app import create_app
from vfsd.web.audit_log import AuditLog
from vfsd.web.server import WebServer, bind
from vfsd.web.settings import ServeOptions
from vfsd.web.users import (
    OWNER,
    Sessions,
    Users,
    make_token_file,
    read_secret,
    read_users,
    users_of_password,
)
from vfsd.web.web_context import WebContext


@dataclass(frozen=True, slots=True)
class Credentials:
    """How users prove who they are: a file of tokens, a password, or a token of the server."""

    token_file: Path | None = None
    password: str | None = None

    @property
    def are_given(self) -> bool:
        return self.token_file is not None or self.password is not None


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server can be reached."""

    url: str  #: without a token
    login_url: str | None  #: with the token of the only user, if it is not a password
    token_file: Path | None


def serve_store(
    store: Store,
    options: ServeOptions,
    credentials: Credentials,
    on_ready: Callable[[ServerAddress], None],
) -> None:
    """Serve a store until SIGINT or SIGTERM.

    `on_ready` is called when requests are answered.  Raises `UsageError` for an address that
    others could reach without credentials and TLS, or that cannot be had, and for a token file
    that cannot be used.
    """
    options.require_safe(has_credentials=credentials.are_given)
    with ExitStack() as stack:
        state = state_directory() / "web"
        name = store.parts.directory.id
        token_file = credentials.token_file
        if credentials.password is not None:
            users = users_of_password(credentials.password)
        else:
            if token_file is None:
                token_file = state / f"{name}.token"
                make_token_file(token_file)
            users = read_users(token_file)
        sessions = Sessions(read_secret(state / f"{name}.key"), users, state / f"{name}.ended")
        sockets = bind(options)
        for one in sockets:
            stack.callback(one.close)
        options = replace(options, port=sockets[0].getsockname()[1])
        views = stack.enter_context(closing(Views(store.parts, store.tools)))
        stack.enter_context(closing(MallocTrimmer(views.evict_idle)))
        audit = stack.enter_context(closing(AuditLog(state / f"{name}.audit")))
        web = WebContext(store, views, options, users, sessions, audit)
        stack.enter_context(closing(web))
        shown = None if credentials.password is not None else token_file
        address = _address(options, users, shown)
        WebServer(create_app(web), web, sockets, lambda: on_ready(address)).run()


def _address(options: ServeOptions, users: Users, token_file: Path | None) -> ServerAddress:
    scheme = "http" if options.certificate is None else "https"
    host = f"[{options.host}]" if ":" in options.host else options.host
    url = f"{scheme}://{host}:{options.port}/"
    owner = users.named(OWNER)
    login = None if owner is None or token_file is None else f"{url}#token={owner.token}"
    return ServerAddress(url, login, token_file)
