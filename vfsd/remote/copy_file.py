"""Copies a file of any bucket to this machine: ``copy_file.main([URL, FILE, OPTION=VALUE...])``.

A program of its own, as the client of buckets must not run in a process that may fork.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from vfsd.errors import NotFoundError, VfsdError
from vfsd.remote.bucket import PART_BYTES, Bucket
from vfsd.remote.fetch_protocol import fetch_settings

_AT_ONCE = 4


def main(arguments: Sequence[str]) -> None:
    """Copy the file.  An error is on stderr, and its exit code that of the process."""
    url, path, *options = arguments
    parts = urlsplit(url)
    given = {
        key: value == "True" if value in ("True", "False") else value
        for key, _, value in (one.partition("=") for one in options)
    }
    settings = fetch_settings("unused", f"{parts.scheme}://{parts.netloc}", given)
    try:
        with Path(path).open("wb") as file:
            asyncio.run(_copy(Bucket(settings), parts.path.lstrip("/"), file))
    except (VfsdError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        code = error.exit_code if isinstance(error, VfsdError) else NotFoundError.exit_code
        raise SystemExit(code) from None


async def _copy(bucket: Bucket, name: str, file: BinaryIO) -> None:
    size = await bucket.head(name)
    if size is None:
        raise FileNotFoundError(f"the bucket has no file {name}")
    step = _AT_ONCE * PART_BYTES
    for start in range(0, size, step):
        ends = range(start, min(start + step, size), PART_BYTES)
        gets = [bucket.get(name, at, min(at + PART_BYTES, size)) for at in ends]
        for data in await asyncio.gather(*gets):
            file.write(data)
