"""Output on stdout: JSON for programs, aligned columns for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from vfsd.errors import UsageError

if TYPE_CHECKING:
    from vfsd.core.text_image import Picture

SCHEMA = 1
"""Version of the JSON of all commands. It is incremented when a key changes its meaning or is
removed.
"""


def print_json(record: Mapping[str, object]) -> None:
    """Print one object on one line."""
    click.echo(json.dumps({"schema": SCHEMA, **record}))


def use_color(stream: TextIO) -> bool:
    """Whether `stream` shows colours."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def styled(text: str, colour_name: str) -> str:
    """A word in a colour, if stdout shows colours."""
    return click.style(text, fg=colour_name) if use_color(sys.stdout) else text


def print_line(text: str) -> None:
    """Print a line of data unchanged: escape sequences may be part of a name."""
    click.echo(text, color=True)


def column_lines(rows: Iterable[Sequence[str]], alignment: str) -> Iterator[str]:
    """Rows as lines, with each column as wide as its widest cell.

    `alignment` has a ``<`` or ``>`` for every column.
    """
    kept = list(rows)
    widths = [max(map(len, column), default=0) for column in zip(*kept, strict=True)]
    for row in kept:
        cells = [
            cell.rjust(width) if side == ">" else cell.ljust(width)
            for cell, width, side in zip(row, widths, alignment, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def fact_lines(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """``label  value`` lines with aligned values."""
    return column_lines(pairs, "<<")


def printable(name: str) -> str:
    """A name that is safe to print: escaped for a terminal, unchanged for a pipe."""
    return escape_unprintable(name) if sys.stdout.isatty() else name


def escape_unprintable(text: str) -> str:
    """Replace control characters, and bytes that are not text, by Python's escapes: \x1b, \n."""
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def print_remark(text: str) -> None:
    """Print lines for people on stderr, with control characters escaped on a terminal."""
    if sys.stderr.isatty():
        text = "\n".join(map(escape_unprintable, text.split("\n")))
    click.echo(text, err=True, color=True)


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # not UTF-8: a byte that os.fsdecode escaped
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def picture_path(out: str) -> Path:
    """The path of a picture to write.  Raises `UsageError` unless it is a PNG or JPEG file."""
    path = Path(out)
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise UsageError(
            f"the picture must be a .png or .jpg file, got {out!r}", hint="name a .png or .jpg"
        )
    return path


def write_picture(picture: Picture, path: Path, *, replace: bool) -> None:
    """Write the PNG or JPEG file `path` as a whole.  Raises `ExistsError` unless `replace`."""
    from vfsd.codecs.encoding.still_images import MIN_JPEG_QUANTISER, encode_jpeg, encode_png
    from vfsd.disk.atomic_write import atomic_file

    if path.suffix.lower() == ".png":
        data = encode_png(picture)
    else:
        data = encode_jpeg(picture, quantiser=MIN_JPEG_QUANTISER)
    with atomic_file(path, replace) as file:
        file.write(data)


def iso_time(time_ns: int) -> str:
    """Unix time as ISO 8601 in UTC, to the microsecond, for JSON."""
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    moment = moment.replace(microsecond=time_ns // 1000 % 1_000_000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def local_time(time_ns: int) -> str:
    """Unix time in the user's time zone, for people."""
    return datetime.fromtimestamp(time_ns / 1e9).strftime("%Y-%m-%d %H:%M")
