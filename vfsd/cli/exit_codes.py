"""The exit codes of the command line, from the error tree in `vfsd.errors`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from vfsd import errors

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
"""Any command that opens a store may end with these."""
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
