"""``PUT /v/NAME`` uploads a file, ``DELETE /v/NAME`` removes one.

A file gets its name once all of its bytes are on disk.  A connection that breaks
leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import shutil
import unicodedata
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from vfsd.core.model import FileState
from vfsd.disk.tempfiles import NewFile
from vfsd.errors import ExistsError, NotFoundError, UsageError
from vfsd.web.byte_ranges import matches
from vfsd.web.http_errors import HttpError
from vfsd.web.media import file_head
from vfsd.web.users import User, UserRole
from vfsd.web.web_context import WebContext
from vfsd.write.tree_edits import put_file

# Free space that uploads leave to the store.
_RESERVE_BYTES = 256 << 20
_BATCH_BYTES = 1 << 20
_LEAST_BYTES_PER_SECOND = 1024
_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")


async def put_media(request: Request) -> Response:
    """Upload a file; 201 for a new one, 200 for one that replaces another."""
    web, user, name = _authorized(request)
    _require_visible(name)
    tag = await web.run(lambda: _tag(web, name))
    is_replacing = _may_replace(request, tag)
    if tag is not None and not is_replacing:
        raise ExistsError(
            f"{name!r} exists", hint="send If-Match with its ETag, or ?replace=1, to replace it"
        )
    _require_room(web, request)
    new = await web.run(web.store.parts.objects.new_file)
    try:
        await _receive(web, request, new)
        node = await web.run(lambda: put_file(web.store.parts, new, name, replace=is_replacing))
    finally:
        try:
            await asyncio.shield(web.run(new.remove))
        except RuntimeError:  # the threads have ended, and with them the server
            new.remove()
    action = "upload" if tag is None else "replace"
    web.audit.note(user, request.state.client, action, name, bytes=node.size)
    is_video = node.state is FileState.VIDEO
    record = {
        "name": name,
        "kind": "video" if is_video else "file",
        "reason": None if is_video else node.reason,
        "etag": await web.run(lambda: _tag(web, name)),
    }
    return JSONResponse(record, 201 if tag is None else 200, {"Cache-Control": "no-store"})


async def delete_media(request: Request) -> Response:
    """Remove a file or an empty directory."""
    web, user, name = _authorized(request)
    if "if-match" in request.headers:
        tag = await web.run(lambda: _tag(web, name))
        if tag is None or not matches(request.headers["if-match"], tag, weakly=False):
            raise HttpError(412, "the file has changed")
    files = await web.run(lambda: web.store.remove(name))
    web.audit.note(user, request.state.client, "remove", name)
    return JSONResponse({"path": name, "files": files}, headers={"Cache-Control": "no-store"})


def _authorized(request: Request) -> tuple[WebContext, User, str]:
    web: WebContext = request.state.web
    user: User = request.state.user
    name = str(request.path_params["path"])
    web.require_change(user, UserRole.ADMIN)
    if not user.may_see(name):
        raise HttpError(403, "this user may see some directories only")
    return web, user, name


def _require_visible(name: str) -> None:
    """Raises `UsageError` for a name that a page could not show as it is."""
    if any(unicodedata.category(letter) in _INVISIBLE for letter in name):
        raise UsageError(
            f"the name of an upload must not contain invisible characters, got {name!r}"
        )


def _tag(web: WebContext, name: str) -> str | None:
    """Return the entity tag of a file; None where there is none."""
    try:
        found = web.files.find(name)
    except NotFoundError:
        return None
    if found.view is not None:
        raise HttpError(403, f"{name!r} is a view", hint="write views through a mount")
    if found.node.is_dir:
        raise HttpError(409, f"{name!r} is a directory")
    return file_head(web, found, is_attached=False).tag


def _may_replace(request: Request, tag: str | None) -> bool:
    wanted = request.headers.get("if-match")
    if wanted is not None:
        if tag is None or not matches(wanted, tag, weakly=True):
            raise HttpError(412, "the file has changed")
        return True
    if request.headers.get("if-none-match", "").strip() == "*" and tag is not None:
        raise HttpError(412, "the file exists")
    return request.query_params.get("replace") == "1"


def _require_room(web: WebContext, request: Request) -> None:
    length = request.headers.get("content-length", "0")
    size = int(length) if length.isdigit() and len(length) < 20 else 0
    free = shutil.disk_usage(web.store.parts.directory.top).free - _RESERVE_BYTES
    if size > max(0, free):
        raise HttpError(507, f"the upload has {size} bytes, and {max(0, free)} are free")


async def _receive(web: WebContext, request: Request, new: NewFile) -> None:
    """Write the body of a request to a new file.  Raises `HttpError` for one that stalls."""
    batch = bytearray()
    async for part in _parts(request, web.options.limits.idle_seconds):
        batch += part
        if len(batch) >= _BATCH_BYTES:
            data, batch = batch, bytearray()
            await web.read(lambda data=data: _write(new, data))  # type: ignore[misc]
            _require_room_left(web)
    await web.read(lambda: _write(new, batch))


def _require_room_left(web: WebContext) -> None:
    if shutil.disk_usage(web.store.parts.directory.top).free < _RESERVE_BYTES:
        raise HttpError(507, "the disk of the store is nearly full")


def _write(new: NewFile, data: bytearray) -> None:
    left = memoryview(data)
    while left:
        left = left[new.file.write(left) :]


async def _parts(request: Request, idle: float) -> AsyncIterator[bytes]:
    """Yield the body; each `idle` seconds must bring at least a kilobyte for each of them."""
    clock = asyncio.get_running_loop().time
    began, received = clock(), 0
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(idle):
                part = await anext(stream, None)
        except TimeoutError:
            raise HttpError(408, f"no bytes arrived for {idle:.0f} s") from None
        except ClientDisconnect:
            raise HttpError(400, "the connection was closed") from None
        if part is None:
            return
        received += len(part)
        if received < (clock() - began - idle) * _LEAST_BYTES_PER_SECOND:
            raise HttpError(408, "the upload is too slow")
        yield part
