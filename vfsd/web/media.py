"""The routes below ``/v``: originals, plain files and views, by the paths of a mount."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from vfsd.api.store_files import ByteReader, FoundFile
from vfsd.core.model import FileState, LogicalVideo
from vfsd.core.view_request import ViewFile
from vfsd.errors import NotFoundError
from vfsd.web.byte_ranges import disposition, is_unchanged, matches, view_tag
from vfsd.web.endpoint import json_response
from vfsd.web.http_errors import HttpError
from vfsd.web.range_response import FileHead, RangeResponse
from vfsd.web.stills import StillRequest, still_response
from vfsd.web.users import User
from vfsd.web.view_limits import is_still, other_form, require_view_within_limits
from vfsd.web.web_context import WebContext

_TYPES = {
    ".avi": "video/x-msvideo",
    ".flv": "video/x-flv",
    ".jpg": "image/jpeg",
    ".json": "application/json",
    ".m4v": "video/mp4",
    ".mkv": "video/x-matroska",
    ".mov": "video/quicktime",
    ".mp4": "video/mp4",
    ".mpg": "video/mpeg",
    ".mpeg": "video/mpeg",
    ".mts": "video/mp2t",
    ".mxf": "application/mxf",
    ".ogv": "video/ogg",
    ".png": "image/png",
    ".ts": "video/mp2t",
    ".txt": "text/plain; charset=utf-8",
    ".wav": "audio/wav",
    ".webm": "video/webm",
}
_OTHER = "application/octet-stream"
# Files of users must never run as a page of this origin.
_SANDBOX = "default-src 'none'; media-src 'self'; style-src 'unsafe-inline'; sandbox"


@dataclass(frozen=True, slots=True)
class _Opened:
    head: FileHead
    file: ByteReader


async def get_media(request: Request) -> ASGIApp:
    """Answer GET and HEAD of a file or a view."""
    web: WebContext = request.state.web
    user: User = request.state.user
    path = str(request.path_params["path"])
    if not user.may_see(path.partition("@/")[0].rstrip("/")):
        raise NotFoundError(f"no such file: {path!r}")
    found = await web.read(lambda: web.files.find(path))
    if not user.may_see(found.name):  # a real directory may have the name cam1@
        raise NotFoundError(f"no such file: {path!r}")
    if found.view is None and "can" in request.query_params:
        playable = await web.run(lambda: other_form(web, found, request.query_params))
        if playable is not None:
            raw: bytes = request.scope["raw_path"]
            url = raw.decode("ascii") + playable
            return Response(status_code=302, headers={"Cache-Control": "no-store", "Location": url})
    if found.view is not None:
        still = None
        if not found.node.is_dir:
            still = StillRequest.parse(found.view, request.query_params)
        if still is not None:
            return await still_response(web, found, still, request)
        await web.run(lambda: require_view_within_limits(web, found))
    # Each call into a thread waits for the interpreter's lock, so videos make few of them.
    is_folder = found.node.is_dir
    if found.view is not None:
        is_folder = await web.read(lambda: web.files.is_folder(found))
    if is_folder:
        return await _listing(web, found, request)
    is_attached = request.query_params.get("download") == "1"
    if is_attached and request.method == "GET":
        web.audit.note(user, request.state.client, "download", path)
    if found.view is None or not is_still(found.view):
        opened = await web.read(lambda: _open(web, found, path, is_attached))
    else:  # its size is unknown until it is encoded
        with web.working_clients.counted(request.state.client):
            async with web.work.turn():
                opened = await web.read(lambda: _open(web, found, path, is_attached))
    try:
        await web.read(lambda: _require_expected(web, found, opened.file.size, request))
    except HttpError:
        opened.file.close()
        raise
    return _response(web, opened, request)


def _require_expected(web: WebContext, found: FoundFile, size: int, request: Request) -> None:
    """Raises `HttpError` for a URL of a playlist that was made for other bytes."""
    query = request.query_params
    if found.view is None or found.node.is_dir or "digest" not in query:
        return
    with web.store.catalog.reading() as seen:
        digest = seen.videos.by_inode(found.node.ino).digest
    if not digest.startswith(query["digest"]) or query.get("size", str(size)) != str(size):
        raise HttpError(412, "the video has changed since this URL was made")


def _response(web: WebContext, opened: _Opened, request: Request) -> ASGIApp:
    """Take over `opened`, and return its response to the preconditions of a request."""
    head, wanted = opened.head, request.query_params.get("v")
    is_named = wanted is not None and f'"{wanted}"' == head.tag
    required = request.headers.get("if-match")
    try:
        if wanted is not None and not is_named:
            raise HttpError(412, "the file has changed since this URL was made")
        if required is not None and not matches(required, head.tag, weakly=False):
            raise HttpError(412, "the file has changed")
    except HttpError:
        opened.file.close()
        raise
    # With the entity tag in its URL, the response never changes.
    age = "max-age=31536000, immutable" if is_named else "no-cache"
    headers = {**head.headers(), "Cache-Control": f"private, {age}"}
    if is_unchanged(request.headers, head.tag, head.modified):
        opened.file.close()
        return Response(status_code=304, headers=headers)
    return RangeResponse(web, opened.file, head, headers, request.state.client)


def _open(web: WebContext, found: FoundFile, path: str, is_attached: bool) -> _Opened:
    if found.view is None and found.node.state is FileState.VIDEO:
        # Tag and bytes are those of one record, whatever happens to the name.
        video = _video_of(web, found)
        bytes_of = web.store.parts.originals.file_of(video.original)
        return _Opened(_video_head(video, found, is_attached), bytes_of.open())
    for _ in range(2):
        head = file_head(web, found, is_attached)
        file = web.files.open_found(found, path)
        try:
            if found.view is not None:
                assert isinstance(file, ViewFile)
                head.tag = f'"{view_tag(file.version, file.size)}"'
                return _Opened(head, file)
            # The bytes are those of the tag unless the name was given others in between.
            again = web.files.find(path)
            if again.view is None and file_head(web, again, is_attached).tag == head.tag:
                return _Opened(head, file)
            found = again
        except BaseException:
            file.close()
            raise
        file.close()
    raise HttpError(503, f"{path!r} is being written", headers={"Retry-After": "1"})


def file_head(web: WebContext, found: FoundFile, is_attached: bool) -> FileHead:
    """Return the header of a file; that of a view still lacks its entity tag."""
    node = found.node
    base = os.path.basename(found.name)
    if found.view is not None:
        inner = found.view.replace("/", "-")
        kind = _TYPES.get(os.path.splitext(inner)[1].lower(), _OTHER)
        modified = node.mtime_ns
        if node.is_dir:  # the newest of its videos counts
            modified = web.files.tree_of(found).stat(node.ino, found.view).mtime_ns
            inner = inner.replace(":", "-")  # not allowed in names of files everywhere
        name = f"{os.path.splitext(base)[0]} {inner}"
        return FileHead("", modified // 10**9, kind, _named(kind, name, is_attached), _SANDBOX)
    if node.state is FileState.VIDEO:
        return _video_head(_video_of(web, found), found, is_attached)
    if node.object_key is not None:
        tag, modified = f'"{node.object_key}"', node.mtime_ns
    elif node.state is FileState.STORED:
        tag, modified = f'"{node.ino}-{node.mtime_ns}-{node.size}"', node.mtime_ns
    else:
        modified = node.mtime_ns
        with suppress(OSError):
            modified = web.store.parts.private_file(node).stat().st_mtime_ns
        tag = f'W/"{node.ino}-{modified}"'  # a mount may write it while it is read
    return FileHead(tag, modified // 10**9, _OTHER, _named(_OTHER, base, True), _SANDBOX)


def _video_of(web: WebContext, found: FoundFile) -> LogicalVideo:
    with web.store.catalog.reading() as seen:
        return seen.videos.by_inode(found.node.ino)


def _video_head(video: LogicalVideo, found: FoundFile, is_attached: bool) -> FileHead:
    base = os.path.basename(found.name)
    kind = _TYPES.get(os.path.splitext(base)[1].lower(), _OTHER)
    kind = kind if kind.startswith("video/") else _OTHER
    is_growing = video.original.is_growing
    tag = f'W/"{video.id}-{video.modified_ns}"' if is_growing else f'"{video.digest}"'
    named = _named(kind, base, is_attached)
    return FileHead(tag, video.modified_ns // 10**9, kind, named, _SANDBOX)


def _named(kind: str, name: str, is_attached: bool) -> str:
    return disposition("attachment" if is_attached or kind == _OTHER else "inline", name)


async def _listing(web: WebContext, found: FoundFile, request: Request) -> Response:
    """The files that have fixed names below ``NAME@/``."""
    if found.view is None:
        raise NotFoundError(
            f"{found.name!r} is a directory", hint="GET /api/1/videos?dir= lists its videos"
        )
    view = found.view
    entries = await web.read(lambda: web.files.tree_of(found).list(found.node.ino, view))
    items = [{"name": name, "directory": is_dir} for name, is_dir in entries]
    return json_response(request, {"items": items, "next": None})
