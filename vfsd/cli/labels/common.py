"""What the commands of ``vfsd labels`` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vfsd.errors import UsageError

if TYPE_CHECKING:
    from vfsd.core.detections import Source

FORMATS = ("coco", "mot", "yolo", "voc", "csv")
"""Those of `vfsd.labels`, which help does not wait for."""

_F = TypeVar("_F", bound=Callable[..., Any])


def source_options(text: str) -> Callable[[_F], _F]:
    """``--source``, ``--model`` and ``--version``."""

    def decorate(function: _F) -> _F:
        for option in (
            click.option("--version", metavar="WORD", help="Of the model."),
            click.option("--model", metavar="WORD", help="What the source ran."),
            click.option("--source", metavar="NAME", help=text),
        ):
            function = option(function)
        return function

    return decorate


def base_options(function: _F) -> _F:
    """``--frame-base`` and ``--pixel-base``."""
    base = click.IntRange(0, 1)
    for option in (
        click.option(
            "--pixel-base",
            type=base,
            metavar="0|1",
            help="Number of the first pixel in the file; 1 in mot and voc, else 0.",
        ),
        click.option(
            "--frame-base",
            type=base,
            metavar="0|1",
            help="Number of the first frame in the file; 1 in mot, else 0.",
        ),
    ):
        function = option(function)
    return function


def the_source(name: str | None, model: str | None, version: str | None) -> str | Source | None:
    """A name alone means every source of that name."""
    if name is None:
        if model or version:
            raise UsageError("--model and --version are those of a --source", hint="name it, too")
        return None
    if model is None and version is None:
        return name
    from vfsd.core.detections import Source

    return Source(name, model or "", version or "")
