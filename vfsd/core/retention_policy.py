"""Retention policies, holds and entries of the log of originals, with their text forms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from vfsd.core.budgets import MAX_BYTES_TEXT, Limit
from vfsd.core.label_query import format_labels, parse_labels
from vfsd.errors import UsageError
from vfsd.validation import not_one_of, require_storable_text, within_64_bits

REPLACED_BYTES_KEYWORD = "saved"
"""What lines of the log have in their details where other files have the same bytes."""
CODEC = "hevc"
"""What originals are encoded in when nothing is said."""
CODECS = ("h264", "hevc", "av1")
PSNR = 40.0
"""dB from which on VSS takes an encoding for lossless (section 5.1 of its paper)."""
_LEAST_PSNR, _MOST_PSNR = 20.0, 80.0
_MOST_READS = 100.0
_PART = re.compile(r'(?:^|(?<=,))((?:[^,"]|"[^"]*(?:"|$))*)')
"""What stands between commas that are not in quotes."""


class Fate(Enum):
    """What a policy says of an original."""

    KEEP = "keep"  #: nothing takes its place; it is deleted when that is said, too
    REPLACEABLE = "replaceable"  #: an encoding that is good enough may take its place


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What may become of the original of a video, or of those in a directory, and what reads of it
    take when nothing is said.

    Its text is a list of ``key=value``, joined by commas: ``original=replaceable,psnr=40``.  Ages
    are seconds, in text with a unit: ``12h``, ``30d``, ``2w``, ``1y`` (of 365 days).
    """

    original: Fate = Fate.KEEP
    psnr: float = PSNR
    """dB that each picture of what takes its place has at least, in each plane, against the very
    first original."""
    codec: str = CODEC  #: that it is encoded in when its age says so
    replace_after: int | None = None  #: age at which it is replaced; None: it is not by age
    decay_after: int | None = None  #: age at which only what `keep` finds keeps its quality
    keep: str | None = None  #: labels, as of `vfsd.core.label_query.parse_labels`
    delete_after: int | None = None  #: age at which the video is deleted
    delete_below: int | None = None  #: bytes: the oldest go while the disk has less of them free
    delete_above: int | None = None
    """Bytes: the oldest go while the videos of the directory that it was said of have more."""
    reads: float | None = None
    """dB of luma that tiles need so that reads which ask for none may use them; None: as the store
    has it."""

    @classmethod
    def parse(cls, text: str) -> RetentionPolicy:
        """Raises `UsageError`."""
        found: dict[str, Any] = {}
        for part in _PART.findall(text):
            key, equals, value = (each.strip() for each in part.partition("="))
            name = key.replace("-", "_")
            if not equals or name not in _PARSERS:
                hint = "keys: " + ", ".join(sorted(_PARSERS)).replace("_", "-")
                if not equals and "keep" in found:
                    hint += f"; labels are joined by |: keep={found['keep']}|{part.strip()}"
                raise UsageError(f"{part!r} says nothing of originals", hint=hint)
            if name in found:
                raise UsageError(f"{key!r} is said twice")
            try:
                found[name] = _PARSERS[name](value)
            except UsageError:
                raise
            except ValueError:
                hint = f"write {' or '.join(one.value for one in Fate)}"
                raise UsageError(
                    f"{key} has an invalid value: {value!r}",
                    hint=hint if key == "original" else None,
                ) from None
        chosen = cls(**found)
        for name in ("psnr", "codec"):
            if name in found and chosen.original is Fate.KEEP:
                raise UsageError(
                    f"{name} is about what takes an original's place, and this one is kept",
                    hint="say original=replaceable as well",
                )
        return chosen

    def __post_init__(self) -> None:
        if not _LEAST_PSNR <= self.psnr <= _MOST_PSNR:
            raise UsageError(
                f"originals are held to {_LEAST_PSNR:g} to {_MOST_PSNR:g} dB, not {self.psnr:g}"
            )
        if self.reads is not None and not 0 <= self.reads <= _MOST_READS:
            raise UsageError(f"reads ask for 0 to {_MOST_READS:g} dB, not {self.reads:g}")
        if self.original is Fate.KEEP and (self.replace_after, self.decay_after) != (None, None):
            raise UsageError(
                "what is kept is neither replaced nor decays",
                hint="say original=replaceable as well",
            )
        if (self.decay_after is None) != (self.keep is None):
            raise UsageError("decay-after and keep (labels of what keeps its quality) go together")
        if self.keep is not None:
            require_storable_text(self.keep, "labels of what keeps its quality")
        ages = [
            age
            for age in (self.replace_after, self.decay_after, self.delete_after)
            if age is not None
        ]
        for age in ages:
            within_64_bits(age, "an age in seconds: ", hint="write 12h, 30d, 2w or 1y")
        hint = f"a disk has no more than {MAX_BYTES_TEXT}"
        for key, limit in (
            ("delete-below", self.delete_below),
            ("delete-above", self.delete_above),
        ):
            if limit is not None:
                within_64_bits(limit, f"{key}: ", hint=hint)
        if ages != sorted(set(ages)):
            raise UsageError("videos are replaced first, decay then, and are deleted last")

    def __str__(self) -> str:
        """As `parse` takes it."""
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
        return ",".join(parts)


def most_protective(policies: Sequence[RetentionPolicy]) -> RetentionPolicy:
    """What all of them allow: of a video with several names, each in a directory with its own.

    Where they keep different labels it does not decay; where one says nothing of reads, the store's
    minimum counts.
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
    )


def _latest(limits: Iterable[int | None]) -> int | None:
    """The highest of some ages, or bytes; None: never."""
    found = list(limits)
    return None if None in found else max(limit or 0 for limit in found)


def age_text(seconds: int) -> str:
    """As a policy has it, in the largest unit that tells it exactly."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _UNITS[unit] == 0:
            return f"{seconds // _UNITS[unit]}{unit}"
    return f"{seconds}s"


def _age(text: str) -> int:
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isdigit() or int(number) == 0:
        raise UsageError(
            f"an age must be like 12h, 30d, 2w or 1y, got {text!r}", hint="write 12h, 30d, 2w or 1y"
        )
    return int(number) * _UNITS[unit]


def _labels(text: str) -> str:
    parse_labels(text)
    return text


def _bytes(text: str) -> int:
    with suppress(UsageError):  # which would talk of a budget
        found = Limit.parse(text).bytes
        if found is not None:
            return found
    raise UsageError(
        f"the size must be a number of bytes, got {text!r}",
        hint=f"write 500M or 50G, and no more than {MAX_BYTES_TEXT}",
    )


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
}


@dataclass(frozen=True, slots=True)
class Share:
    """What the videos have together that go by the policy of one directory, and may have."""

    limit: int  #: bytes: the oldest go while there are more
    sizes: Mapping[str, int]
    """Bytes that would be free if all of them went which may, by the digests of originals: without
    those of held ones, of files indexed in place, and those that a file elsewhere has as well."""
    besides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Inodes of the other directories that have such a video under another name, by its digest: it
    goes only if they have too much as well."""

    @property
    def taken(self) -> int:
        """Bytes of all of them."""
        return sum(self.sizes.values())


@dataclass(frozen=True, slots=True)
class Hold:
    """Nobody may change or remove a video as long as it has one."""

    id: int  #: 0: not there yet
    video_id: int
    reason: str
    at_ns: int  #: Unix time


class Action(Enum):
    """What was done to an original, or said of it."""

    REPLACED = "replaced"  #: another encoding has its place
    DECAYED = "decayed"  #: another encoding has, and only what was to be kept its quality
    DELETED = "deleted"
    LEFT = "left"  #: what its policy asks for cannot be done, or would save nothing
    HELD = "held"
    RELEASED = "released"  #: from a hold


@dataclass(frozen=True, slots=True)
class OriginalLogEntry:
    """A line of the log of originals; it stays when its video is gone."""

    id: int  #: by order of time; 0: not there yet
    at_ns: int  #: Unix time
    action: Action
    video_id: int
    name: str  #: path from the root of the store, as it was then
    reason: str
    digest: str  #: blake3 of the file before, hexadecimal
    size: int  #: its bytes
    new_digest: str | None = None  #: of the file afterwards; None: there was none, or the same
    new_size: int | None = None
    psnr: float | None = None
    """dB that its pictures have at least against the very first original, by the chain of what was
    measured; None: nothing is said."""
    details: Mapping[str, Any] | None = None  #: what was measured, and how it was made

    @property
    def saved(self) -> int:
        """Bytes that are free since; negative where others have the bytes before, which stay."""
        told = (self.details or {}).get(REPLACED_BYTES_KEYWORD)
        if isinstance(told, int):
            return told
        if self.action is Action.DELETED:
            return self.size
        return 0 if self.new_size is None else self.size - self.new_size


def hold_message(holds: list[Hold]) -> str:
    """Why a video must stay as it is."""
    return "; ".join(hold.reason for hold in holds)
