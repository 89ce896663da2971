"""Writes docs/reference/cli.md from the code: commands, options, examples, JSON keys, exit codes.

python -m scripts.make_cli_docs            write it
python -m scripts.make_cli_docs --check    end with 1 when it is out of date
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click

from vfsd.cli.app import App, cli
from vfsd.cli.command import Command, common_options
from vfsd.cli.command_table import SECTIONS
from vfsd.cli.errors import error_classes, exit_codes, exit_codes_of_every_command
from vfsd.core.timebase import byte_text
from vfsd.disk.store_config import StoreSettings, describe
from vfsd.mount.fuse.mount_options import described_options
from vfsd.records.label_records import UNKNOWN_LABELS_FIELDS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"

_HEAD = """\
# Command line

<!-- Written by scripts/make_cli_docs.py; changes belong into the code. -->

`vfsd COMMAND --help` prints the same text. Results go to stdout, everything else to stderr.
Progress appears at a terminal, for work of more than a second. Colours appear at a terminal,
unless `NO_COLOR` is set.

## Which store

A command takes the first of these:

1. `--store DIR`, before or after the name of the command; DIR may be where the store is mounted;
2. the mount that a path lies in: `vfsd info /mnt/v/cam1/a.mp4`, or `vfsd info a.mp4` in the
   directory `/mnt/v/cam1`;
3. the environment variable `VFSD_STORE`.

Names are paths from the root of the store, such as `cam1/a.mp4`, unless they lead into a mount.

## JSON output

With `--json` a command prints one object, or one object a line where it lists things. Each has
`"schema": 1` and the keys below. New keys may be added; a key changes its meaning only with a new
schema number. Times are ISO 8601 in UTC, sizes are bytes, durations are seconds. An error is an
object on stderr, with `error` (its class), `message`, `hint` (or null) and `exit_code`.

## Completion

Commands and options complete in bash, and likewise in zsh and fish, after:

    eval "$(_VFSD_COMPLETE=bash_source vfsd)"
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD, *_any_exit_codes(), *_commands(), *_exit_codes()]
    return "\n".join(parts).rstrip() + "\n"


def commands() -> Iterator[Command]:
    """Every command, in the order of the page."""
    context = click.Context(cli, info_name="vfsd", **cli.context_settings)
    assert isinstance(cli, App)
    for names in SECTIONS.values():
        for name in names:
            found = cli.find(context, name.split())
            assert isinstance(found, Command)
            yield found


def _any_exit_codes() -> Iterator[str]:
    yield "## Exit codes of every command\n"
    yield (
        "Any command may exit with these; codes from 10 on need a store. Each command lists its "
        "own codes,\nand all are listed [at the end](#exit-codes).\n"
    )
    rows = [(str(code), text) for code, text in exit_codes_of_every_command().items()]
    yield from _table(("code", "meaning"), rows)


def _commands() -> Iterator[str]:
    yield "## Options of every command\n"
    yield from _options(common_options())
    found = {command.name: command for command in commands()}
    for title, names in SECTIONS.items():
        yield f"## {title}\n"
        for name in names:
            yield from _command(found[name])


def _command(command: Command) -> Iterator[str]:
    # A command keeps the help option that it was first asked for: it has to be the usual one.
    context = click.Context(command, info_name=f"vfsd {command.name}", **command.context_settings)
    yield f"### vfsd {command.name}\n"
    yield f"    {' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n"
    yield inspect.cleandoc(command.help or "") + "\n"
    common = {option.name for option in common_options()}
    own = [p for p in command.params if isinstance(p, click.Option) and p.name not in common]
    yield from _options(own)
    yield from _values_of(command.name)
    yield "Examples:\n"
    yield "\n".join(f"    {example}" for example in command.examples) + "\n"
    yield f"With `--json`, {'one object a line' if command.listing else 'one object'}:\n"
    yield from _fields(command.fields)
    for option, fields in command.variants.items():
        yield f"With `{option} --json`:\n"
        yield from _fields(fields)
    if command.unknown_labels:
        yield "With `--json`, one more object at the end where a label is unknown:\n"
        yield from _fields(UNKNOWN_LABELS_FIELDS)
    if command.exits:
        codes = [f"{code} ({exit_codes()[code]})" for code in command.exits]
        yield f"Exit codes, besides those of every command: {', '.join(codes)}.\n"


def _values_of(name: str | None) -> Iterator[str]:
    """The settings of `vfsd config`, and the words of `vfsd mount -o`."""
    if name == "config":
        rows = [
            (f"`{field.name}`", _default_of(field.default), describe(field.name))
            for field in dataclasses.fields(StoreSettings)
        ]
        yield from _table(("setting", "default", "meaning"), rows)
    elif name == "mount":
        options = [
            (", ".join(f"`{word}`" for word in words.split(", ")), text)
            for words, text in described_options().items()
        ]
        yield from _table(("`-o`", "meaning"), options)


def _default_of(value: object) -> str:
    if isinstance(value, int) and value >= 1 << 20:
        return byte_text(value)
    return str(value).lower() or "empty"


def _options(options: Iterable[click.Parameter]) -> Iterator[str]:
    rows = []
    for option in options:
        assert isinstance(option, click.Option)
        names = ", ".join([*option.opts, *option.secondary_opts])
        value = f" {named_value(option)}".rstrip()
        rows.append((f"`{names}{value}`", about(option)))
    if rows:
        yield from _table(("option", ""), rows)


def about(option: click.Option) -> str:
    """The help of an option, and whether it is required or repeatable."""
    again = " May be repeated." if option.multiple else ""
    needed = " Required." if option.required else ""
    return (option.help or "") + again + needed


def named_value(option: click.Option) -> str:
    """The placeholder for the value of an option; "" for a flag."""
    if option.is_flag:
        return ""
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.type.name.upper()


def _fields(fields: Mapping[str, str]) -> Iterator[str]:
    yield from _table(("key", ""), [(f"`{key}`", text) for key, text in fields.items()])


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n"
    yield ("Codes 2 to 9 concern the request, 10 to 19 the store, 20 to 29 the machine.\n")
    names: dict[int, list[str]] = {}
    numbers: dict[int, dict[str, None]] = {}
    for error in error_classes():
        names.setdefault(error.code, []).append(f"`{error.name}`")
        numbers.setdefault(error.code, {})[f"`{error.errno}`"] = None
    rows = [
        (str(code), text, ", ".join(numbers.get(code, {})), ", ".join(names.get(code, [])))
        for code, text in exit_codes().items()
    ]
    yield from _table(("code", "meaning", "errno in a mount", "errors"), rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    lines = [_row(head), _row("---" for _ in head), *map(_row, rows)]
    yield "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(re.sub(r"\|", r"\\|", cell) for cell in cells) + " |"


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    text = page()
    if arguments == ["--check"]:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
