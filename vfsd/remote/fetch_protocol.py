"""Settings of the fetch process, and the messages between it and `vfsd.remote.fetch_client`.

A message is a frame: two lengths (u32 and u64, little-endian), a head in MessagePack, and bytes of
objects. A client sends one request at a time on a connection, and waits for its answer. `Prefetch`
has no answer. A frame without a head means that the process works on the answer.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from vfsd import errors
from vfsd.errors import NotFoundError, StoreError, UsageError, VfsdError
from vfsd.validation import not_one_of

VERSION = 2
"""Version of the messages and the cache files. A process with another version is replaced."""

FRAME = struct.Struct("<IQ")
MAX_HEAD_BYTES = 64 << 20

INTO_CACHE, INLINE, PAST_CACHE, NO_CACHE = range(4)
"""Ways of `Get`: the client reads the cache files afterwards; the answer has the bytes; the same,
fetched from the bucket again; the same, and the cache stays as it is."""

SOCKET, LOCK, START_LOCK, LOG = "fetch.sock", "fetch.lock", "fetch.start", "fetch.log"
"""Files of the fetch process in the cache directory."""

_PLACE = re.compile(r"o/([0-9a-f]{2})/\1[0-9a-f]{62}-[0-9a-f]{16}(\.sums)?")
_SCHEMES = ("s3", "gs", "az", "file")
_OPTIONS = ("endpoint", "region", "path_style", "profile", "checksum")
_SECRET = re.compile("secret|password|token|access_key|credential", re.IGNORECASE)


def is_place(name: str) -> bool:
    """Return whether a name is that of an object: ``o/ab/abcd…-0123…``."""
    return _PLACE.fullmatch(name) is not None


class FetchSettings(Struct, frozen=True):
    """Parameters of the fetch process of one home."""

    cache: str  #: directory
    url: str  #: of the bucket and the prefix, such as ``s3://bucket/prefix``
    options: dict[str, str | bool] = {}
    """Of the server: endpoint, region, path_style, profile, checksum. Never a secret."""
    cache_bytes: int = 0  #: 0: a tenth of the disk, at least 1 GiB
    seconds: float = 20.0  #: limit for a request, with all its retries
    idle_seconds: float = 60.0  #: the process ends this long after its last client

    @property
    def digest(self) -> str:
        """A value that differs for other settings."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


def fetch_settings(
    cache: str | os.PathLike[str],
    url: str,
    options: Mapping[str, str | bool] | None = None,
    *,
    cache_bytes: int = 0,
    seconds: float = 20.0,
) -> FetchSettings:
    """Check and return settings. Raises `UsageError`.

    Args:
        cache: The directory for cache files, sockets and locks of one home.
        url: The bucket and the prefix.
        options: See `FetchSettings.options`.
        cache_bytes: Disk space for cached objects; 0 for a tenth of the disk, at least 1 GiB.
        seconds: The limit for a request, with all its retries.
    """
    require_bucket(url, options or {})
    where = os.path.abspath(os.fspath(cache))
    return FetchSettings(where, url, dict(options or {}), int(cache_bytes), float(seconds))


def require_bucket(url: str, options: Mapping[str, str | bool]) -> None:
    """Raise `UsageError` for a URL or options that cannot be those of a bucket."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not (parts.netloc or parts.scheme == "file"):
        raise UsageError(
            f"the URL of the objects must be such as s3://bucket/prefix, got {url!r}",
        )
    if "@" in parts.netloc or parts.query:
        raise UsageError(
            "the URL of the objects must not have a user, a password or a query",
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile",
        )
    for name in options:
        if _SECRET.search(name):
            raise UsageError(
                f"the option {name!r} must not be stored with the store",
                hint="set it in the environment, or use a profile",
            )
        if name not in _OPTIONS:
            raise not_one_of("an option of the objects", name, _OPTIONS)


# -- messages


class Hello(Struct, frozen=True, array_like=True, tag="hello"):
    """The first message of a connection."""

    version: int
    digest: str  #: of the settings


class Get(Struct, frozen=True, array_like=True, tag="get"):
    """Fetch half-open byte ranges of an object."""

    place: str
    size: int  #: of the object, in bytes
    ranges: list[tuple[int, int]]
    way: int = INTO_CACHE
    seconds: float = 0.0  #: limit for the answer; 0: as long as the bucket sends something
    hits: int = 0  #: reads that the client served from the cache since its last `Get`
    hit_bytes: int = 0


class Prefetch(Struct, frozen=True, array_like=True, tag="prefetch"):
    """Start to fetch ranges into the cache."""

    place: str
    size: int
    ranges: list[tuple[int, int]]


class Head(Struct, frozen=True, array_like=True, tag="head"):
    """Ask for the size of a file of the bucket; the answer is None if it is missing."""

    name: str


class Read(Struct, frozen=True, array_like=True, tag="read"):
    """Return a small file of the bucket, past the cache."""

    name: str


class Put(Struct, frozen=True, array_like=True, tag="put"):
    """Upload a local file under a name that was not used before."""

    name: str
    path: str
    keep: bool = False  #: its bytes in the cache, for the reads that follow


class Delete(Struct, frozen=True, array_like=True, tag="delete"):
    """Delete files of the bucket, and their cached bytes; ignore missing ones."""

    names: list[str]


class List(Struct, frozen=True, array_like=True, tag="list"):
    """List up to a thousand names after another name, with sizes and ages in seconds."""

    after: str = ""


class Stat(Struct, frozen=True, array_like=True, tag="stat"):
    """Ask for a `FetchStatus`."""


Request = Hello | Get | Prefetch | Head | Read | Put | Delete | List | Stat


class FetchCost(Struct, frozen=True):
    """Costs of fetching from a bucket, as measured."""

    wait: float = 0.025  #: seconds until the first byte of a GET
    byte: float = 1 / 80e6  #: seconds for a byte on one stream
    streams: int = 16  #: GETs in flight that the bucket serves well
    request_cpu: float = 0.7e-3  #: CPU seconds of a GET
    byte_cpu: float = 0.6e-9  #: CPU seconds to receive, compare and copy a byte


class FetchStatus(Struct, frozen=True):
    """State of a fetch process, and counts since its start."""

    pid: int
    uptime: float  #: seconds
    clients: int
    cost: FetchCost
    gets: int  #: GET requests, including retries
    got_bytes: int
    retries: int
    puts: int
    put_bytes: int
    hits: int  #: reads that needed no request
    hit_bytes: int
    shared: int  #: reads that waited for a GET of another client
    refetched: int  #: reads past the cache
    stream_limit: float  #: GETs that may be in flight now
    cache_objects: int
    cache_used: int  #: bytes
    cache_limit: int  #: bytes
    evicted_bytes: int
    inline: bool  #: it runs in the process of its only client
    failure: str | None = None  #: the last error of the bucket


class Answer(Struct, frozen=True, array_like=True):
    """The answer to a request; the lengths add up to the bytes after it."""

    lengths: list[int] | None = None  #: of the ranges; None if they are in the cache
    value: Any = None
    error: Failure | None = None


class Failure(Struct, frozen=True, array_like=True):
    """An error of `vfsd.errors`, or an `OSError`."""

    name: str
    message: str
    hint: str | None = None
    number: int = 0

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        if isinstance(error, VfsdError):
            return cls(type(error).__name__, str(error), error.hint)
        if isinstance(error, OSError):
            return cls("OSError", error.strerror or str(error), None, error.errno or errno.EIO)
        return cls("StoreError", f"the fetch process failed: {type(error).__name__}: {error}")

    def throw(self) -> NoReturn:
        """Raise the error."""
        if self.name == "OSError":
            raise OSError(self.number, self.message)
        kind = getattr(errors, self.name, StoreError)
        if not (isinstance(kind, type) and issubclass(kind, VfsdError)):
            kind = StoreError
        raise kind(self.message, hint=self.hint)


BEAT = FRAME.pack(0, 0)
"""Sent while a client waits."""

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers = msgspec.msgpack.Decoder(Answer)


def frame(message: Request | Answer, data_bytes: int = 0) -> bytes:
    """Return a message as a frame, without the `data_bytes` that follow."""
    head = _encoder.encode(message)
    return FRAME.pack(len(head), data_bytes) + head


def parse_request(head: bytes) -> Request:
    """Raises `msgspec.MsgspecError` for an invalid request."""
    return _requests.decode(head)


def parse_answer(head: bytes) -> Answer:
    """Raises `msgspec.MsgspecError` for an invalid answer."""
    return _answers.decode(head)


def require_name(name: str) -> str:
    """Return a name of the bucket that may be written or deleted. Raises `NotFoundError`."""
    if is_place(name) or re.fullmatch(r"[\w.-]+", name, re.ASCII):
        return name
    raise NotFoundError(f"the bucket must not have the name {name!r}")


def socket_path(cache: Path) -> Path:
    """Return the path of the socket of the fetch process."""
    return cache / SOCKET
