"""The program ``vfsd``: imports commands when they are needed, and sets the exit code.

Also has ``vfsd help``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from vfsd import __version__
from vfsd.cli.command import CONTEXT, Command, Group, SuggestingGroup, common_options, define, load
from vfsd.cli.command_table import ENTRIES, SECTIONS, TOPICS
from vfsd.cli.errors import (
    EXIT_BROKEN_PIPE,
    discard_stdout,
    exit_codes,
    exit_codes_of_every_command,
    run_guarded,
)
from vfsd.cli.output import column_lines
from vfsd.cli.session import Session
from vfsd.core.subprocess_entry import limit_blas_threads, reduce_gc
from vfsd.errors import UsageError


class App(SuggestingGroup):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(dict.fromkeys(name.partition(" ")[0] for name in ENTRIES))

    def get_command(self, ctx: click.Context, cmd_name: str) -> Command | Group | None:
        if cmd_name in TOPICS:
            return Group(cmd_name)
        return load(cmd_name) if cmd_name in ENTRIES else None

    def find(self, ctx: click.Context, words: Sequence[str]) -> Command | Group | None:
        """The command, or the group of commands, with this name."""
        found: App | Command | Group | None = self
        for word in words:
            if not isinstance(found, (App, Group)):
                return None
            found = found.get_command(ctx, word)
        assert not isinstance(found, App)
        return (found.alone or found) if isinstance(found, Group) else found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, Group) and command.is_alone(rest):
            return name, command.alone, rest
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, ENTRIES))
        limit = formatter.width - width - 4
        for title, entries in SECTIONS.items():
            rows = [
                (
                    name.ljust(width),
                    click.Command(name, help=entry.summary).get_short_help_str(limit),
                )
                for name, entry in entries.items()
            ]
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Try"):
            formatter.write_text("vfsd init videos")
            formatter.write_text("vfsd -s videos ingest footage/traffic.mp4 --to cam1")
            formatter.write_text("vfsd -s videos read cam1/traffic.mp4 still.png --at 1.5")
            formatter.write_text("mkdir mnt && vfsd mount videos mnt")
        formatter.write_paragraph()
        formatter.write_text(
            "--store, a path inside a mount, or VFSD_STORE names the store. Exit code 0 is "
            "success; `vfsd help exit-codes` lists the others."
        )

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would report a failure
            discard_stdout()
            ctx.exit(EXIT_BROKEN_PIPE)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the program and exit. `vfsd.errors` defines the exit code of each error."""
        given = list(sys.argv[1:] if args is None else args)

        def run() -> object:
            return super(App, self).main(
                given, "vfsd", complete_var, standalone_mode=False, obj=Session(), **extra
            )

        sys.exit(run_guarded(run, given))


@click.group(
    cls=App, invoke_without_command=True, context_settings=CONTEXT, params=common_options()
)
@click.version_option(__version__, "-V", "--version", message="vfsd %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A video store that is used as a directory.

    Videos keep their bytes. Frames are read exactly, by number or by time.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(2)


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that the caller has closed (``>&-``).

    Otherwise the next file that is opened, such as the catalog, would get the number of stdout.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            devnull = os.open(os.devnull, os.O_RDWR)
            if devnull == number:
                os.set_inheritable(number, True)  # child processes need them open, too
            else:
                os.dup2(devnull, number)
                os.close(devnull)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def main() -> None:
    """The console script."""
    _open_closed_streams()
    limit_blas_threads()  # before numpy is imported
    reduce_gc()
    for stream in (sys.stdout, sys.stderr):
        # File names need not be UTF-8: write the bytes that were read.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="surrogateescape")
    cli()


_TOPICS = ("exit-codes", "views")


@define(
    "help",
    examples=["vfsd help read", "vfsd help labels import", "vfsd help exit-codes"],
    fields={"topic": "the argument", "text": "the help"},
)
@click.argument("words", metavar="[TOPIC]", nargs=-1)
def help(session: Session, words: tuple[str, ...]) -> None:
    """Explain a command, or the topics `exit-codes` and `views`."""
    topic = " ".join(words) or None
    text = _text(click.get_current_context(), topic)
    session.print_result({"topic": topic, "text": text}, text)


def _text(ctx: click.Context, topic: str | None) -> str:
    if topic == "exit-codes":
        return "\n".join(_exit_code_lines())
    if topic == "views":
        from vfsd.core import view_request

        return (view_request.__doc__ or "").strip()

    app = ctx.find_root().command
    assert isinstance(app, App)
    parent = ctx.find_root()
    if topic is None:
        return parent.get_help()
    found = app.find(parent, topic.split())
    if found is None:
        raise UsageError(
            f"no help on {topic!r}",
            hint=f"name a command, {' or '.join(_TOPICS)}",
        )
    return found.get_help(
        click.Context(found, info_name=topic, parent=parent, **found.context_settings)
    )


def _exit_code_lines() -> Iterator[str]:
    yield from column_lines([(str(code), text) for code, text in exit_codes().items()], "><")
    every = ", ".join(map(str, exit_codes_of_every_command()))
    yield f"\nAny command may end with {every}; the help of each command lists the others."
