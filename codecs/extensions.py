"""Loads PyAV whole: it imports some of its extension modules only when a file needs them."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import find_spec
from pathlib import Path

import av


def load_extensions() -> None:
    """Import every extension module of PyAV, for a process that may open no file later.

    Raises `ImportError` for one that does not load.
    """
    for name in _extensions():
        import_module(name)


def extension_files() -> frozenset[Path]:
    """The files of all extension modules of PyAV, as installed."""
    suffixes = tuple(EXTENSION_SUFFIXES)
    return frozenset(
        path
        for folder in av.__path__
        for path in Path(folder).rglob("*")
        if path.name.endswith(suffixes)
    )


def _extensions() -> Iterator[str]:
    for found in pkgutil.walk_packages(av.__path__, "av."):
        if not found.ispkg:
            spec = find_spec(found.name)
            if spec is not None and isinstance(spec.loader, ExtensionFileLoader):
                yield found.name
