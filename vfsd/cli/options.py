"""Types of options (times, ranges, sizes, rates, regions), and the options that several commands
share.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import click

from vfsd.core.capture_time import parse_moment
from vfsd.core.label_query import parse_scalar
from vfsd.core.output_formats import PIXEL_LAYOUTS
from vfsd.core.timebase import byte_count, parse_span, seconds
from vfsd.errors import OutOfRangeError, UsageError

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.budgets import Limit
    from vfsd.core.view_request import ViewForm, ViewSpec
    from vfsd.tiling import Rect


Span = tuple[Fraction, Fraction | None]
_T = TypeVar("_T")

_VIEW_FRAMES = re.compile(r"\d+-\d*(-\d+)?", re.ASCII)


class Number(click.FloatRange):
    """A number within a range. NaN is refused: click would accept it in every range."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"must be a number, got {value!r}", param, ctx)
        return number


def _expecting(form: str) -> Callable[[Callable[[str], _T]], Callable[[str], _T]]:
    """Report text that cannot be parsed as a bad option value, with the expected form."""

    def decorate(parse: Callable[[str], _T]) -> Callable[[str], _T]:
        @functools.wraps(parse)
        def convert(text: str) -> _T:
            try:
                return parse(text)
            except UsageError as error:
                message = f"{error}: {error.hint}" if error.hint else str(error)
                raise click.BadParameter(message) from error
            except (ValueError, ZeroDivisionError) as error:
                raise click.BadParameter(f"{text!r} must have the form {form}") from error

        return convert

    return decorate


@_expecting("12.5 or 1:02:03.5")
def time_value(text: str) -> Fraction:
    return seconds(text)


@_expecting("A-B, in seconds or as 1:02:03.5")
def span_value(text: str) -> tuple[Fraction, Fraction | None]:
    return parse_span(text)


@_expecting("A:B, A:B:STEP or N")
def frame_slice(text: str) -> slice:
    # A view writes 0-30-2 for 0:30:2; a dash at the start is that of a negative number.
    separator = "-" if _VIEW_FRAMES.fullmatch(text) else ":"
    parts = [int(part) if part else None for part in text.split(separator)]
    if len(parts) == 1 and parts[0] is not None:
        return slice(parts[0], parts[0] + 1 or None, 1)
    start, stop, step = parts if len(parts) == 3 else (*parts, 1)
    if step is not None and step < 1:
        raise ValueError(text)
    return slice(start, stop, step or 1)


@_expecting("WxH, or S for the short side")
def size_value(text: str) -> int | tuple[int, int]:
    from vfsd.core.view_request import checked_size

    return checked_size(text)


@_expecting("WxH")
def exact_size_value(text: str) -> tuple[int, int]:
    from vfsd.core.view_request import exact_size

    return exact_size(text)


@_expecting("5000000, 500M or 2G")
def byte_count_value(text: str) -> int:
    return byte_count(text)


@_expecting("500000, 20M, 2G, 10x, none or default")
def budget_value(text: str) -> Limit | None:
    from vfsd.core.budgets import Limit

    return None if text.lower() == "default" else Limit.parse(text)


@_expecting("5, 29.97 or 30000/1001")
def rate_value(text: str) -> Fraction:
    rate = Fraction(text)
    if rate <= 0:
        raise ValueError(text)
    return rate


@_expecting("WxH+X+Y")
def region_value(text: str) -> Rect:
    from vfsd.tiling import Rect

    return Rect.parse(text)


@_expecting("a WORD that is not empty")
def word_value(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text


@_expecting("2026-05-01T10:00:00Z")
def moment_value(text: str) -> datetime:
    return parse_moment(text)


@_expecting("2026-05-01T10:00:00Z, container or name:PATTERN")
def capture_value(text: str) -> datetime | str:
    return text if text == "container" or text.startswith("name:") else parse_moment(text)


def require_zone_needed(zone: str | None, captured: datetime | str | None) -> None:
    """Raises `UsageError` for a --zone that the source of a time does not use."""
    if zone is not None and not (isinstance(captured, str) and captured.startswith("name:")):
        raise UsageError("--zone requires name:PATTERN", hint="a time has its own zone")


@_expecting("KEY=VALUE")
def pair_value(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(text)
    return key, parse_scalar(value)


def frame_range(chosen: slice, count: int) -> range:
    """The frames that a slice selects in a video of `count` frames.

    Negative numbers count from the end. Unlike the slice of a list, the range must lie within the
    video: raises `OutOfRangeError`.
    """
    start = 0 if chosen.start is None else chosen.start
    stop = count if chosen.stop is None else chosen.stop
    start, stop = (at + count if at < 0 else at for at in (start, stop))
    if not 0 <= start < stop <= count:
        raise OutOfRangeError(f"frames must be within 0 to {count}, got {start} to {stop}")
    return range(start, stop, chosen.step)


_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--span",
        metavar="A-B",
        type=span_value,
        help="Frames shown during these seconds: 10-20, 1:05-1:10, 20-.",
    ),
    click.option(
        "--frames",
        "chosen",
        metavar="A:B:S",
        type=frame_slice,
        help="Frames A to B - 1, every S-th; or one frame.",
    ),
    click.option(
        "--at",
        "moment",
        metavar="TIME",
        type=time_value,
        help="The frame shown at this time.",
    ),
    click.option(
        "--region",
        metavar="WxH+X+Y",
        type=region_value,
        help="Only these pixels of the displayed frame; also X1,Y1,X2,Y2.",
    ),
    click.option(
        "--size",
        metavar="WxH",
        type=size_value,
        help="Scale to this size; a 0 keeps the aspect ratio; one number is the short side.",
    ),
    click.option(
        "--fps",
        metavar="RATE",
        type=rate_value,
        help="Frames per second: 5, 29.97 or 30000/1001.",
    ),
    click.option(
        "--format", "pixel_format", type=click.Choice(PIXEL_LAYOUTS), help="Layout of the pixels."
    ),
    click.option(
        "--psnr",
        metavar="DB",
        type=Number(0),
        help="Minimum PSNR of each frame, per plane or channel of its format, against the result "
        "from the original; inf: read the original. By default the video's policy (reads=DB) or "
        "the setting minimum_psnr bounds the luma of tiles, and FFV1 is made from the original.",
    ),
)


def view_options(function: _F) -> _F:
    """Add the options that select pixels; the command gets them as `view`, a `ViewOptions`."""
    names = [one.name for one in fields(ViewOptions)]

    @functools.wraps(function)
    def collect(*args: Any, **values: Any) -> Any:
        view = ViewOptions(*(values.pop(name) for name in names))
        return function(*args, view=view, **values)

    for option in reversed(_OPTIONS):
        collect = option(collect)
    return cast(_F, collect)


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """The values of `view_options`.  Raises `UsageError` if several options select frames."""

    span: Span | None
    chosen: slice | None  #: frames
    moment: Fraction | None
    region: Rect | None
    size: int | tuple[int, int] | None
    fps: Fraction | None
    pixel_format: str | None
    psnr: float | None

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.span, self.chosen, self.moment)) > 1:
            raise UsageError("give one of --span, --frames and --at")

    @property
    def selects(self) -> bool:
        """Whether an option selects frames or a region."""
        return any(
            one is not None for one in (self.span, self.chosen, self.moment, self.region, self.fps)
        )

    @property
    def is_empty(self) -> bool:
        """Whether none of the options was given."""
        return all(getattr(self, one.name) is None for one in fields(self))

    def request(self, video: Video, form: ViewForm) -> ViewSpec:
        """Return the request for this video.  Raises `OutOfRangeError`, `UsageError`."""
        from vfsd.core.view_request import View, ViewSpec

        frames = None
        if self.moment is not None:
            index = video.index_at(self.moment)
            frames = (index, index + 1, 1)
        elif self.chosen is not None:
            wanted = frame_range(self.chosen, len(video))
            frames = (wanted.start, wanted.stop, wanted.step)
        view = View(self.span, frames, self.region, None, self.fps)
        return ViewSpec(view, form, self.size, self.psnr)


def sound_options(of: str) -> Callable[[_F], _F]:
    """Add the options for the sound of the file types in `of`; the command gets them as `sound`.

    It is the choice for `vfsd.core.view_request.with_sound`.  Raises `UsageError` if both are
    given.
    """

    def decorated(function: _F) -> _F:
        @functools.wraps(function)
        def collect(*args: Any, silent: bool, sound: str | None, **values: Any) -> Any:
            if silent and sound is not None:
                raise UsageError("give either --sound or --no-sound, not both")
            return function(*args, sound="no" if silent else sound, **values)

        for option in (
            click.option("--no-sound", "silent", is_flag=True, help=f"For {of}: no sound."),
            click.option(
                "--sound",
                type=click.Choice(("aac", "opus")),
                help=f"For {of}: transcode the sound to this codec if it has another. By default "
                "the sound is copied, or becomes AAC if the container does not take it.",
            ),
        ):
            collect = option(collect)
        return cast(_F, collect)

    return decorated


boxes_option = click.option(
    "--boxes",
    metavar="LABELS",
    help="For videos and raw pixels: draw the boxes with these labels, as in `vfsd labels query`; "
    "'*' draws all.",
)


def _gop_value(text: str) -> int | Literal["auto"]:
    return "auto" if text == "auto" else int(text)


gop_option = click.option(
    "--gop",
    metavar="N|auto",
    type=_expecting("N or auto")(_gop_value),
    help="Frames from one key picture to the next, 1 to 300; 1: every picture is one. auto chooses "
    "by the logged reads. The default is about a second. Short GOPs make reads of single frames "
    "cheaper, and take more space.",
)
