"""The page: its files are in memory, so no path of a request ever reaches the file system."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vfsd.web.byte_ranges import is_unchanged
from vfsd.web.http_errors import HttpError

_DIRECTORY = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
_LEAST_COMPRESSED = 1024


@dataclass(frozen=True, slots=True)
class _StaticFile:
    data: bytes
    packed: bytes | None  #: by gzip; None where that saves nothing
    kind: str
    tag: str

    @classmethod
    def read(cls, path: Path) -> _StaticFile:
        data = path.read_bytes()
        packed = gzip.compress(data, mtime=0) if len(data) >= _LEAST_COMPRESSED else data
        return cls(
            data,
            packed if len(packed) < len(data) else None,
            _TYPES[path.suffix],
            f'"{blake2b(data, digest_size=16).hexdigest()}"',
        )

    def response(self, request: Request) -> Response:
        headers = {"Cache-Control": "no-cache", "ETag": self.tag, "Vary": "Accept-Encoding"}
        if is_unchanged(request.headers, self.tag, 0) and "if-none-match" in request.headers:
            return Response(status_code=304, headers=headers)
        data = self.data
        if self.packed is not None and _takes_gzip(request.headers.get("accept-encoding", "")):
            data = self.packed
            headers["Content-Encoding"] = "gzip"
        headers["Content-Type"] = self.kind
        return Response(data, headers=headers)


def _takes_gzip(header: str) -> bool:
    parts = (part.replace(" ", "").lower().partition(";q=") for part in header.split(","))
    return any(name == "gzip" and quality not in ("0", "0.0") for name, _, quality in parts)


def static_routes(directory: Path = _DIRECTORY) -> list[Route]:
    """Return the routes of the files in a directory; index.html is ``/`` as well."""
    files = {
        path.name: _StaticFile.read(path)
        for path in sorted(directory.iterdir())
        if path.is_file() and path.suffix in _TYPES
    }

    async def page(request: Request) -> Response:
        return files["index.html"].response(request)

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        if found is None:
            raise HttpError(404, "there is no such file")
        return found.response(request)

    async def icon(request: Request) -> Response:
        found = files.get("favicon.ico")
        return Response(status_code=204) if found is None else found.response(request)

    return [
        Route("/", page, methods=["GET"]),
        Route("/favicon.ico", icon, methods=["GET"]),
        Route("/static/{name}", file, methods=["GET"]),
    ]
