"""Requests to a bucket, by obstore: time limits, retries, a limit of streams, measured costs.

Only the fetch process uses this module: after a fork, the threads of obstore's runtime are missing
in the child, and each of its calls would wait forever.
"""

from __future__ import annotations

import asyncio
import configparser
import errno
import logging
import math
import os
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from vfsd.errors import IntegrityError, StoreError, UnreachableError
from vfsd.remote.fetch_protocol import FetchCost, FetchSettings

MOST_STREAMS = 64
PART_BYTES = 8 << 20
"""Larger GETs are cut, and larger files are uploaded in parts."""

_LEAST_GET = 1 << 18
# Of bodies that are being received.
_MOST_BYTES = 128 << 20
# S3 allows 10,000 parts.
_MOST_PARTS = 9000
_MOST_DELETED = 1000
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_CONNECT_SECONDS = "3s"
# How often a waiting request looks whether the bucket answers others.
_LOOK_SECONDS = 0.25
# The limit of an upload grows with its size at this rate.
_SLOWEST_UPLOAD = 250_000
_SMALL_FILE = 1 << 20
_BUSY = ("429", "503")
_MAX_TEXT = 300

_log = logging.getLogger(__name__)
T = TypeVar("T")


class StreamLimiter:
    """Limits requests in flight: half after the server was too busy, one more each second."""

    def __init__(self, most: int = MOST_STREAMS) -> None:
        self._most = most
        self._limit = float(most)
        self._grown = self._halved = time.monotonic()
        self._active = 0
        self._bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def limit(self) -> float:
        now = time.monotonic()
        self._limit = min(self._most, self._limit + now - self._grown)
        self._grown = now
        return self._limit

    def start(self, size: int) -> bool:
        """Take a stream for a body of `size` bytes; False if `wait` is needed."""
        if self._waiting or not self._may_start(size):
            return False
        self._active += 1
        self._bytes += size
        return True

    def wait(self, size: int) -> asyncio.Future[None]:
        """Return a future that is done when a stream was taken; a cancelled one takes none."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, size))
        return waiter

    def end(self, size: int) -> None:
        """Give a stream back."""
        self._active -= 1
        self._bytes -= size
        while self._waiting and self._may_start(self._waiting[0][1]):
            waiter, wanted = self._waiting.popleft()
            if not waiter.done():
                self._active += 1
                self._bytes += wanted
                waiter.set_result(None)

    def halve(self) -> None:
        """Halve the limit, at most once a second: requests in flight fail together."""
        now = time.monotonic()
        if now - self._halved > 1:
            self._limit = max(1.0, self.limit / 2)
            self._halved = now

    def _may_start(self, size: int) -> bool:
        if not self._active:
            return True
        return self._active < int(self.limit) and self._bytes + size <= _MOST_BYTES


class CostMeter:
    """Fits ``seconds = wait + byte * bytes`` to the latest GETs, by weighted least squares."""

    _KEEP = 0.98

    def __init__(self) -> None:
        start = FetchCost()
        # Two imaginary GETs with the default costs, which fade out.
        self._sums = [0.0] * 5
        for size in (1 << 15, PART_BYTES):
            self.add(size, start.wait + start.byte * size)

    def add(self, size: int, seconds: float) -> None:
        """Add a GET of `size` bytes that took `seconds`."""
        terms = (1.0, size, size * size, seconds, size * seconds)
        self._sums = [old * self._KEEP + new for old, new in zip(self._sums, terms, strict=True)]

    def cost(self, streams: int) -> FetchCost:
        """Return the costs, with a number of streams."""
        count, x, xx, y, xy = self._sums
        spread = count * xx - x * x
        byte = max(0.0, (count * xy - x * y) / spread) if spread > 0 else 0.0
        wait = (y - byte * x) / count
        if wait < 0:
            wait, byte = 0.0, y / x if x else 0.0
        return FetchCost(wait=wait, byte=byte, streams=max(1, streams))


class Bucket:
    """A bucket and a prefix in it. For one event loop."""

    def __init__(self, settings: FetchSettings) -> None:
        """Raises `UsageError` and `StoreError` for settings that cannot be used."""
        self._url = settings.url
        self._seconds = settings.seconds
        # A silent server is tried twice.
        self._attempt_seconds = settings.seconds / 2
        self._settings = settings
        self._config = _config(settings)
        self._store = _open_store(settings, self._config, self._attempt_seconds)
        self._meter = CostMeter()
        self.limiter = StreamLimiter()
        self._succeeded = 0.0  # time of the last answer
        self._is_refused = False
        self.gets = self.got_bytes = self.retries = self.puts = self.put_bytes = 0
        self.failure: str | None = None

    @property
    def cost(self) -> FetchCost:
        return self._meter.cost(int(self.limiter.limit))

    @property
    def has_wrong_credentials(self) -> bool:
        """Whether the bucket has refused each request so far."""
        return self._is_refused and not self._succeeded

    @property
    def most_at_once(self) -> int:
        """Size of the largest GET that takes a quarter of the time limit, at most `PART_BYTES`."""
        byte = self.cost.byte
        fitting = self._seconds / 4 / byte if byte > 0 else PART_BYTES
        return int(min(PART_BYTES, max(_LEAST_GET, fitting)))

    async def get(self, name: str, start: int, end: int) -> memoryview:
        """Return bytes ``start <= byte < end`` of a file.

        Raises `FileNotFoundError`, `UnreachableError`, and `IntegrityError` if it is shorter.
        """
        import obstore

        async def attempt() -> memoryview:
            self.gets += 1
            began = time.monotonic()
            try:
                got = await obstore.get_range_async(self._store, name, start=start, end=end)
            except BaseException:
                if time.monotonic() - began > self._attempt_seconds * 0.9:
                    self._meter.add(end - start, time.monotonic() - began)
                raise
            data = memoryview(got)
            self._meter.add(len(data), time.monotonic() - began)
            self.got_bytes += len(data)
            if len(data) != end - start:
                raise _ShortError(f"got {len(data)} of {end - start} bytes")
            return data

        return await self._tried(name, attempt, end - start)

    async def head(self, name: str) -> int | None:
        """Return the size of a file; None if it is missing. Raises `UnreachableError`."""
        return await self._tried(name, partial(self._size_of, name))

    async def read(self, name: str) -> bytes:
        """Return the bytes of a small file. Raises as `get`."""
        import obstore

        async def attempt() -> bytes:
            got = await obstore.get_async(self._store, name)
            if got.meta["size"] > _SMALL_FILE:
                raise StoreError(f"{name} of the bucket has {got.meta['size']} bytes, too many")
            return bytes(await got.bytes_async())

        try:
            return await self._tried(name, attempt, _SMALL_FILE)
        except FileNotFoundError:
            raise missing_object(name) from None

    async def put(self, name: str, path: Path) -> int:
        """Upload a file under a name that was not used before; return its size in bytes.

        A file of the same size under that name is taken for an earlier attempt. Raises `OSError`
        for the local file, `UnreachableError`, and `IntegrityError` for a file of another size.
        """
        import obstore

        size = os.stat(path).st_size
        parts = max(PART_BYTES, -(-size // _MOST_PARTS))

        async def attempt() -> None:
            self.puts += 1
            if size <= PART_BYTES:
                data = path.read_bytes()
                await obstore.put_async(self._store, name, data, mode="create", use_multipart=False)
            elif await self._size_of(name) != size:
                # No condition is possible here, but the name was never used.
                await obstore.put_async(
                    self._store, name, path, use_multipart=True, chunk_size=parts, max_concurrency=4
                )
            self.put_bytes += size

        seconds = self._seconds + size / _SLOWEST_UPLOAD
        try:
            await self._tried(name, attempt, min(size, 4 * parts), seconds)
        except FileNotFoundError as error:
            raise StoreError(f"{self._url} does not exist: {_text(error)}") from error
        except obstore.exceptions.AlreadyExistsError:
            pass
        found = await self.head(name)
        if found != size:
            raise IntegrityError(f"{name} has {found} bytes in the bucket, {size} were uploaded")
        return size

    async def delete(self, names: Sequence[str]) -> None:
        """Delete files, and ignore missing ones. Raises `UnreachableError`."""
        import obstore

        for at in range(0, len(names), _MOST_DELETED):
            some = list(names[at : at + _MOST_DELETED])
            try:
                await self._tried(some[0], partial(obstore.delete_async, self._store, some))
            except FileNotFoundError:  # servers other than S3: the first missing one ends the batch
                for name in some:
                    with suppress(FileNotFoundError):
                        await self._tried(name, partial(obstore.delete_async, self._store, name))

    async def list(self, after: str) -> list[tuple[str, int, float]]:
        """Return up to a thousand (name, bytes, age in seconds) behind a name, in order."""
        import obstore

        async def attempt() -> list[tuple[str, int, float]]:
            pages = obstore.list(self._store, offset=after or None, chunk_size=_MOST_DELETED)
            now = datetime.now(UTC)
            found: list[tuple[str, int, float]] = []
            async for page in pages:
                found += [
                    (one["path"], one["size"], (now - one["last_modified"]).total_seconds())
                    for one in page
                ]
                if not self._url.startswith("file://"):  # a directory has no order
                    break
            return sorted(found)[:_MOST_DELETED]

        return await self._tried("", attempt)

    async def _size_of(self, name: str) -> int | None:
        import obstore

        try:
            return int((await obstore.head_async(self._store, name))["size"])
        except FileNotFoundError:
            return None

    async def _tried(
        self,
        name: str,
        attempt: Callable[[], Awaitable[T]],
        size: int = 0,
        seconds: float | None = None,
    ) -> T:
        """Return the result of `attempt`, which is repeated until the time is over.

        Args:
            name: Used in messages.
            attempt: One request.
            size: Bytes of the body, for the limiter.
            seconds: Limit of an upload, from the first attempt on, also for each. It ends sooner
                if nothing of it arrives. Default: that of the settings, and half of it for each.

        Raises `FileNotFoundError`, `UnreachableError`, and errors of obstore about conditions.
        """
        from obstore import exceptions

        pause = _FIRST_PAUSE
        progress = math.inf  # last time when some of an upload may have arrived
        await self._take_stream(size)
        deadline = time.monotonic() + (seconds or self._seconds)
        while True:
            try:
                now = time.monotonic()
                async with asyncio.timeout(min(deadline - now, seconds or self._attempt_seconds)):
                    found = await attempt()
                self.failure = None
                self._succeeded = time.monotonic()
                return found
            except (FileNotFoundError, exceptions.AlreadyExistsError, StoreError):
                self._succeeded = time.monotonic()
                raise
            except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
                reason = _text(error)
                if not self._renew_credentials():
                    self._is_refused = True
                    raise self._failed(
                        f"{self._url} refuses access: {reason}",
                        "check the credentials in the environment, or the profile",
                    ) from None
            except (exceptions.BaseError, TimeoutError, _ShortError) as error:
                reason = _text(error) or f"no answer to the request for {name}"
            finally:
                self.limiter.end(size)
            if "416" in reason and "Range" in reason:
                raise IntegrityError(f"{name} is shorter in the bucket than it was")
            if any(f"code: {number}" in reason for number in _BUSY):
                self.limiter.halve()
            if seconds is not None:
                # Its requests have the usual limit: if it took longer, some of them were answered.
                failed = time.monotonic()
                was_answered = failed - now > self._attempt_seconds * 1.5
                progress = failed - self._attempt_seconds if was_answered else min(progress, now)
                if failed - progress > self._seconds * 0.9:
                    raise self._silent(reason)
            wait = pause * random.uniform(0.5, 1.0)
            if deadline - time.monotonic() <= wait:
                raise self._silent(reason)
            self.retries += 1
            await asyncio.sleep(wait)
            await self._take_stream(size)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _renew_credentials(self) -> bool:
        """Open the bucket with credentials that a tool has written to the profile since."""
        config = _config(self._settings)
        if config == self._config:
            return False
        self._config = config
        self._store = _open_store(self._settings, config, self._attempt_seconds)
        return True

    async def _take_stream(self, size: int) -> None:
        """Wait for a stream, as long as the bucket answers others. Raises `UnreachableError`."""
        if self.limiter.start(size):
            return
        began = time.monotonic()
        waiter = self.limiter.wait(size)
        try:
            while not (await asyncio.wait((waiter,), timeout=_LOOK_SECONDS))[0]:
                if time.monotonic() - max(began, self._succeeded) > self._seconds:
                    raise self._silent("no answer to earlier requests")
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.limiter.end(size)
            waiter.cancel()
            raise

    def _silent(self, reason: str) -> UnreachableError:
        return self._failed(
            f"{self._url} does not answer: {reason}",
            "try again when the server of the objects can be reached",
        )

    def _failed(self, message: str, hint: str) -> UnreachableError:
        self.failure = message
        return UnreachableError(message, hint=hint)


class _ShortError(Exception):
    """A response had fewer bytes than were requested."""


def _text(error: BaseException) -> str:
    """Return the first line of a message; those of obstore go on with a dump of the source."""
    return str(error).partition("\n")[0][:_MAX_TEXT]


def _config(settings: FetchSettings) -> dict[str, str | bool]:
    is_s3 = settings.url.startswith("s3://")
    return s3_config(settings.options, os.environ) if is_s3 else {}


def _open_store(
    settings: FetchSettings, config: Mapping[str, str | bool], attempt_seconds: float
) -> Any:
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore, from_url

    if settings.url.startswith("file://"):
        return LocalStore(settings.url.removeprefix("file://"), mkdir=True)
    client = {"timeout": f"{int(attempt_seconds * 1000)}ms", "connect_timeout": _CONNECT_SECONDS}
    if str(config.get("endpoint", "")).startswith("http://"):
        client["allow_http"] = "true"
    try:
        return from_url(
            settings.url, client_options=client, retry_config={"max_retries": 0}, **config
        )
    except (BaseError, ValueError, TypeError) as error:
        raise StoreError(f"{settings.url} cannot be opened: {_text(error)}") from error


def s3_config(options: Mapping[str, str | bool], env: Mapping[str, str]) -> dict[str, str | bool]:
    """Return the configuration of obstore for S3, with credentials.

    Those in the environment come first, then the profile in ``~/.aws``, then the role of the
    machine, which obstore finds.
    """
    profile = str(options.get("profile") or env.get("AWS_PROFILE") or "default")
    found = _profile(profile, env)
    config: dict[str, str | bool] = {}
    if options.get("profile") or "AWS_ACCESS_KEY_ID" not in env:
        for ours, theirs in (
            ("access_key_id", "aws_access_key_id"),
            ("secret_access_key", "aws_secret_access_key"),
            ("session_token", "aws_session_token"),
        ):
            if theirs in found:
                config[ours] = found[theirs]
    for name, default in (("endpoint", "endpoint_url"), ("region", "region")):
        variable = "AWS_ENDPOINT_URL" if name == "endpoint" else "AWS_REGION"
        value = options.get(name) or env.get(variable) or found.get(default)
        if value:
            config[name] = value
    if "path_style" in options:
        config["virtual_hosted_style_request"] = not options["path_style"]
    checksum = options.get("checksum", "sha256")
    if checksum and checksum != "none":
        config["checksum_algorithm"] = str(checksum)
    return config


def _profile(name: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of a profile in the files of the AWS tools; none without a profile."""
    home = Path(env.get("HOME") or os.path.expanduser("~")) / ".aws"
    found: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(env.get(variable) or home / file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            _log.warning("%s of the AWS tools cannot be read", file)  # no line of it: secrets
            continue
        if parser.has_section(section):
            found.update(parser.items(section))
    return found


def missing_object(name: str) -> FileNotFoundError:
    """Return the error for an object that is not in the bucket."""
    return FileNotFoundError(errno.ENOENT, "the bucket does not have the object", name)
