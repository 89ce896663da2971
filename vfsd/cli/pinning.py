"""What `vfsd pin` and `vfsd unpin` take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from vfsd.cli.values import a_size, a_span

if TYPE_CHECKING:
    from vfsd.api.video import Video


def of_pins(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say what of a video is meant."""
    for option in (
        click.option("--size", metavar="WxH", type=a_size, help="Only the rendition in that size."),
        click.option("--tiles", is_flag=True, help="Only tiles."),
        click.option(
            "--span", metavar="A-B", type=a_span, help="Only what appears in these seconds."
        ),
    ):
        function = option(function)
    return function


def displayed(video: Video, size: tuple[int, int] | None) -> tuple[int, int] | None:
    """A size of the displayed frame of which one side may be 0: as the other has it."""
    if size is None:
        return None
    from vfsd.cli.retiling import picture_size

    media = video.original.media
    width, height = picture_size(size, media)
    return (height, width) if media.rotation in (90, 270) else (width, height)
