"""The kinds of jobs: orders of work, and commands that run as a process.

Arguments come from requests, so only those in the tables below exist, and none is a path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from vfsd.errors import UsageError
from vfsd.tiling import Rect

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/x+|& -]{0,99}")
_SPAN = re.compile(r"[0-9.:]{1,24}-[0-9.:]{0,24}")
_SIZE = re.compile(r"[0-9]{1,5}x[0-9]{1,5}")
_MOST_NAMES = 1000


def _span(value: object) -> str:
    if isinstance(value, (list, tuple)) and len(value) == 2:
        value = f"{value[0]}-{'' if value[1] is None else value[1]}"
    return _matched(_SPAN, value, "span must be A-B in seconds")


def _roi(value: object) -> str:
    if isinstance(value, (list, tuple)):
        value = tuple(value)
    return str(Rect.from_value(value))  # type: ignore[arg-type]  # which refuses other types


def _size(value: object) -> str:
    return _matched(_SIZE, value, "size must be WxH")


def _word(value: object) -> str:
    return _matched(_WORD, value, "the value must be a word")


def _number(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise UsageError(f"the value must be a number, got {value!r}")
    return f"{value:g}"


def _matched(pattern: re.Pattern[str], value: object, wrong: str) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise UsageError(f"{wrong}, got {value!r}")
    return value


def _detector(value: object) -> str:
    if value != "motion":
        raise UsageError(
            f"with must be motion, got {value!r}",
            hint="`vfsd detect` runs models, which are files of the server's machine",
        )
    return "motion"


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of job, as a command of `vfsd`."""

    command: tuple[str, ...]
    about: str
    options: Mapping[str, tuple[str, Callable[[object], str]]] = field(default_factory=dict)
    """By argument: the option, and the check of its value."""
    names: tuple[int, int] = (0, _MOST_NAMES)  #: least and most names
    is_order: bool = False  #: planned in units, which run with ``--on``
    needs_verified: bool = False  #: verifies its videos first
    dry_run: tuple[str, ...] | None = None  #: options that only print what would be done
    applied: tuple[str, ...] = ()  #: options without a dry run

    def arguments(self, args: Mapping[str, Any], *, dry_run: bool) -> list[str]:
        """Return the words of the command.  Raises `UsageError` for an unknown argument."""
        unknown = sorted(set(args) - {*self.options, "names", "video", "left", "right"})
        if unknown:
            known = ", ".join([*self.options, "names"])
            raise UsageError(f"{unknown[0]!r} is not an argument", hint=f"there are {known}")
        if dry_run and self.dry_run is None:
            raise UsageError("there is no dry run of this kind")
        words = [*self.command, *(self.dry_run or () if dry_run else self.applied)]
        for key, value in args.items():
            if key in self.options and value is not None:
                option, check = self.options[key]
                words += [option, check(value)]
        return [*words, "--", *self.names_in(args)]

    def names_in(self, args: Mapping[str, Any]) -> list[str]:
        """Return the names of videos.  Raises `UsageError` for too few or too many."""
        given: list[Any] = []
        for key in ("video", "left", "right"):
            if args.get(key) is not None:
                given.append(args[key])
        more = args.get("names") or []
        if not isinstance(more, list):
            raise UsageError("names must be a list")
        given += more
        if not all(isinstance(one, str) and one and "\0" not in one for one in given):
            raise UsageError("names must be a list of texts")
        least, most = self.names
        if not least <= len(given) <= most:
            raise UsageError(f"there must be {least} to {most} names, got {len(given)}")
        return given


_SPAN_OPTION = {"span": ("--span", _span)}
_TILING = {"codec": ("--codec", _word), "psnr": ("--psnr", _number)}

KINDS: Mapping[str, JobKind] = MappingProxyType(
    {
        "retile": JobKind(
            ("retile",),
            "make tiles: roi (WxH+X+Y), around (labels) or layout; span, codec, psnr",
            {
                "roi": ("--roi", _roi),
                "around": ("--around", _word),
                "layout": ("--layout", _word),
                **_SPAN_OPTION,
                **_TILING,
            },
            names=(1, _MOST_NAMES),
            is_order=True,
            needs_verified=True,
            dry_run=("--dry-run",),
        ),
        "render": JobKind(
            ("render",),
            "make renditions: size (WxH); span, codec, psnr or for",
            {
                "size": ("--size", _size),
                "for": ("--for", _word),
                **_SPAN_OPTION,
                **_TILING,
            },
            names=(1, _MOST_NAMES),
            is_order=True,
            needs_verified=True,
            dry_run=("--dry-run",),
            applied=("--yes",),
        ),
        "detect": JobKind(
            ("detect",),
            "find moving objects: with (motion); every, span, label",
            {
                "with": ("--with", _detector),
                "every": ("--every", _number),
                "label": ("--label", _word),
                **_SPAN_OPTION,
            },
            names=(1, _MOST_NAMES),
            is_order=True,
        ),
        "tune": JobKind(("tune",), "make the tiles that pay", is_order=True, dry_run=()),
        "verify": JobKind(("verify",), "decode videos from end to end", names=(1, _MOST_NAMES)),
        "scrub": JobKind(("scrub",), "compare stored data with its checksums"),
        "fsck": JobKind(("fsck",), "check the store for problems", names=(0, 0)),
        "age": JobKind(
            ("age",),
            "apply the policies to old videos",
            dry_run=("--dry-run", "--quick"),
            applied=("--apply",),
        ),
        "overlap": JobKind(
            ("overlap", "find", "--refused"), "find videos that show the same place"
        ),
        "overlap-join": JobKind(
            ("overlap", "join"),
            "join two videos: left and right",
            names=(2, 2),
            dry_run=("--dry-run",),
        ),
        "overlap-split": JobKind(
            ("overlap", "split", "--yes"), "delete joined data: left and right", names=(1, 2)
        ),
    }
)
"""All kinds of jobs."""
