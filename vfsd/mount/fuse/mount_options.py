"""Parses mount options (``-o``): those of vfsd, those for libfuse and the kernel, and those of
mount(8) that are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from vfsd.errors import UsageError

_DESCRIBED = {
    "ro, rw": "read only; or read and write, the default",
    "allow_other": "other users may enter; owners and modes apply",
    "allow_root": "root may enter",
    "nonempty": "the mount point may contain files; the mount hides them",
    "passthrough": "the kernel reads videos itself; needs root, Linux 6.9 and libfuse 3.14",
    "dev, suid": "device files and set-uid programs work; root only",
    "noexec": "programs in the mount do not run",
    "sync, dirsync": "every write, or every change of a name, is durable when it returns",
    "uid=N, gid=N, umask=N": "show everything with this owner, group or umask (octal)",
    "attr_timeout=S": "lifetime of attributes in the kernel's cache, in seconds (1)",
    "entry_timeout=S": "lifetime of names in the kernel's cache, in seconds (1)",
    "negative_timeout=S": "lifetime of missing names in the kernel's cache, in seconds (0)",
    "max_threads=N": "requests that are answered at once (1088)",
    "max_idle_threads=N": "threads that stay without a request (16)",
    "max_background=N": "requests that the kernel sends ahead (1024)",
    "max_read=BYTES": "largest read request",
    "auto_unmount": "unmount if the mount process is killed",
    "noforget, remember=S": "file handles stay valid for the mount, or for S seconds; for NFS "
    "servers in user space",
    "clone_fd": "each thread has its own channel to the kernel",
    "log=FILE": "as --log; the name must not contain a comma",
    "log_level=LEVEL": "as --log-level: error, warning, info or debug",
    "debug": "log every request",
}
_SWITCHES = frozenset(
    [
        "allow_other",
        "allow_root",
        "default_permissions",
        "auto_unmount",
        "clone_fd",
        "noforget",
        "debug",
        "suid",
        "nosuid",
        "dev",
        "nodev",
        "exec",
        "noexec",
        "async",
        "sync",
        "dirsync",
        "noatime",
    ]
)
_LARGEST = (1 << 32) - 1
# The largest allowed value of each option.
_NUMBERS = {
    "uid": _LARGEST - 1,  # the largest uid_t stands for -1, an invalid id
    "gid": _LARGEST - 1,
    "umask": 0o7777,
    "remember": _LARGEST,
    "max_threads": _LARGEST,
    "max_idle_threads": _LARGEST,
    "max_background": _LARGEST,
    "max_read": _LARGEST,
}
_OCTAL = frozenset(["umask"])
_SECONDS = frozenset(("attr_timeout", "entry_timeout", "negative_timeout"))
_DECIMAL = re.compile(r"[0-9.]+(e[+-]?[0-9]+)?", re.IGNORECASE)
LOG_LEVELS = ("error", "warning", "info", "debug")
_VFSD_OPTIONS = ("ro", "rw", "nonempty", "passthrough", "log", "log_level")
_IGNORED = frozenset(
    [
        "defaults",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "owner",
        "group",
        "nofail",
        "_netdev",
        "atime",
        "diratime",
        "nodiratime",
        "relatime",
        "norelatime",
        "strictatime",
        "nostrictatime",
        "lazytime",
        "nolazytime",
        "loud",
        "silent",
        "iversion",
        "noiversion",
        "mand",
        "nomand",
    ]
)
_IGNORED_PREFIXES = ("x-", "X-", "comment=", "user=")


@dataclass(frozen=True)
class MountOptions:
    """Parsed mount options."""

    read_only: bool = False
    nonempty: bool = False  #: the mount point may contain files
    passthrough: bool = False  #: the kernel reads stored videos directly
    log: Path | None = None  #: the log file
    log_level: str | None = None  #: one of `LOG_LEVELS`
    passed_on: tuple[str, ...] = ()  #: unchanged options for libfuse and the kernel

    def value(self, key: str) -> str | None:
        """Return the value of an option ``key=value`` that is passed on; the last one counts."""
        values = [word.partition("=")[2] for word in self.passed_on if word.startswith(key + "=")]
        return values[-1] if values else None

    @property
    def is_shared(self) -> bool:
        """Whether other users may access the mount."""
        return "allow_other" in self.passed_on or "allow_root" in self.passed_on

    @property
    def syncs_names(self) -> bool:
        """Whether a change of a name is synced before it returns.

        The kernel leaves that to the file system; it requests syncs only for writes.
        """
        return "sync" in self.passed_on or "dirsync" in self.passed_on


def described_options() -> Mapping[str, str]:
    """Return the options, or groups of related ones, with their descriptions."""
    return MappingProxyType(_DESCRIBED)


def parse_options(given: Iterable[str]) -> MountOptions:
    """Parse ``-o`` arguments, each with one or more options separated by commas.

    Options of fstab that only mount(8) and systemd use are ignored. Raises `UsageError` for unknown
    options and invalid values.
    """
    read_only = nonempty = passthrough = False
    log: Path | None = None
    log_level: str | None = None
    passed_on: list[str] = []
    for word in (word.strip() for argument in given for word in argument.split(",")):
        if word in ("ro", "rw"):
            read_only = word == "ro"
        elif word == "nonempty":
            nonempty = True
        elif word == "passthrough":
            passthrough = True
        elif word.startswith("log="):
            log = _log_file(word)
        elif word.startswith("log_level="):
            log_level = _log_level(word)
        elif word in _SWITCHES or _is_setting(word):
            passed_on.append(word)
        elif word == "remount":
            raise UsageError(
                "a mount cannot be remounted with other options",
                hint="unmount it with `vfsd umount DIR`, then mount it with the new options",
            )
        elif word and word not in _IGNORED and not word.startswith(_IGNORED_PREFIXES):
            known = sorted({*_SWITCHES, *_NUMBERS, *_SECONDS, *_VFSD_OPTIONS})
            raise UsageError(f"unknown mount option {word!r}", hint=f"known: {', '.join(known)}")
    return MountOptions(read_only, nonempty, passthrough, log, log_level, tuple(passed_on))


def _log_file(word: str) -> Path:
    name = word.partition("=")[2]
    if not name:
        raise UsageError(
            "mount option 'log' must be a file, got ''", hint="for example log=/var/log/vfsd.log"
        )
    return Path(name)


def _log_level(word: str) -> str:
    level = word.partition("=")[2]
    if level not in LOG_LEVELS:
        raise UsageError(
            f"mount option 'log_level' must be one of {', '.join(LOG_LEVELS)}, got {level!r}"
        )
    return level


def _is_setting(word: str) -> bool:
    key, equals, value = word.partition("=")
    if not equals or (key not in _NUMBERS and key not in _SECONDS):
        return False
    # Python also accepts blanks, signs and underscores; libfuse and the kernel do not.
    number: float = -1
    with suppress(ValueError):
        if key in _SECONDS and _DECIMAL.fullmatch(value):
            number = float(value)
        elif key in _NUMBERS and value.isascii() and value.isdecimal():
            number = int(value, 8 if key in _OCTAL else 10)
    largest = _NUMBERS.get(key, _LARGEST)
    if not 0 <= number <= largest:
        wanted = (
            f"an octal number up to {largest:o}" if key in _OCTAL else f"a number up to {largest}"
        )
        raise UsageError(f"mount option {key!r} must be {wanted}, got {value!r}")
    return True
