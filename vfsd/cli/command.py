"""The base of all commands: common options, examples, documented fields and exit codes."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import click

from vfsd.cli.command_table import ENTRIES, TOPICS
from vfsd.cli.errors import meaning
from vfsd.cli.session import Session, store_path
from vfsd.errors import (
    EXIT_INTERRUPTED,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    ReadOnlyError,
    VfsdError,
)

_F = TypeVar("_F", bound=Callable[..., Any])

CONTEXT = {"help_option_names": ["-h", "--help"]}

MAKING_EXITS = (NotFoundError, ReadOnlyError, IntegrityError, NoSpaceError, EXIT_INTERRUPTED)
"""Exit codes of commands that decode videos and store the result."""


class Command(click.Command):
    """A command with examples, JSON fields and exit codes in its help.

    `examples` are command lines that the tests run. They find a store ``videos``, the folders
    ``footage`` and ``labels``, and a file ``workload.json``. `fields` are the keys of each object
    that ``--json`` prints, `variants` those with certain options. `exits` are the exit codes of
    this command alone. With `unknown_labels`, a last object may have `UNKNOWN_LABELS_FIELDS`. The
    name of a command in a group includes the name of the group.
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str],
        fields: Mapping[str, str],
        variants: Mapping[str, Mapping[str, str]],
        exits: Sequence[int],
        listing: bool,
        unknown_labels: bool,
        **rest: Any,
    ) -> None:
        super().__init__(*args, **rest)
        self.examples = tuple(examples)
        self.fields = MappingProxyType(dict(fields))
        self.variants = MappingProxyType(dict(variants))
        self.exits = tuple(sorted(set(exits)))
        self.listing = listing
        self.unknown_labels = unknown_labels
        self.params += common_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # the error names the help to read
            raise

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{' ' * formatter.current_indent}{example}\n")
        if self.exits:
            with formatter.section("Exit codes, besides those of every command"):
                formatter.write_dl([(str(code), meaning(code)) for code in self.exits])


# Names that other programs use for the same action.
_SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "add": "ingest",
        "cat": "read",
        "check": "fsck",
        "copy": "ingest",
        "cp": "ingest",
        "create": "init",
        "del": "rm",
        "delete": "rm",
        "export": "read",
        "extract": "read",
        "get": "read",
        "import": "ingest",
        "list": "ls",
        "move": "mv",
        "new": "init",
        "put": "ingest",
        "query": "find",
        "remove": "rm",
        "rename": "mv",
        "search": "find",
        "show": "info",
        "stat": "info",
        "unmount": "umount",
    }
)


def suggest_command(word: str, commands: Sequence[str]) -> str | None:
    """The one of `commands` that was probably meant by `word`, or None."""
    if _SYNONYMS.get(word) in commands:
        return _SYNONYMS[word]
    near = difflib.get_close_matches(word, commands, 1)
    return near[0] if near else None


class SuggestingGroup(click.Group):
    """A group that suggests a command for an unknown name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            meant = suggest_command(args[0], self.list_commands(ctx))
            if meant is None:
                raise
            raise click.UsageError(f"{error.message} Did you mean {meant!r}?", ctx) from error


class Group(SuggestingGroup):
    """The commands of one topic, ``vfsd TOPIC COMMAND``.

    Where the topic is a command itself (``vfsd tune``), the group runs it for lines that name no
    other command of the topic.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(
            topic,
            help=TOPICS[topic],
            context_settings=CONTEXT,
            invoke_without_command=True,
            params=common_options(),
            callback=_print_usage,
        )
        self._topic = topic
        self._names = [
            rest for first, _, rest in (name.partition(" ") for name in ENTRIES) if first == topic
        ]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in self._names if name]

    def get_command(self, ctx: click.Context, cmd_name: str) -> Command | None:
        if not cmd_name or cmd_name not in self._names:
            return None
        return load(f"{self._topic} {cmd_name}")

    @property
    def alone(self) -> Command | None:
        """The command that the topic is by itself."""
        return load(self._topic) if self._topic in ENTRIES else None

    def is_alone(self, words: Sequence[str]) -> bool:
        """Whether a line with these words after the topic runs the topic itself."""
        if self._topic not in ENTRIES:
            return False
        takes_value = False
        for word in words:
            if not takes_value and not word.startswith("-"):
                return word not in self._names
            takes_value = not takes_value and word in ("-s", "--store")
            if word == "--":
                return True
        return True


def load(name: str) -> Command:
    """Import the module of a command in `ENTRIES`, and return the command."""
    module = importlib.import_module(f"vfsd.cli.{ENTRIES[name].module}")
    found = getattr(module, name.replace(" ", "_").replace("-", "_"))
    assert isinstance(found, Command)
    return found


@click.pass_context
def _print_usage(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(2)


def define(
    name: str,
    *,
    examples: Sequence[str],
    fields: Mapping[str, str],
    variants: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    exits: Sequence[type[VfsdError] | int] = (),
    listing: bool = False,
    unknown_labels: bool = False,
) -> Callable[[Callable[..., None]], Command]:
    """Make a function a `Command`; its first argument is the `Session`.

    With `listing`, ``--json`` prints one object a line.
    """
    codes = [code if isinstance(code, int) else code.exit_code for code in exits]

    def decorate(function: Callable[..., None]) -> Command:
        return click.command(
            name,
            cls=Command,
            context_settings=CONTEXT,
            examples=examples,
            fields=fields,
            variants=variants,
            exits=codes,
            listing=listing,
            unknown_labels=unknown_labels,
        )(click.pass_obj(function))

    return decorate


def replace_option(text: str) -> Callable[[_F], _F]:
    """Add the parameter `replace` to a command.  `text` is the help of the option."""
    names = ("-f", "--overwrite", "--replace", "replace")
    return click.option(*names, is_flag=True, help=text)


limit_option = click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), help="Only the newest N."
)
jobs_option = click.option(
    "--jobs", metavar="N", type=click.IntRange(1), help="Number of parallel segments."
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def common_options() -> list[click.Parameter]:
    """The options that may stand before or after the name of a command."""
    return [
        click.Option(
            ["-s", "--store"],
            metavar="DIR",
            type=click.UNPROCESSED,
            help="The store, or the URL of its catalog; by default the mount that a path lies in, "
            "else VFSD_STORE.",
            expose_value=False,
            callback=_store_option,
        ),
        _flag(["--json"], "Print JSON: one object, or one object a line."),
        _flag(["-q", "--quiet"], "Print no progress and no remarks."),
        _flag(["--debug"], "Print the traceback of an error."),
    ]


def _flag(names: list[str], text: str) -> click.Option:
    return click.Option(names, is_flag=True, help=text, expose_value=False, callback=_store_option)


def _store_option(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Store the value of a common option in the session."""
    if value:
        assert param.name is not None
        if param.name == "store":
            value = store_path(str(value))
        setattr(ctx.ensure_object(Session), param.name, value)
