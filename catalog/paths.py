"""Names in the tree: paths in parts, and what can be called how."""

from __future__ import annotations

import os
import shlex
from reprlib import repr as shown

from vfsd.errors import NotFoundError, UsageError

NAME_BYTES = 255
"""The longest name, as everywhere on Linux."""


def not_there(path: str) -> NotFoundError:
    """What to raise where a path leads to nothing."""
    hint = "`vfsd ls -R` lists what there is"
    if set("*?[") & set(path):
        hint = f"this command takes no patterns; `vfsd find {shlex.quote(path)}` does"
    return NotFoundError(f"{path!r} is not in the store", hint=hint)


def split(path: str) -> list[str]:
    """The components of a path from the root: ``"/a//b/"`` is ``["a", "b"]``.

    Raises `UsageError` for what is no text, or none that can be a name in bytes.
    """
    if not isinstance(path, str):
        raise UsageError(f"a name in a store must be text, got {shown(path)}")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise UsageError(f"a name must be valid UTF-8, got {path!r}") from None
    return [name for name in path.split("/") if name]


def require_name(name: str) -> None:
    """Raises `UsageError` where a file or directory cannot be called so: no mount could show it.

    `name` is one component of a path.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise UsageError(f"{name!r} cannot be the name of a file")
    if len(os.fsencode(name)) > NAME_BYTES:
        raise UsageError(
            f"the name of a file is too long: {len(os.fsencode(name))} bytes, {shown(name)}",
            hint=f"names have {NAME_BYTES} at most, in UTF-8; paths may be longer",
        )
