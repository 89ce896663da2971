"""What samples mean, as files tell it: numbers of ISO/IEC 23091-2, and FFmpeg's names of them.

What is not listed here (unspecified, reserved) is not told.
"""

from __future__ import annotations

from dataclasses import dataclass

from vfsd.core.model import MediaInfo

_NOT_TOLD = 2
LIMITED_RANGE, FULL_RANGE = 1, 2
"""Numbers of AVColorRange, as pictures and decoders have them."""
RANGES = {LIMITED_RANGE: "limited", FULL_RANGE: "full"}
SPACES = {
    0: "rgb",
    1: "bt709",
    4: "fcc",
    5: "bt470bg",
    6: "smpte170m",
    7: "smpte240m",
    8: "ycgco",
    9: "bt2020nc",
    10: "bt2020c",
    14: "ictcp",
}
PRIMARIES = {
    1: "bt709",
    4: "bt470m",
    5: "bt470bg",
    6: "smpte170m",
    7: "smpte240m",
    8: "film",
    9: "bt2020",
    10: "smpte428",
    11: "smpte431",
    12: "smpte432",
    22: "ebu3213",
}
TRANSFERS = {
    1: "bt709",
    4: "gamma22",
    5: "gamma28",
    6: "smpte170m",
    7: "smpte240m",
    8: "linear",
    9: "log100",
    10: "log316",
    11: "iec61966-2-4",
    12: "bt1361e",
    13: "iec61966-2-1",
    14: "bt2020-10",
    15: "bt2020-12",
    16: "smpte2084",
    17: "smpte428",
    18: "arib-std-b67",
}


@dataclass(frozen=True, slots=True)
class ColorCodes:
    """What samples mean, in the numbers of ISO/IEC 23091-2; 2: not told."""

    matrix: int
    primaries: int
    transfer: int
    is_full_range: bool | None


def color_codes(
    color_range: str | None, space: str | None, primaries: str | None, transfer: str | None
) -> ColorCodes:
    """The numbers of names as `MediaInfo` has them; FFmpeg's are those of ISO/IEC 23091-2."""
    is_full = None if color_range is None else color_range == "full"
    return ColorCodes(
        _code(SPACES, space), _code(PRIMARIES, primaries), _code(TRANSFERS, transfer), is_full
    )


def told_colors(media: MediaInfo) -> ColorCodes | None:
    """What a file tells of the colours of its pictures; None where that is nothing.

    Whether packets tell it or the container does: who copies packets has to say it again.
    """
    codes = color_codes(
        media.color_range, media.color_space, media.color_primaries, media.color_transfer
    )
    is_told = codes != color_codes(None, None, None, None)
    return codes if is_told else None


def _code(names: dict[int, str], name: str | None) -> int:
    return next((code for code, known in names.items() if known == name), _NOT_TOLD)
