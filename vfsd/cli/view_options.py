"""Options that select pixels of a video, for ``vfsd read`` and ``vfsd explain``."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vfsd.cli.param_types import (
    Number,
    Span,
    frame_range,
    frame_slice,
    rate_value,
    region_value,
    size_value,
    span_value,
    time_value,
)
from vfsd.core.output_formats import PIXEL_LAYOUTS
from vfsd.errors import UsageError

if TYPE_CHECKING:
    from vfsd.cli.read import Readable
    from vfsd.core.view_path import Form, Request
    from vfsd.tiling import Rect

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--span",
        metavar="A:B",
        type=span_value,
        help="Frames that appear in these seconds: 10-20, 1:05-1:10, 20-.",
    ),
    click.option(
        "--frames",
        "chosen",
        metavar="A:B:S",
        type=frame_slice,
        help="Frames A to B - 1, every S-th; or one.",
    ),
    click.option(
        "--at",
        "moment",
        metavar="TIME",
        type=time_value,
        help="The frame on the screen at this time.",
    ),
    click.option(
        "--region",
        metavar="WxH+X+Y",
        type=region_value,
        help="Only these pixels of the displayed frame.",
    ),
    click.option(
        "--size",
        metavar="WxH",
        type=size_value,
        help="Scale to this size; 0 for one of the two keeps the shape.",
    ),
    click.option(
        "--fps",
        metavar="RATE",
        type=rate_value,
        help="So many frames a second: 5, 29.97 or 30000/1001.",
    ),
    click.option(
        "--format", "pixel_format", type=click.Choice(PIXEL_LAYOUTS), help="Layout of the pixels."
    ),
)
_PSNR = click.option(
    "--psnr",
    metavar="DB",
    type=Number(0),
    help="Each frame has so many dB, in each plane or channel of its format, against what the "
    "original gives; inf: it is that. Else luma has what the video's policy says (reads=DB), or "
    "what the store wants in minimum_psnr, and FFV1 is made from the original.",
)


def sound_options(of: str) -> Callable[[_F], _F]:
    """Give a command the parameters `silent` and `sound`, for files `of` some kinds."""

    def decorated(function: _F) -> _F:
        for option in (
            click.option("--no-sound", "silent", is_flag=True, help=f"Of {of}: pictures only."),
            click.option(
                "--sound",
                type=click.Choice(("aac", "opus")),
                help=f"Of {of}: transcode sound to this codec unless it is that. Else it is "
                "copied, or becomes AAC where the container does not take it.",
            ),
        ):
            function = option(function)
        return function

    return decorated


def sound_choice(silent: bool, sound: str | None) -> str | None:
    """As `vfsd.core.view_path.with_sound` takes it.  Raises `UsageError` for both options."""
    if silent and sound is not None:
        raise UsageError("give one of --sound and --no-sound")
    return "no" if silent else sound


def view_options(function: _F) -> _F:
    """Give a command the parameters `span`, `chosen` (frames), `moment`, `region`, `size`, `fps`,
    `pixel_format` and `psnr`.
    """
    for option in reversed((*_OPTIONS, _PSNR)):
        function = option(function)
    return function


def require_one_selection(span: Span | None, chosen: slice | None, moment: Fraction | None) -> None:
    """Raises `UsageError` where frames are said in more than one way."""
    if sum(given is not None for given in (span, chosen, moment)) > 1:
        raise UsageError("give one of --span, --frames and --at")


def view_request(
    video: Readable,
    form: Form,
    span: Span | None,
    chosen: slice | None,
    moment: Fraction | None,
    region: Rect | None,
    size: tuple[int, int] | None,
    fps: Fraction | None,
    psnr: float | None = None,
) -> Request:
    """What the options ask for.  Raises `OutOfRangeError`, `UsageError`."""
    from vfsd.core.view_path import Request
    from vfsd.core.view_request import View

    frames = None
    if moment is not None:
        index = video.index_at(moment)
        frames = (index, index + 1, 1)
    elif chosen is not None:
        wanted = frame_range(chosen, len(video))
        frames = (wanted.start, wanted.stop, wanted.step)
    return Request(View(span, frames, region, None, fps), form, size, psnr)
