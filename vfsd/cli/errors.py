"""How a command ends: error messages and exit codes."""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from vfsd.cli.exit_codes import EXIT_BROKEN_PIPE
from vfsd.cli.output import SCHEMA, print_remark, use_color
from vfsd.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EnvironmentMissingError,
    NoSpaceError,
    ReadOnlyError,
    UsageError,
    VfsdError,
)


@dataclass(frozen=True, slots=True)
class CommandFailure:
    """An error as it is printed."""

    error: str  #: name of the exception class
    message: str
    hint: str | None
    exit_code: int


_OS_ERRORS: dict[int, tuple[int, str]] = {
    errno.ENOSPC: (NoSpaceError.exit_code, "delete files, or free space on the disk"),
    errno.EDQUOT: (NoSpaceError.exit_code, "delete files, or ask for a larger quota"),
    errno.EMFILE: (VfsdError.exit_code, "allow the process more open files: `ulimit -n 4096`"),
    errno.EROFS: (
        ReadOnlyError.exit_code,
        "that disk is mounted read-only; choose another directory",
    ),
    errno.EACCES: (VfsdError.exit_code, "check the permissions of the file and of its directories"),
    errno.EIO: (VfsdError.exit_code, "the disk has failed: see `dmesg`, then run `vfsd fsck`"),
}
"""Exit code and hint by errno."""


def run_guarded(run: Callable[[], object], args: Sequence[str]) -> int:
    """Run a command line, print its error if it fails, and return the exit code.

    ``--json`` and ``--debug`` are searched in `args` itself, so that they also apply to a line that
    cannot be parsed.
    """
    flags = set(args[: args.index("--")] if "--" in args else args)
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
        return EXIT_BROKEN_PIPE
    except (click.Abort, KeyboardInterrupt):
        failure = CommandFailure("KeyboardInterrupt", "interrupted", None, EXIT_INTERRUPTED)
    except Exception as error:
        failure = describe(error)
        if "--debug" in flags:
            traceback.print_exc()
    else:
        return code if isinstance(code, int) else EXIT_OK
    print_failure(failure, as_json="--json" in flags)
    return failure.exit_code


def describe(error: Exception) -> CommandFailure:
    """Message, hint and exit code for an exception."""
    if isinstance(error, VfsdError):
        hint = error.command_hint
        if hint is None and error.exit_code == NoSpaceError.exit_code:
            _, hint = _OS_ERRORS[errno.ENOSPC]
        return CommandFailure(
            type(error).__name__, str(error), _full_hint(error, hint), error.exit_code
        )
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        name = "vfsd" if context is None else context.command_path
        return CommandFailure(
            UsageError.__name__, error.format_message(), f"see `{name} --help`", error.exit_code
        )
    if isinstance(error, OSError) and error.strerror is not None:
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        code, hint = _OS_ERRORS.get(error.errno or 0, (VfsdError.exit_code, None))
        return CommandFailure(
            type(error).__name__, where + error.strerror, _full_hint(error, hint), code
        )
    if isinstance(error, ImportError):
        return CommandFailure(
            type(error).__name__,
            f"a library cannot be loaded: {error}",
            "run `vfsd doctor`; `pip check` lists packages with conflicting versions",
            EnvironmentMissingError.exit_code,
        )
    return CommandFailure(
        type(error).__name__,
        f"{type(error).__name__}: {error}",
        "this is a bug in vfsd; --debug shows where",
        VfsdError.exit_code,
    )


def _full_hint(error: Exception, hint: str | None) -> str | None:
    """The notes of the error, which say what is already done, and the hint."""
    parts = [*getattr(error, "__notes__", ()), *([] if hint is None else [hint])]
    return "; ".join(parts) or None


def print_failure(failure: CommandFailure, *, as_json: bool) -> None:
    """Print an error on stderr."""
    if as_json:
        record = {
            "schema": SCHEMA,
            "error": failure.error,
            "message": failure.message,
            "hint": failure.hint,
            "exit_code": failure.exit_code,
        }
        click.echo(json.dumps(record), err=True)
        return
    prefix = click.style("vfsd:", fg="red", bold=True)
    click.echo(f"{prefix} ", err=True, color=use_color(sys.stderr), nl=False)
    print_remark(failure.message)
    if failure.hint:
        print_remark(f"  {failure.hint}")


def discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that flushing at exit does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
