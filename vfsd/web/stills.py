"""Exact frames as pictures: ``NAME@/frames/N.jpg?w=&box=&q=&psnr=`` and ``NAME@/at/SECONDS.jpg``.

Without a query, ``frames/N.jpg`` is the file of the mount.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from typing import TYPE_CHECKING

import cv2
from starlette.requests import Request
from starlette.responses import Response

from vfsd.api.store_files import FoundFile
from vfsd.api.video import Video
from vfsd.core.timebase import seconds
from vfsd.tiling import Rect
from vfsd.web.byte_ranges import is_unchanged
from vfsd.web.http_errors import HttpError

if TYPE_CHECKING:
    from vfsd.web.web_context import WebContext

KEYS = ("w", "box", "q", "psnr")
_FRAME = re.compile(r"frames/([0-9]{1,12})\.(jpg|png)")
_TIME = re.compile(r"at/([0-9:.]{1,40})\.(jpg|png)")
_QUALITY = 85
_MAX_QUALITY = 100
_CACHE_BYTES = 32 << 20
_KINDS = {"jpg": "image/jpeg", "png": "image/png"}


@dataclass(frozen=True, slots=True)
class StillRequest:
    """A frame of a video, whole or a region of it, and the form of its picture."""

    frame: int | None  #: None: the one on the screen at `time`
    time: Fraction
    suffix: str
    width: int | None  #: of the picture, at most that of the region; None: as it is
    region: Rect | None
    quality: int
    psnr: float | None

    @classmethod
    def parse(cls, view: str, query: Mapping[str, str]) -> StillRequest | None:
        """Return the request of a path below ``NAME@/``; None for a path of another kind."""
        numbered, timed = _FRAME.fullmatch(view), _TIME.fullmatch(view)
        match = timed or (numbered if any(key in query for key in KEYS) else None)
        if match is None:
            return None
        return cls(
            None if timed else int(match[1]),
            seconds(match[1]) if timed else Fraction(0),
            match[2],
            _whole(query, "w", 16, 1 << 16),
            Rect.parse(query["box"]) if "box" in query else None,
            _whole(query, "q", 1, _MAX_QUALITY) or _QUALITY,
            _psnr(query.get("psnr")),
        )

    def picture(self, video: Video) -> bytes:
        """Decode the frame and return the file."""
        number = video.index_at(self.time) if self.frame is None else self.frame
        area = self.region or Rect.of_size(video.width, video.height)
        size = None if self.width is None or self.width >= area.width else (self.width, 0)
        found = video.frames([number], region=self.region, size=size, psnr=self.psnr)
        options = [cv2.IMWRITE_JPEG_QUALITY, self.quality] if self.suffix == "jpg" else []
        data: bytes = cv2.imencode(f".{self.suffix}", found.data[0][..., ::-1], options)[
            1
        ].tobytes()
        return data


class StillCache:
    """The last pictures, by video and request.  Thread-safe."""

    def __init__(self, most_bytes: int = _CACHE_BYTES) -> None:
        self._most = most_bytes
        self._guard = threading.Lock()
        self._held: OrderedDict[tuple[str, StillRequest], bytes] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[str, StillRequest]) -> bytes | None:
        with self._guard:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def put(self, key: tuple[str, StillRequest], data: bytes) -> None:
        with self._guard:
            self._bytes += len(data) - len(self._held.pop(key, b""))
            self._held[key] = data
            while self._bytes > self._most:
                self._bytes -= len(self._held.popitem(last=False)[1])


async def still_response(
    web: WebContext, found: FoundFile, wanted: StillRequest, request: Request
) -> Response:
    """Return the picture; its number is in the header ``X-Frame-Number``."""
    video = await web.run(lambda: _video(web, found))
    if wanted.frame is None:
        number = await web.run(lambda: video.index_at(wanted.time))
    else:
        number = wanted.frame
    key = (video.info.digest, wanted)
    data = web.stills.get(key)
    if data is None:
        with web.working_clients.counted(request.state.client):
            async with web.work.turn():
                data = await web.read(lambda: _decoded(web, video, wanted))
        web.stills.put(key, data)
    tag = blake2b(data, digest_size=16).hexdigest()
    is_named = request.query_params.get("v") == video.info.digest
    if "v" in request.query_params and not is_named:
        raise HttpError(412, "the video has changed since this URL was made")
    headers = {
        "Cache-Control": f"private, {'max-age=31536000, immutable' if is_named else 'no-cache'}",
        "ETag": f'"{tag}"',
        "X-Frame-Number": str(number),
    }
    if is_unchanged(request.headers, f'"{tag}"', 0) and "if-none-match" in request.headers:
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=_KINDS[wanted.suffix])


def _decoded(web: WebContext, video: Video, wanted: StillRequest) -> bytes:
    with web.foreground.waiting():
        return wanted.picture(video)


def _video(web: WebContext, found: FoundFile) -> Video:
    with web.store.catalog.reading() as seen:
        info = seen.videos.by_inode(found.node.ino)
    return web.store.open_video(info)


def _whole(query: Mapping[str, str], key: str, least: int, most: int) -> int | None:
    text = query.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 9 and least <= int(text) <= most):
        raise HttpError(400, f"{key} must be a whole number from {least} to {most}")
    return int(text)


def _psnr(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not found >= 0:
        raise HttpError(400, "psnr must be a number of dB, or inf")
    return found
