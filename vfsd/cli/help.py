"""``vfsd help``: commands, exit codes, and the names of views in a mount."""

from __future__ import annotations

from collections.abc import Iterator

import click

from vfsd.cli.command import define
from vfsd.cli.exit_codes import exit_codes, exit_codes_of_every_command
from vfsd.cli.output import column_lines, print_json, print_line
from vfsd.cli.session import Session
from vfsd.errors import UsageError

_TOPICS = ("exit-codes", "views")


@define(
    "help",
    examples=["vfsd help read", "vfsd help labels import", "vfsd help exit-codes"],
    fields={"topic": "the argument", "text": "the help"},
)
@click.argument("words", metavar="[TOPIC]", nargs=-1)
@click.pass_context
def help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Explain a command, or the topics `exit-codes` and `views`."""
    topic = " ".join(words) or None
    text = _text(ctx, topic)
    session = ctx.find_object(Session)
    if session is not None and session.json:
        print_json({"topic": topic, "text": text})
    else:
        print_line(text)


def _text(ctx: click.Context, topic: str | None) -> str:
    if topic == "exit-codes":
        return "\n".join(_exit_code_lines())
    if topic == "views":
        from vfsd.core import view_path

        return (view_path.__doc__ or "").strip()
    from vfsd.cli.app import App

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
