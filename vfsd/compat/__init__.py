"""Readers with the interfaces of other libraries.

`vfsd.compat.cv2.VideoCapture`, `vfsd.compat.decord.VideoReader` and
`vfsd.compat.torchcodec.VideoDecoder` read a video of a store through its API, without FUSE, and
leave any other file to the library that they stand in for.  A video is named by a path in a mount,
a ``vfsd://`` URL, or a name in the store of $VFSD_STORE; see `vfsd.compat.resolve`.

    from vfsd.compat.cv2 import VideoCapture

`install` patches the libraries themselves, for programs that cannot be edited, and
``python -m vfsd.compat train.py ...`` runs a program with the patch.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from vfsd.compat.resolve import quality

__all__ = ["install", "quality"]

_PATCHES = (
    ("cv2", "cv2", "VideoCapture"),
    ("decord", "decord", "VideoReader"),
    # Where `decord` takes its class from; some programs import it from here.
    ("decord", "decord.video_reader", "VideoReader"),
    ("decord", "decord", "VideoLoader"),
    ("decord", "decord.video_loader", "VideoLoader"),
)
"""Modules of `vfsd.compat`, modules to patch, and the class to replace in them."""


_LATE_MODULE, _LATE_NAMES = "torchcodec.decoders", ("VideoDecoder", "SimpleVideoDecoder")
"""Classes that are replaced when their module is imported: torch takes seconds to import."""


def install() -> list[str]:
    """Replace the readers of OpenCV, decord and torchcodec in this process.

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
    if importlib.util.find_spec("torchcodec") is not None:
        if _LATE_MODULE in sys.modules:
            replace_decoder()
        elif not any(isinstance(finder, _LatePatch) for finder in sys.meta_path):
            sys.meta_path.insert(0, _LatePatch())
        replaced += [f"{_LATE_MODULE}.{name}" for name in _LATE_NAMES]
    return replaced


def replace_decoder() -> None:
    """Replace the decoder of torchcodec, which is being imported or was."""
    # While the stand-in itself imports torchcodec, it has no class yet; it calls this at its end.
    own = getattr(importlib.import_module("vfsd.compat.torchcodec"), "VideoDecoder", None)
    if own is not None:
        for name in _LATE_NAMES:
            setattr(sys.modules[_LATE_MODULE], name, own)


def is_installed() -> bool:
    """Return whether `install` was called in this process."""
    return any(isinstance(finder, _LatePatch) for finder in sys.meta_path)


class _LatePatch(importlib.abc.MetaPathFinder):
    """Replaces the decoder of torchcodec as soon as that is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as without this finder, with a loader that patches it."""
        if fullname != _LATE_MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchingLoader(spec.loader)
        return spec


class _PatchingLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        replace_decoder()
