"""``why/``: a text for each path below ``NAME@/``, which says why that path cannot be opened.

    why/t=20-30.mp4             the error for a span after the end of the video, and its hint
    why/frames/000123.png       the same for a still

A mount can answer a system call with an error number only.
"""

from __future__ import annotations

from collections.abc import Callable

from vfsd.errors import NotFoundError, StoreError, VfsdError
from vfsd.views.rendered_view import TextRendition

WHY = "why"


def is_of_why(path: str) -> bool:
    return path == WHY or path.startswith(WHY + "/")


def asked_path(path: str) -> str:
    """The path below ``NAME@/`` that a path in ``why/`` is about; "" for ``why`` itself."""
    return path.removeprefix(WHY).removeprefix("/")


def reason_text(path: str, plan: Callable[[str], object]) -> TextRendition:
    """The file at `path`, which is in ``why/``.

    `plan` raises what opening its argument, a path below ``NAME@/``, would.  Errors of the store as
    a whole are raised here too.  Raises `NotFoundError` for names that begin with a dot, which
    shells and file managers look for in every directory.
    """
    asked = asked_path(path)
    if asked.startswith(".") or is_of_why(asked):
        raise NotFoundError(f"no such view: {path!r}")
    try:
        plan(asked)
    except StoreError:
        raise
    except VfsdError as error:
        lines = [f"{asked} cannot be opened: {error}"]
        if error.hint is not None:
            lines.append(f"hint: {error.hint}")
        lines.append("README.txt describes the names of views.")
    else:
        lines = [f"{asked} can be opened."]
    return TextRendition(("\n".join(lines) + "\n").encode("utf-8", "replace"))
