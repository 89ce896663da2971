"""What all commands have in common: options, examples, documented fields and exit codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from vfsd.cli.exitcodes import meaning
from vfsd.cli.session import Session
from vfsd.errors import UsageError, VfsdError

CONTEXT = {"help_option_names": ["-h", "--help"]}


class Command(click.Command):
    """A command that says how it is used and what it ends with.

    `examples` are command lines that run as they stand, on a store called ``videos`` and a folder
    called ``footage`` (the tests run them).  `fields` are the keys of each object that ``--json``
    prints, `variants` those that it prints with certain options; `exits` are the exit codes that
    are particular to it.
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str],
        fields: Mapping[str, str],
        variants: Mapping[str, Mapping[str, str]],
        exits: Sequence[int],
        listing: bool,
        **rest: Any,
    ) -> None:
        super().__init__(*args, **rest)
        self.examples = tuple(examples)
        self.fields = MappingProxyType(dict(fields))
        self.variants = MappingProxyType(dict(variants))
        self.exits = tuple(sorted(set(exits)))
        self.listing = listing
        self.path = self.name or ""  #: the words that call it, after the program's name
        self.params += common_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # some come without, and could not say whose help to read
            raise

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{' ' * formatter.current_indent}{example}\n")
        if self.exits:
            with formatter.section("Exit codes, besides those of every command"):
                formatter.write_dl([(str(code), meaning(code)) for code in self.exits])


class Group(click.Group):
    """Commands about one thing: ``vfsd layout show``, ``vfsd layout drop``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def members(self) -> list[Command]:
        """Its commands, in the order in which they were given."""
        found = list(self.commands.values())
        assert all(isinstance(command, Command) for command in found)
        return [command for command in found if isinstance(command, Command)]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def define_group(name: str, text: str, members: Sequence[Command]) -> Group:
    """A group of commands, in the order in which its help lists them; `text` is what it is for."""
    group = Group(
        name,
        help=text,
        context_settings=CONTEXT,
        params=common_options(),
        invoke_without_command=True,
        callback=click.pass_context(_no_member),
        commands={member.name: member for member in members if member.name is not None},
    )
    for member in members:
        member.path = f"{name} {member.name}"
    return group


def _no_member(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(UsageError.exit_code)


def define(
    name: str,
    *,
    examples: Sequence[str],
    fields: Mapping[str, str],
    variants: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    exits: Sequence[type[VfsdError] | int] = (),
    listing: bool = False,
) -> Callable[[Callable[..., None]], Command]:
    """Make a function a `Command`; `listing`: ``--json`` prints one object a line."""
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
        )(function)

    return decorate


def common_options() -> list[click.Parameter]:
    """The options that are taken before a command's name as well as after it."""
    return [
        click.Option(
            ["-s", "--store"],
            metavar="DIR",
            type=click.Path(path_type=Path),
            help="The store; else the mount that a path lies in, else VFSD_STORE.",
            expose_value=False,
            callback=_remember,
        ),
        _flag(["--json"], "Print JSON: one object, or one object a line."),
        _flag(["-q", "--quiet"], "No progress, no remarks."),
        _flag(["--debug"], "Show where an error comes from."),
    ]


def _flag(names: list[str], text: str) -> click.Option:
    return click.Option(names, is_flag=True, help=text, expose_value=False, callback=_remember)


def _remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Keep an option's value for the command, wherever on the line it was given."""
    if value:
        assert param.name is not None
        setattr(ctx.ensure_object(Session), param.name, value)
