"""The settings of a store, in ``config.toml`` next to the catalog; the user's state directory."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from vfsd.core.timebase import QuietHours, byte_count, byte_text
from vfsd.disk.tempfiles import write_atomically
from vfsd.errors import UsageError
from vfsd.validation import not_one_of

_HELP = {
    "verify": "the mount decodes every new video once in the background, and corrects its frame "
    "table",
    "workers": "threads of the mount that examine and index new files, at most 64",
    "examine_memory": "bytes of memory for the examination of one file, at least 64MiB",
    "examine_seconds": "CPU seconds for the examination of one file; 20 more for each MB of it",
    "decoder_memory": "bytes of frames that idle decoders keep, in each process",
    "minimum_psnr": "dB of luma that tiles and renditions need for reads that ask for none; a "
    "policy with `reads` takes precedence",
    "view_cache_bytes": "disk space for rendered views; with `-o passthrough`, a quarter holds "
    "whole views",
    "object_cache_bytes": "disk space for objects that were fetched from a bucket; 0: a tenth of "
    "the disk",
    "object_grace": "seconds that removed objects stay in a bucket, for open handles and restored "
    "catalogs; set it alike in all homes",
    "remembered_reads": "reads that the store remembers, the newest of all videos",
    "tune": "mounts make tiles and renditions in idle time, where past reads would have paid for "
    "them",
    "tune_cpu": "percent of one core for that, over a minute",
    "tune_max_load": "pause it while other processes use more than this percent of all cores; "
    "100: never",
    "tune_bytes": "disk space for all tiles that mounts make",
    "tune_quiet_hours": "hours that allow it, in local time, such as 22-6 or 12:30-13:15,19-7; "
    "empty: always",
    "admit_views": "segments that were encoded for views may become renditions",
    "compress": "mounts compress lossless tiles as budgets fill",
}

# Settings that accept units.
_BYTES = (
    "examine_memory",
    "decoder_memory",
    "view_cache_bytes",
    "object_cache_bytes",
    "tune_bytes",
)

# 1080p needs about this much. With much less the examiner cannot even report the shortage, and
# seems to hang.
_MINIMUM = {"examine_memory": 64 << 20, "object_cache_bytes": 0, "object_grace": 60}

# Larger values exceed limits of the system, or have no use. Both limits apply to new input; stores
# with other values can still be opened.
_MAXIMUM = {
    **dict.fromkeys(_BYTES, 1 << 60),
    "examine_seconds": 30 * 24 * 3600,
    "object_grace": 10 * 365 * 86400,
    "workers": 64,
    "minimum_psnr": 100,
    "remembered_reads": 10**9,
    "tune_cpu": 100_000,
    "tune_max_load": 100,
}


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings of a store; `describe` explains each."""

    verify: bool = True
    workers: int = 1
    examine_memory: int = 4 << 30
    examine_seconds: int = 600
    decoder_memory: int = 768 << 20
    minimum_psnr: int = 40
    view_cache_bytes: int = 1 << 30
    object_cache_bytes: int = 0
    object_grace: int = 86400
    remembered_reads: int = 100_000
    tune: bool = True
    tune_cpu: int = 100
    tune_max_load: int = 50
    tune_bytes: int = 10 << 30
    tune_quiet_hours: str = ""
    admit_views: bool = True
    compress: bool = True

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is not type(field.default):
                raise UsageError(f"the setting {field.name!r} must be {_kind(field.default)}")
            least = 0 if field.name == "object_cache_bytes" else 1
            if isinstance(value, int) and not isinstance(value, bool) and value < least:
                raise UsageError(
                    f"the setting {field.name!r} must be at least {least}, got {value}"
                )
        QuietHours.parse(self.tune_quiet_hours)

    @classmethod
    def load(cls, path: Path) -> StoreSettings:
        """Load the settings in `path`; defaults if the file is missing.

        Raises `UsageError` for unknown keys and wrong types.
        """
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: {error}", hint="correct it, or delete it") from error
        unknown = sorted(set(values) - set(_HELP))
        if unknown:
            wrong = not_one_of("a setting", unknown[0], _HELP)
            raise UsageError(f"{path}: {wrong}", hint=wrong.hint)
        try:
            return cls(**values)
        except UsageError as error:
            raise UsageError(f"{path}: {error}", hint="correct it, or delete it") from error

    def save(self, path: Path) -> None:
        """Write the settings with a comment for each."""
        lines = []
        for field in dataclasses.fields(self):
            text = _toml(getattr(self, field.name))
            lines += [f"# {_HELP[field.name]}", f"{field.name} = {text}", ""]
        write_atomically(path, "\n".join(lines))

    def with_text(self, key: str, text: str) -> StoreSettings:
        """Return a copy with one setting changed, parsed from user input. Raises `UsageError`."""
        if key not in _HELP:
            raise not_one_of("a setting", key, _HELP)
        if isinstance(getattr(self, key), bool):
            if text.lower() not in ("true", "false"):
                raise UsageError(
                    f"the setting {key!r} must be true or false, got {text!r}",
                    hint=f"for example `vfsd config {key} true`",
                )
            return self._with(key, text.lower() == "true")
        if isinstance(getattr(self, key), str):
            return self._with(key, text)
        return self._with(key, _within_bounds(key, _number(key, text)))

    def _with(self, key: str, value: object) -> StoreSettings:
        return StoreSettings(**(dataclasses.asdict(self) | {key: value}))


def describe(key: str) -> str:
    """Return a one-line description of a setting."""
    return _HELP[key]


def _number(key: str, text: str) -> int:
    try:
        return byte_count(text) if key in _BYTES else int(text)
    except ValueError:
        kind = "a number of bytes" if key in _BYTES else "a whole number"
        default = getattr(StoreSettings(), key)
        raise UsageError(
            f"the setting {key!r} must be {kind}, got {text!r}",
            hint=f"for example `vfsd config {key} {_setting_text(key, default)}`",
        ) from None


def _within_bounds(key: str, number: int) -> int:
    minimum, maximum = _MINIMUM.get(key, 1), _MAXIMUM.get(key, number)
    if minimum <= number <= maximum:
        return number
    bound = (
        f"least {_setting_text(key, minimum)}"
        if number < minimum
        else f"most {_setting_text(key, maximum)}"
    )
    raise UsageError(
        f"the setting {key!r} must be at {bound}, got {_setting_text(key, number)}",
        hint=f"its default is {_setting_text(key, getattr(StoreSettings(), key))}",
    )


def _setting_text(key: str, number: int) -> str:
    """Return a number as a user would type it."""
    return byte_text(number) if key in _BYTES else str(number)


def _kind(default: object) -> str:
    if isinstance(default, bool):
        return "true or false"
    return "a string" if isinstance(default, str) else "a whole number"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    # A basic string of TOML takes every escape that JSON writes.
    return json.dumps(value) if isinstance(value, str) else str(value)


def state_directory() -> Path:
    """Return the directory; it need not exist."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # required by the XDG specification
        state = os.path.expanduser("~/.local/state")
    return Path(state) / "vfsd"
