"""Byte ranges, preconditions and file names of HTTP requests, as RFC 9110 and RFC 6266 define."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from email.utils import formatdate, parsedate_to_datetime
from hashlib import blake2b
from urllib.parse import quote

from vfsd import __version__

_ONE_RANGE = re.compile(r"bytes=[ \t]*(?:([0-9]+)-([0-9]*)|-([0-9]+))[ \t]*", re.IGNORECASE)
_ENTITY_TAG = re.compile(r'(?:W/)?"[^"]*"')


class UnsatisfiableRangeError(Exception):
    """A range outside of the file."""


def requested_range(header: str | None, size: int) -> range | None:
    """Return the bytes of a file of `size` bytes that a header Range asks for.

    None means the whole file, as for several ranges and for a malformed header.  Raises
    `UnsatisfiableRangeError`.
    """
    match = _ONE_RANGE.fullmatch(header) if header else None
    if match is None:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        count = min(_number(suffix), size)
        if not count:
            raise UnsatisfiableRangeError
        return range(size - count, size)
    begin = _number(first)
    end = _number(last) + 1 if last else size
    if last and end <= begin:
        return None  # malformed
    if begin >= size:
        raise UnsatisfiableRangeError
    return range(begin, min(end, size))


def _number(digits: str) -> int:
    # Python refuses to parse thousands of digits.  No file has more bytes than this.
    return int(digits) if len(digits) <= 19 else 10**19


def matches(header: str, tag: str, *, weakly: bool) -> bool:
    """Whether an entity tag is in a header If-Match or If-None-Match."""
    if header.strip() == "*":
        return True
    given = _ENTITY_TAG.findall(header)
    if weakly:
        return tag.removeprefix("W/") in [one.removeprefix("W/") for one in given]
    return not tag.startswith("W/") and tag in given


def is_unchanged(headers: Mapping[str, str], tag: str, modified: int) -> bool:
    """Whether the client has the file already (304).  `modified` is in Unix seconds."""
    if "if-none-match" in headers:
        return matches(headers["if-none-match"], tag, weakly=True)
    since = _time(headers.get("if-modified-since"))
    return since is not None and modified <= since


def is_range_valid(header: str | None, tag: str) -> bool:
    """Whether a header If-Range allows a range.  Only strong entity tags do."""
    return header is None or (header.strip() == tag and not tag.startswith("W/"))


def _time(header: str | None) -> float | None:
    if header is None:
        return None
    try:
        return parsedate_to_datetime(header).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def disposition(kind: str, name: str) -> str:
    """Return a header Content-Disposition; `kind` is inline or attachment.

    Only harmless ASCII is in the plain form: old programs take it as it stands.
    """
    plain = re.sub(r"[^A-Za-z0-9._ =+,-]", "_", name)[:200] or "file"
    text = f'{kind}; filename="{plain}"'
    if plain != name:
        text += f"; filename*=UTF-8''{quote(os.fsencode(name), safe='')}"
    return text


def http_date(seconds: int) -> str:
    """Return a time as in HTTP; never in the future."""
    return formatdate(min(seconds, int(time.time())), usegmt=True)


def view_tag(version: str, size: int) -> str:
    """Return the entity tag of a view, without quotes."""
    return blake2b(f"{__version__} {version} {size}".encode(), digest_size=16).hexdigest()
