"""How a command ends: the exit codes, from the error tree in `vfsd.errors`, and the messages that
are printed for errors.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import click

from vfsd import errors
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

EXIT_BROKEN_PIPE = 141
"""Exit status of a program in a shell after SIGPIPE: 128 + 13."""

_OUTSIDE_THE_TREE: Mapping[int, str] = MappingProxyType(
    {
        errors.EXIT_OK: "done",
        errors.EXIT_FINDINGS: "a check found a problem",
        errors.EXIT_INTERRUPTED: "interrupted with Ctrl-C (SIGINT)",
        EXIT_BROKEN_PIPE: "the reader of the output closed the pipe (SIGPIPE)",
    }
)
# Any command that opens a store may end with these.
_OF_EVERY_COMMAND = (
    errors.EXIT_OK,
    errors.VfsdError.exit_code,
    errors.UsageError.exit_code,
    errors.ReadOnlyError.exit_code,
    errors.StoreError.exit_code,
    errors.StoreVersionError.exit_code,
    errors.BusyError.exit_code,
    errors.IntegrityError.exit_code,
    errors.NoSpaceError.exit_code,
    errors.EXIT_INTERRUPTED,
    EXIT_BROKEN_PIPE,
)
_TREE_LINE = re.compile(r"[\s│├└─]*(\w+Error)\s+(\d+)\s+(E[A-Z]+)\s+(\S.*)")


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """A row of the error tree in the docstring of `vfsd.errors`."""

    name: str
    code: int
    errno: str  #: name of the errno that a mount returns
    meaning: str


def error_classes() -> Iterator[ErrorClass]:
    """Every error, from the base class down, in the order of the tree."""
    for line in (errors.__doc__ or "").splitlines():
        match = _TREE_LINE.fullmatch(line)
        if match is not None:
            name, code, errno, text = match.groups()
            yield ErrorClass(name, int(code), errno, text)


def exit_codes() -> dict[int, str]:
    """Every exit code with its meaning, in ascending order."""
    found = dict(_OUTSIDE_THE_TREE)
    for error in error_classes():
        found.setdefault(error.code, error.meaning)
    return dict(sorted(found.items()))


def exit_codes_of_every_command() -> dict[int, str]:
    """The exit codes that any command may end with, in ascending order."""
    return {code: text for code, text in exit_codes().items() if code in _OF_EVERY_COMMAND}


def meaning(code: int) -> str:
    """The meaning of one exit code."""
    return exit_codes()[code]


@dataclass(frozen=True, slots=True)
class CommandFailure:
    """An error as it is printed."""

    error: str  #: name of the exception class
    message: str
    hint: str | None
    exit_code: int


# Exit code and hint by errno.
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


def run_guarded(run: Callable[[], object], args: Sequence[str]) -> int:
    """Run a command line, print its error if it fails, and return the exit code.

    ``--json`` and ``--debug`` are searched in `args` itself, so that they also apply to a line that
    cannot be parsed.
    """
    # Behind "--" the same words are arguments.
    flags = set(args[: args.index("--")] if "--" in args else args)
    try:
        code = run()
        # A full disk behind stdout must fail the command; at exit it would only be printed.
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
    _discard_unwritable_output()
    print_failure(failure, as_json="--json" in flags)
    return failure.exit_code


def _discard_unwritable_output() -> None:
    """Keep Python from ending with its own code because stdout cannot be flushed at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_stdout()


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
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
