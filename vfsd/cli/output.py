"""What goes to stdout: JSON for programs, aligned columns for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TextIO

import click

SCHEMA = 1
"""Of the JSON that all commands print; counted up when a key changes its meaning or goes."""


def print_json(record: Mapping[str, object]) -> None:
    """One object on one line."""
    click.echo(json.dumps({"schema": SCHEMA, **record}))


def colour(stream: TextIO) -> bool:
    """Whether to send colours to `stream`."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def print_line(text: str) -> None:
    """A line of data; styles stay only where the reader wants them."""
    click.echo(text, color=colour(sys.stdout))


def columns(rows: Iterable[Sequence[str]], alignment: str) -> Iterator[str]:
    """Rows as lines, each column as wide as its widest cell.

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


def facts(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """``label  value`` lines, the values one below the other."""
    return columns(pairs, "<<")


def shown(name: str) -> str:
    """A name as a terminal may have it: control characters replaced.  Pipes get it as it is."""
    if not sys.stdout.isatty():
        return name
    return "".join(char if char.isprintable() else "?" for char in name)


def iso_time(time_ns: int) -> str:
    """Unix time as ISO 8601 in UTC, to the microsecond: for JSON."""
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    moment = moment.replace(microsecond=time_ns // 1000 % 1_000_000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def local_time(time_ns: int) -> str:
    """Unix time in the user's zone: for people."""
    return datetime.fromtimestamp(time_ns / 1e9).strftime("%Y-%m-%d %H:%M")
