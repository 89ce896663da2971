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
    from vfsd.api.video import Video
    from vfsd.core.view_path import ViewForm, ViewSpec
    from vfsd.tiling import Rect

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--span",
        metavar="A:B",
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
        help="Only these pixels of the displayed frame.",
    ),
    click.option(
        "--size",
        metavar="WxH",
        type=size_value,
        help="Scale to this size; 0 for width or height keeps the aspect ratio.",
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
)
_PSNR = click.option(
    "--psnr",
    metavar="DB",
    type=Number(0),
    help="Minimum PSNR of each frame, per plane or channel of its format, against the result "
    "from the original; inf: read the original. By default the video's policy (reads=DB) or the "
    "setting minimum_psnr bounds the luma of tiles, and FFV1 is made from the original.",
)


def sound_options(of: str) -> Callable[[_F], _F]:
    """Add the parameters `silent` and `sound` to a command, for the file types in `of`."""

    def decorated(function: _F) -> _F:
        for option in (
            click.option("--no-sound", "silent", is_flag=True, help=f"For {of}: no sound."),
            click.option(
                "--sound",
                type=click.Choice(("aac", "opus")),
                help=f"For {of}: transcode the sound to this codec if it has another. By default "
                "the sound is copied, or becomes AAC if the container does not take it.",
            ),
        ):
            function = option(function)
        return function

    return decorated


def sound_choice(silent: bool, sound: str | None) -> str | None:
    """The choice of sound for `vfsd.core.view_path.with_sound`.

    Raises `UsageError` if both options are given.
    """
    if silent and sound is not None:
        raise UsageError("give either --sound or --no-sound, not both")
    return "no" if silent else sound


def view_options(function: _F) -> _F:
    """Add the parameters `span`, `chosen` (frames), `moment`, `region`, `size`, `fps`,
    `pixel_format` and `psnr` to a command.
    """
    for option in reversed((*_OPTIONS, _PSNR)):
        function = option(function)
    return function


def require_one_selection(span: Span | None, chosen: slice | None, moment: Fraction | None) -> None:
    """Raises `UsageError` if more than one option selects frames."""
    if sum(given is not None for given in (span, chosen, moment)) > 1:
        raise UsageError("give one of --span, --frames and --at")


def view_request(
    video: Video,
    form: ViewForm,
    span: Span | None,
    chosen: slice | None,
    moment: Fraction | None,
    region: Rect | None,
    size: tuple[int, int] | None,
    fps: Fraction | None,
    psnr: float | None = None,
) -> ViewSpec:
    """The request of these options. Raises `OutOfRangeError`, `UsageError`."""
    from vfsd.core.view_path import ViewSpec
    from vfsd.core.view_request import View

    frames = None
    if moment is not None:
        index = video.index_at(moment)
        frames = (index, index + 1, 1)
    elif chosen is not None:
        wanted = frame_range(chosen, len(video))
        frames = (wanted.start, wanted.stop, wanted.step)
    return ViewSpec(View(span, frames, region, None, fps), form, size, psnr)
