"""Readers with the interfaces of other libraries.

`vfsd.compat.cv2.VideoCapture` and `vfsd.compat.decord.VideoReader` read a video of a store through
its API, without FUSE, and leave any other file to the library that they stand in for.  A video is
named by a path in a mount, a ``vfsd://`` URL, or a name in the store of $VFSD_STORE; see
`vfsd.compat.resolve`.

    from vfsd.compat.cv2 import VideoCapture

`install` patches the libraries themselves, for programs that cannot be edited, and
``python -m vfsd.compat train.py ...`` runs a program with the patch.
"""

from __future__ import annotations

import importlib
import importlib.util

from vfsd.compat.frame_cursor import quality

__all__ = ["install", "quality"]

_PATCHES = (
    ("cv2", "cv2", "VideoCapture"),
    ("decord", "decord", "VideoReader"),
    # Where `decord` takes its class from; some programs import it from here.
    ("decord", "decord.video_reader", "VideoReader"),
)
"""Modules of `vfsd.compat`, modules to patch, and the class to replace in them."""


def install() -> list[str]:
    """Replace ``cv2.VideoCapture`` and ``decord.VideoReader`` in this process.

    Returns the replaced names; a library that is not installed is left out.  Call this before the
    program copies the classes, as in ``from decord import VideoReader``.  A second call changes
    nothing.
    """
    replaced = []
    for stand_in, module, name in _PATCHES:
        if importlib.util.find_spec(stand_in) is None:
            continue
        # Imported first: it has to find the class that it hands other files to.
        own = getattr(importlib.import_module(f"vfsd.compat.{stand_in}"), name)
        setattr(importlib.import_module(module), name, own)
        replaced.append(f"{module}.{name}")
    return replaced
