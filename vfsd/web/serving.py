"""`serve_store`: a store as a web server, from its options to the last request."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from vfsd.api.store import Store
from vfsd.core.process_control import MallocTrimmer
from vfsd.disk.store_config import state_directory
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import ReadOnlyError
from vfsd.mount.render_client import quarantine_crashed, render_process, render_starter
from vfsd.mount.tune_scheduler import BackgroundTuner
from vfsd.storage.context import StoreContext
from vfsd.views import Views
from vfsd.web.app import create_app
from vfsd.web.audit_log import AuditLog
from vfsd.web.background_age import BackgroundAge
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

_log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0005  # threads that read must not keep the event loop waiting for 5 ms


@dataclass(frozen=True, slots=True)
class Credentials:
    """How users authenticate: a file of tokens, a password, or a token of the server."""

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
    root: Path,
    options: ServeOptions,
    credentials: Credentials,
    on_ready: Callable[[ServerAddress], None],
) -> None:
    """Serve the store in `root` until SIGINT or SIGTERM.

    Call it while this process has one thread.  `on_ready` is called when requests are answered.

    Raises `UsageError` for an address that others could reach without credentials and TLS, or that
    is not available, and for a token file that cannot be used; `ReadOnlyError` for changes of a
    store that cannot be written, and the errors of `Store.open`.
    """
    options.require_safe(has_credentials=credentials.are_given)
    read_only = not os.access(root, os.W_OK)
    if read_only and (options.write or options.age or options.tune):
        raise ReadOnlyError(f"{root} cannot be written", hint="check its owner and permissions")
    with ExitStack() as stack:
        directory = stack.enter_context(closing(StoreDirectory.open_held(root)))
        state = state_directory() / "web"
        users, token_file = _users(credentials, state / f"{directory.id}.token")
        key = read_secret(state / f"{directory.id}.key")
        sessions = Sessions(key, users, state / f"{directory.id}.ended")
        audit = stack.enter_context(closing(AuditLog(state / f"{directory.id}.audit")))
        sockets = bind(options)
        for one in sockets:
            stack.callback(one.close)
        options = replace(options, port=sockets[0].getsockname()[1])
        note = state / f"{directory.id}-{options.port}.rendering"
        # Must come before any thread is started:
        starter = stack.enter_context(render_starter(directory, read_only=read_only, note=note))
        store = stack.enter_context(Store(StoreContext.of(directory, read_only=read_only)))
        quarantine_crashed(store, note)
        renders = stack.enter_context(
            render_process(starter, store, note=note, are_files_read=lambda: False)
        )
        views = stack.enter_context(closing(Views(store.parts, store.tools, remote=renders)))
        stack.enter_context(closing(MallocTrimmer(views.evict_idle)))
        web = WebContext(store, views, options, users, sessions, audit)
        stack.enter_context(closing(web))
        for work in _background_work(web):
            stack.enter_context(closing(work))
        address = _address(options, users, token_file)
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(_SWITCH_SECONDS)
        WebServer(create_app(web), web, sockets, lambda: on_ready(address)).run()


def _users(credentials: Credentials, own: Path) -> tuple[Users, Path | None]:
    """Return the users and the file of their tokens; `own` is that of a token of the server."""
    if credentials.password is not None:
        return users_of_password(credentials.password), None
    path = credentials.token_file
    if path is None:
        path = own
        make_token_file(path)
    return read_users(path), path


def _background_work(web: WebContext) -> Iterator[BackgroundAge | BackgroundTuner]:
    """Start the requested work for idle time."""
    if web.options.age:
        yield BackgroundAge(web.store, web.foreground)
    if web.options.tune:
        if "place" in (web.store.parts.directory.mounted_by() or {}):
            _log.info("the mount of the store makes tiles; the server leaves that to it")
            return
        tuner = BackgroundTuner(web.store, web.foreground)
        tuner.start()
        yield tuner


def _address(options: ServeOptions, users: Users, token_file: Path | None) -> ServerAddress:
    scheme = "http" if options.certificate is None else "https"
    host = f"[{options.host}]" if ":" in options.host else options.host
    url = f"{scheme}://{host}:{options.port}/"
    owner = users.named(OWNER)
    login = None if owner is None or token_file is None else f"{url}#token={owner.token}"
    return ServerAddress(url, login, token_file)
