"""`Users`: tokens with their roles and directories; `Sessions`: cookies and signed URLs."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import threading
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from vfsd.disk.safe_open import open_own
from vfsd.disk.tempfiles import atomic_file
from vfsd.errors import NotFoundError, UsageError

OWNER = "owner"
MAX_SIGNED_SECONDS = 30 * 86400
"""How long a signed URL is valid, at most."""
_TOKEN_BYTES = 32  # 43 characters
_LEAST_TOKEN = 16
_LEAST_PASSWORD = 8
_SESSION_SECONDS = 30 * 86400
_MAX_ENDED = 10_000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SIGNATURE_KEYS = ("user", "expires", "sig")


class UserRole(IntEnum):
    """The rights of a user; each role includes those before it."""

    VIEW = 1  #: read everything
    LABEL = 2  #: and change labels and tags
    ADMIN = 3  #: and change, upload and remove videos, and start work

    @classmethod
    def parse(cls, word: str) -> UserRole:
        """Raises `UsageError`."""
        try:
            return cls[word.upper()]
        except KeyError:
            raise UsageError(f"a role must be view, label or admin, got {word!r}") from None


@dataclass(frozen=True, slots=True)
class User:
    """The holder of a token."""

    name: str
    role: UserRole
    token: str = field(repr=False)
    directories: tuple[str, ...] = ()  #: the only ones that the user may see; empty: all

    def may_see(self, name: str) -> bool:
        """Whether the user may see the video or directory of that name."""
        return not self.directories or any(
            name == one or name.startswith(f"{one}/") for one in self.directories
        )


class Users:
    """All users of a server."""

    def __init__(self, users: Iterable[User]) -> None:
        self._users = {user.name: user for user in users}

    def named(self, name: str) -> User | None:
        return self._users.get(name)

    def with_token(self, token: str) -> User | None:
        """Return the user with that token.  Takes as long for a wrong one as for a right one."""
        found = None
        given = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        for user in self._users.values():
            if hmac.compare_digest(given, hashlib.sha256(user.token.encode()).digest()):
                found = user
        return found


def read_users(path: Path) -> Users:
    """Read a file of tokens: one token, or lines ``NAME ROLE TOKEN [DIR...]``.

    ``#`` begins a comment.  Raises `UsageError` for a malformed file, and for one that others can
    read; `NotFoundError`.
    """
    try:
        fd = open_own(path, os.O_RDONLY)
    except FileNotFoundError:
        raise NotFoundError(f"there is no token file {path}") from None
    with open(fd, encoding="utf-8") as file:
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
            raise UsageError(f"{path} can be read by other users", hint=f"run `chmod 600 {path}`")
        lines = [line.partition("#")[0].split() for line in file]
    rows = [words for words in lines if words]
    if len(rows) == 1 and len(rows[0]) == 1:
        return Users([User(OWNER, UserRole.ADMIN, _long_enough(rows[0][0], path, _LEAST_TOKEN))])
    users: dict[str, User] = {}
    for words in rows:
        if len(words) < 3 or not _NAME.fullmatch(words[0]) or words[0] in users:
            raise UsageError(
                f"{path}: each line must be NAME ROLE TOKEN [DIR...], with a NAME of its own"
            )
        name, role, token, *directories = words
        users[name] = User(
            name,
            UserRole.parse(role),
            _long_enough(token, path, _LEAST_TOKEN),
            tuple(one.strip("/") for one in directories),
        )
    if not users:
        raise UsageError(f"{path} has no token")
    if len({user.token for user in users.values()}) < len(users):
        raise UsageError(f"{path}: each user needs a token of its own")
    return Users(users.values())


def read_token(path: Path) -> str:
    """Return the only token in a file.  Raises as `read_users`."""
    owner = read_users(path).named(OWNER)
    if owner is None:
        raise UsageError(f"{path} must have one token")
    return owner.token


def users_of_password(password: str) -> Users:
    """One administrator with a password.  Raises `UsageError` for a short one."""
    return Users([User(OWNER, UserRole.ADMIN, _long_enough(password, None, _LEAST_PASSWORD))])


def _long_enough(token: str, path: Path | None, least: int) -> str:
    if len(token) < least:
        where = "the password" if path is None else f"{path}: a token"
        raise UsageError(f"{where} must have at least {least} characters")
    return token


def make_token_file(path: Path) -> str:
    """Return the token in a file that only this user can read; it is made where it is missing."""
    return _kept_secret(path, _LEAST_TOKEN)


def read_secret(path: Path) -> bytes:
    """Return the key for cookies and signed URLs in a file; it is made where it is missing."""
    return _kept_secret(path, _TOKEN_BYTES).encode()


def _kept_secret(path: Path, least: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        fd = open_own(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        fd = open_own(path, os.O_RDWR)
    with open(fd, "r+", encoding="ascii") as file:
        os.fchmod(fd, 0o600)
        found = file.read().strip()
        if len(found) >= least:
            return found
        # Empty after a crash between its creation and the first write.
        found = secrets.token_urlsafe(_TOKEN_BYTES)
        file.seek(0)
        file.truncate()
        file.write(found + "\n")
        file.flush()
        os.fsync(fd)
    return found


class Sessions:
    """Cookies and signed URLs.  Both are signed with a key that outlives the server.  Thread-safe.

    They end when the token of their user changes.  `ended` is the file with the cookies that were
    invalidated.
    """

    def __init__(self, key: bytes, users: Users, ended: Path | None = None) -> None:
        self._key = key
        self._users = users
        self._path = ended
        self._guard = threading.Lock()
        self._ended: dict[str, int] = {} if ended is None else _read_ended(ended)

    def begin(self, user: User) -> tuple[str, int]:
        """Return the value of a cookie, and for how many seconds it is valid."""
        until = int(time.time()) + _SESSION_SECONDS
        text = json.dumps([secrets.token_urlsafe(12), user.name, until])
        packed = urlsafe_b64encode(text.encode()).decode().rstrip("=")
        return f"{packed}.{self._mac('cookie', user, packed)}", _SESSION_SECONDS

    def find(self, cookie: str) -> User | None:
        """Return the user of a cookie; None if it is invalid, has expired or was invalidated."""
        opened = self._opened(cookie)
        if opened is None:
            return None
        number, user, _ = opened
        with self._guard:
            return None if number in self._ended else user

    def end(self, cookie: str) -> None:
        """Make a cookie invalid."""
        opened = self._opened(cookie)
        if opened is None:
            return
        number, _, until = opened
        now = time.time()
        with self._guard:
            self._ended = {one: end for one, end in self._ended.items() if end > now}
            if len(self._ended) < _MAX_ENDED:
                self._ended[number] = until
            if self._path is not None:
                with atomic_file(self._path, replace=True) as file:
                    file.write(json.dumps(self._ended).encode())

    def _opened(self, cookie: str) -> tuple[str, User, int] | None:
        packed, dot, mac = cookie.partition(".")
        try:
            text = urlsafe_b64decode(packed + "=" * (-len(packed) % 4))
            number, name, until = json.loads(text)
        except ValueError:
            return None
        user = self._users.named(name) if isinstance(name, str) else None
        if user is None or not dot or not self._is_mac(mac, "cookie", user, packed):
            return None
        return (number, user, until) if until > time.time() else None

    def sign(self, user: User, path: str, query: Mapping[str, str], seconds: int) -> str:
        """Return the query string that lets a path be read without other credentials.

        `path` is decoded.  The signature covers the other parts of the query as well.
        """
        expires = int(time.time()) + seconds
        given = {**query, "user": user.name, "expires": str(expires)}
        return urlencode({**given, "sig": self._signature(user, path, given)})

    def signed_by(self, path: str, query: str) -> User | None:
        """Return the user that signed a URL; None for an invalid or expired signature."""
        pairs = parse_qsl(query, keep_blank_values=True)
        given = dict(pairs)
        if len(given) < len(pairs):
            return None  # a key that comes twice could be read in two ways
        signature = given.pop("sig", "")
        user = self._users.named(given.get("user", ""))
        expires = given.get("expires", "")
        if user is None or not expires.isascii() or not expires.isdigit() or len(expires) > 12:
            return None
        if not hmac.compare_digest(signature.encode(), self._signature(user, path, given).encode()):
            return None
        return user if int(expires) > time.time() else None

    def _signature(self, user: User, path: str, query: Mapping[str, str]) -> str:
        return self._mac("url", user, json.dumps([path, sorted(query.items())]))

    def _mac(self, purpose: str, user: User, text: str) -> str:
        told = json.dumps([purpose, user.name, user.token, text]).encode()
        return hmac.new(self._key, told, hashlib.sha256).hexdigest()

    def _is_mac(self, mac: str, purpose: str, user: User, text: str) -> bool:
        return hmac.compare_digest(mac.encode(), self._mac(purpose, user, text).encode())


def has_signature(query: str) -> bool:
    """Whether a query string claims to be signed."""
    return any(part.startswith("sig=") for part in query.split("&"))


def without_signature(query: str) -> str:
    """Return a query string without the keys of its signature."""
    return urlencode(
        [
            pair
            for pair in parse_qsl(query, keep_blank_values=True)
            if pair[0] not in _SIGNATURE_KEYS
        ]
    )


def _read_ended(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_bytes())
        return {str(one): int(end) for one, end in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError):
        # Without the file, invalidated cookies would be valid again.
        raise UsageError(
            f"{path} cannot be read",
            hint="delete it and the .key file next to it: that ends all sessions",
        ) from None
