"""Retention policies, holds and entries of the log of originals, with their text forms, and the
rule for clocks. A clock is trusted if it is not behind the newest time that the store has
recorded, and at most 30 days after ages were last acted upon. Before ages are acted upon for
the first time, the 30 days count from the first video.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from vfsd.core.budgets import MAX_BYTES_TEXT, Limit
from vfsd.core.label_query import format_labels, parse_labels
from vfsd.errors import ForbiddenError, UsageError
from vfsd.validation import not_one_of, require_storable_text, within_64_bits

REPLACED_BYTES_KEYWORD = "saved"
"""Key in the details of a log entry if other files have the same bytes."""
CODEC = "hevc"
"""Default codec for replacements of originals."""
CODECS = ("h264", "hevc", "av1")
PSNR = 40.0
"""dB from which on VSS treats an encoding as lossless (section 5.1 of its paper)."""
_LEAST_PSNR, _MOST_PSNR = 20.0, 80.0
_MOST_READS = 100.0
# The codec that all browsers play, and its greatest width.
_BROWSER_CODEC, _MOST_WIDTH = "h264", 8192
# The parts between commas that are not in quotes.
_PART = re.compile(r'(?:^|(?<=,))((?:[^,"]|"[^"]*(?:"|$))*)')


class Fate(Enum):
    """Whether a policy allows replacing an original."""

    KEEP = "keep"  #: never replaced; deleted only if `delete_after` or a limit says so
    REPLACEABLE = "replaceable"  #: an encoding of sufficient quality may replace it


class AgeClock(Enum):
    """The time from which the ages of a policy count."""

    LATEST = "latest"  #: the latest of recording, arrival in the store and change of the file
    RECORDING = "recording"  #: the end of the recording if a trusted clock says it, else LATEST


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Rules for the original of a video, or for the originals in a directory, and the default
    quality of reads.

    The text form is a comma-separated list of ``key=value``: ``original=replaceable,psnr=40``.
    Ages are seconds; in text they have a unit: ``12h``, ``30d``, ``2w``, ``1y`` (365 days).
    """

    original: Fate = Fate.KEEP
    psnr: float = PSNR
    """Minimum dB of each plane of each picture of a replacement, against the first original."""
    codec: str = CODEC  #: codec of a replacement by age
    replace_after: int | None = None  #: age at which it is replaced; None: never
    decay_after: int | None = None  #: age at which only areas matching `keep` keep their quality
    keep: str | None = None  #: labels, as for `vfsd.core.label_query.parse_labels`
    delete_after: int | None = None  #: age at which the video is deleted
    delete_below: int | None = None  #: bytes: delete the oldest while less disk space is free
    delete_above: int | None = None
    """Bytes: delete the oldest while the videos of the policy's directory take more."""
    reads: float | None = None
    """Minimum luma dB of tiles for reads that request none; None: the default of the store."""
    clock: AgeClock = AgeClock.LATEST  #: the time from which ages count
    browser: int | None = None
    """Greatest width of the H.264 rendition that is made once for web browsers; None: none."""

    @classmethod
    def parse(cls, text: str) -> RetentionPolicy:
        """Parse the text form.  Raises `UsageError`."""
        found: dict[str, Any] = {}
        for part in _PART.findall(text):
            key, equals, value = (each.strip() for each in part.partition("="))
            name = key.replace("-", "_")
            if not equals or name not in _PARSERS:
                hint = "keys: " + ", ".join(sorted(_PARSERS)).replace("_", "-")
                if not equals and "keep" in found:
                    hint += f"; join labels with |: keep={found['keep']}|{part.strip()}"
                raise UsageError(f"{part!r} is not a rule of a retention policy", hint=hint)
            if name in found:
                raise UsageError(f"{key!r} is given twice")
            try:
                found[name] = _PARSERS[name](value)
            except UsageError:
                raise
            except ValueError:
                choices: Mapping[str, type[Enum]] = {"original": Fate, "clock": AgeClock}
                known = " or ".join(one.value for one in choices.get(name, ()))
                raise UsageError(
                    f"{key} has an invalid value: {value!r}",
                    hint=f"must be {known}" if known else None,
                ) from None
        chosen = cls(**found)
        for name in ("psnr", "codec"):
            if name in found and chosen.original is Fate.KEEP:
                raise UsageError(
                    f"{name} applies to replacements, but the policy keeps the original",
                    hint="add original=replaceable",
                )
        if "clock" in found and not found.keys() & _AGED:
            raise UsageError(
                "clock applies to ages, but the policy has no rule for them",
                hint="for example delete-after=30d,clock=recording",
            )
        return chosen

    def __post_init__(self) -> None:
        if not _LEAST_PSNR <= self.psnr <= _MOST_PSNR:
            raise UsageError(
                f"psnr must be {_LEAST_PSNR:g} to {_MOST_PSNR:g} dB, got {self.psnr:g}"
            )
        if self.reads is not None and not 0 <= self.reads <= _MOST_READS:
            raise UsageError(f"reads must be 0 to {_MOST_READS:g} dB, got {self.reads:g}")
        if self.original is Fate.KEEP and (self.replace_after, self.decay_after) != (None, None):
            raise UsageError(
                "replace-after and decay-after require original=replaceable",
                hint="add original=replaceable",
            )
        if self.browser is not None and not 2 <= self.browser <= _MOST_WIDTH:
            raise UsageError(
                f"browser must have a width of 2 to {_MOST_WIDTH} pixels, got {self.browser}",
                hint=f"for example browser={_BROWSER_CODEC}:1280",
            )
        if (self.decay_after is None) != (self.keep is None):
            raise UsageError(
                "decay-after and keep (labels of areas to keep) must be given together"
            )
        if self.keep is not None:
            require_storable_text(self.keep, "keep")
        ages = [
            age
            for age in (self.replace_after, self.decay_after, self.delete_after)
            if age is not None
        ]
        for age in ages:
            within_64_bits(age, "an age in seconds: ", hint="for example 12h, 30d, 2w or 1y")
        hint = f"give at most {MAX_BYTES_TEXT}"
        for key, limit in (
            ("delete-below", self.delete_below),
            ("delete-above", self.delete_above),
        ):
            if limit is not None:
                within_64_bits(limit, f"{key}: ", hint=hint)
        if ages != sorted(set(ages)):
            raise UsageError("ages must ascend: replace-after, decay-after, delete-after")

    def __str__(self) -> str:
        """Return the text form that `parse` accepts."""
        parts = [f"original={self.original.value}"]
        if self.original is Fate.REPLACEABLE:
            parts.append(f"psnr={self.psnr:g}")
            if self.codec != CODEC:
                parts.append(f"codec={self.codec}")
        for key, age in (("replace-after", self.replace_after), ("decay-after", self.decay_after)):
            if age is not None:
                parts.append(f"{key}={age_text(age)}")
        if self.keep is not None:
            parts.append(f"keep={format_labels(parse_labels(self.keep))}")
        if self.delete_after is not None:
            parts.append(f"delete-after={age_text(self.delete_after)}")
        if self.delete_below is not None:
            parts.append(f"delete-below={self.delete_below}")
        if self.delete_above is not None:
            parts.append(f"delete-above={self.delete_above}")
        if self.reads is not None:
            parts.append(f"reads={self.reads:g}")
        if self.clock is not AgeClock.LATEST:
            parts.append(f"clock={self.clock.value}")
        if self.browser is not None:
            parts.append(f"browser={_BROWSER_CODEC}:{self.browser}")
        return ",".join(parts)


def most_protective(policies: Sequence[RetentionPolicy]) -> RetentionPolicy:
    """Return the policy that satisfies all of `policies`: those of the directories of a video's
    names.

    If they keep different labels, the video does not decay.  If one does not set `reads`, the
    minimum of the store applies.  The widest of their browser renditions is made.
    """
    if len(policies) < 2:
        return policies[0] if policies else RetentionPolicy()
    is_kept = any(one.original is Fate.KEEP for one in policies)
    is_to_decay = not is_kept and len({one.keep for one in policies}) == 1
    return RetentionPolicy(
        original=Fate.KEEP if is_kept else Fate.REPLACEABLE,
        psnr=max(one.psnr for one in policies),
        codec=policies[0].codec,
        replace_after=None if is_kept else _latest(one.replace_after for one in policies),
        decay_after=_latest(one.decay_after for one in policies) if is_to_decay else None,
        keep=policies[0].keep if is_to_decay else None,
        delete_after=_latest(one.delete_after for one in policies),
        delete_below=None
        if any(one.delete_below is None for one in policies)
        else min(one.delete_below or 0 for one in policies),
        delete_above=_latest(one.delete_above for one in policies),
        reads=None
        if any(one.reads is None for one in policies)
        else max(one.reads or 0 for one in policies),
        clock=AgeClock.RECORDING
        if all(one.clock is AgeClock.RECORDING for one in policies)
        else AgeClock.LATEST,
        browser=max((one.browser for one in policies if one.browser is not None), default=None),
    )


def _latest(limits: Iterable[int | None]) -> int | None:
    """Return the largest of some ages or byte counts; None: never."""
    found = list(limits)
    return None if None in found else max(limit or 0 for limit in found)


def age_text(seconds: int) -> str:
    """Return the text form of an age, in the largest unit that expresses it exactly."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _UNITS[unit] == 0:
            return f"{seconds // _UNITS[unit]}{unit}"
    return f"{seconds}s"


def _age(text: str) -> int:
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isdigit() or int(number) == 0:
        raise UsageError(
            f"age must be a number with a unit, got {text!r}", hint="for example 12h, 30d, 2w or 1y"
        )
    return int(number) * _UNITS[unit]


def _labels(text: str) -> str:
    parse_labels(text)
    return text


def _bytes(text: str) -> int:
    with suppress(UsageError):  # its message is about budgets
        found = Limit.parse(text).bytes
        if found is not None:
            return found
    raise UsageError(
        f"size must be a number of bytes, got {text!r}",
        hint=f"for example 500M or 50G, and at most {MAX_BYTES_TEXT}",
    )


def _browser_width(text: str) -> int:
    codec, _, width = text.partition(":")
    if codec != _BROWSER_CODEC or not (width.isascii() and width.isdigit()):
        raise UsageError(
            f"browser must be {_BROWSER_CODEC}:WIDTH, got {text!r}",
            hint=f"for example browser={_BROWSER_CODEC}:1280",
        )
    return int(width)


def _codec(text: str) -> str:
    if text not in CODECS:
        raise not_one_of("codec", text, CODECS)
    return text


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "original": Fate,
    "psnr": float,
    "codec": _codec,
    "replace_after": _age,
    "decay_after": _age,
    "keep": _labels,
    "delete_after": _age,
    "delete_below": _bytes,
    "delete_above": _bytes,
    "reads": float,
    "clock": AgeClock,
    "browser": _browser_width,
}
_AGED = {"replace_after", "decay_after", "delete_after", "delete_below", "delete_above"}


@dataclass(frozen=True, slots=True)
class Share:
    """The size, and the limit, of all videos under the policy of one directory."""

    limit: int  #: bytes: the oldest are deleted while there are more
    sizes: Mapping[str, int]
    """Bytes that deleting each original would free, by digest.  Excludes held videos, files indexed
    in place, and bytes that a file elsewhere shares.
    """
    besides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For each digest, the inodes of other directories that contain the video under another name.
    It is deleted only if these exceed their limits as well.
    """

    @property
    def taken(self) -> int:
        """Bytes of all of them."""
        return sum(self.sizes.values())


@dataclass(frozen=True, slots=True)
class Hold:
    """Prevents every change and removal of a video."""

    id: int  #: 0: not stored yet
    video_id: int
    reason: str
    at_ns: int  #: Unix time


class Action(Enum):
    """Actions on originals that the log records."""

    REPLACED = "replaced"  #: by another encoding
    DECAYED = "decayed"  #: replaced by an encoding with full quality only in the kept areas
    DELETED = "deleted"
    LEFT = "left"  #: its policy cannot be applied, or would save nothing
    HELD = "held"
    RELEASED = "released"  #: from a hold


@dataclass(frozen=True, slots=True)
class OriginalLogEntry:
    """An entry in the log of originals; it outlives its video."""

    id: int  #: ascending in time; 0: not stored yet
    at_ns: int  #: Unix time
    action: Action
    video_id: int
    name: str  #: path from the root of the store at that time
    reason: str
    digest: str  #: blake3 of the file before, hexadecimal
    size: int  #: in bytes
    new_digest: str | None = None  #: of the file afterwards; None: no file, or unchanged
    new_size: int | None = None
    psnr: float | None = None
    """Lower bound in dB for its pictures against the first original, along the chain of
    measurements; None: unknown.
    """
    details: Mapping[str, Any] | None = None  #: measurements, and settings of the encoder

    @property
    def saved(self) -> int:
        """Bytes that it freed; negative if the bytes before it remain in use by other files."""
        recorded = (self.details or {}).get(REPLACED_BYTES_KEYWORD)
        if isinstance(recorded, int):
            return recorded
        if self.action is Action.DELETED:
            return self.size
        return 0 if self.new_size is None else self.size - self.new_size


def hold_message(holds: list[Hold]) -> str:
    """Return the reasons why a video must not be changed."""
    return "; ".join(hold.reason for hold in holds)


_SECOND_NS = 1_000_000_000
_DAY_NS = 86_400 * _SECOND_NS
MAX_PAUSE_DAYS = 30
"""A clock that has jumped ahead by less deletes footage early by less.  Weekly and monthly jobs
need no option."""
# The clocks of machines that share a store differ by up to this much.
_SLACK_NS = 60 * _SECOND_NS
# The start of 2024, which is before any store. A clock that has lost its time starts earlier.
_FIRST_NS = 1_704_067_200 * _SECOND_NS


@dataclass(frozen=True, slots=True)
class TrustedClock:
    """The last time at which ages were acted upon."""

    at_ns: int  #: Unix time
    known: Mapping[str, int]
    """The largest row number of each table at that time.  The times of these rows are not checked
    again."""

    def earliest_ns(self, now_ns: int) -> int:
        """The earliest time at which a row can have been written since."""
        return self.at_ns if self.at_ns <= now_ns + _SLACK_NS else _FIRST_NS


def require_trusted_clock(now_ns: int, newest_ns: int | None, since_ns: int | None) -> None:
    """Raise `ForbiddenError` unless ages may be acted upon at `now_ns`.

    Args:
        now_ns: the time of this machine's clock, as Unix time.
        newest_ns: the newest time that the store has recorded; None: it has recorded none.
        since_ns: when ages were last acted upon, or else when the first video was stored; None:
            there is no video.
    """
    if newest_ns is not None and newest_ns > now_ns + _SLACK_NS:
        raise ForbiddenError(
            f"the clock says {_text(now_ns)}, which is behind {_text(newest_ns)}, the newest time "
            "that the store has recorded",
            hint="set the clock of this machine; if it is right now, give --clock-is-right",
        )
    if since_ns is not None and now_ns - since_ns > MAX_PAUSE_DAYS * _DAY_NS:
        raise ForbiddenError(
            f"the clock says {_text(now_ns)}, which is {(now_ns - since_ns) // _DAY_NS} days after "
            f"{_text(since_ns)}, when ages were last acted upon or the first video was stored: the "
            "clock may have jumped ahead",
            hint=f"if the clock is right, give --clock-is-right; runs that are at most "
            f"{MAX_PAUSE_DAYS} days apart do not need it",
        )


def is_plausible_time(at_ns: int) -> bool:
    """Whether a clock that shows this Unix time may be right."""
    return at_ns >= _FIRST_NS


def implausible_times(
    now_ns: int, recorded: Iterable[tuple[int, int]], trusted: TrustedClock | None
) -> set[int]:
    """The ids of the rows whose recorded time cannot be right.

    `recorded` are the ids and times of rows that were written after `trusted`.  A time is wrong if
    it lies in the future, or before ages were last acted upon.
    """
    earliest_ns = _FIRST_NS if trusted is None else trusted.earliest_ns(now_ns)
    return {
        row for row, at_ns in recorded if not earliest_ns - _SLACK_NS <= at_ns <= now_ns + _SLACK_NS
    }


def _text(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns // _SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
