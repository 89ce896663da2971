"""Selects the Python binding of libfuse, and checks whether this machine can mount.

mfusepy with libfuse 3 is the normal case. fusepy, its predecessor, knows only libfuse 2, with fewer
features.
"""

from __future__ import annotations

import ctypes.util
import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vfsd.errors import FuseMissingError, MountError, UsageError
from vfsd.mount.fuse.mount_options import MountOptions

BINDING_VARIABLE = "VFSD_FUSE"
"""Environment variable with the name of the binding: mfusepy or fusepy."""

_BINDINGS = {"mfusepy": "mfusepy", "fusepy": "fuse"}
_INSTALL = "apt install fuse3 (Debian, Ubuntu), dnf install fuse3 (Fedora)"
_DEVICE = "/dev/fuse"
_SETTINGS = Path("/etc/fuse.conf")


@dataclass(frozen=True)
class Binding:
    """A Python module that wraps libfuse."""

    name: str
    module: Any
    major: int  #: version of libfuse
    minor: int


def load(choice: str | None = None) -> Binding:
    """Import a binding: `choice`, or the best one installed.

    `choice` is mfusepy or fusepy; default: the variable ``VFSD_FUSE``. Raises `FuseMissingError`
    without a binding or libfuse.
    """
    choice = choice or os.environ.get(BINDING_VARIABLE) or None
    if choice is not None and choice not in _BINDINGS:
        raise UsageError(
            f"the binding must be mfusepy or fusepy, got {choice!r}", hint="mfusepy or fusepy"
        )
    for name in [choice] if choice else _BINDINGS:
        try:
            with _libfuse_chosen(name):
                module = importlib.import_module(_BINDINGS[name])
        except ModuleNotFoundError:
            continue
        except (OSError, AttributeError) as error:  # raised by both bindings without libfuse
            raise FuseMissingError(f"{name} finds no libfuse: {error}", hint=_INSTALL) from error
        major, minor = _version(module)
        return Binding(name, module, major, minor)
    wanted = choice or "mfusepy"
    raise FuseMissingError(f"{wanted} is not installed", hint=f"pip install {wanted}")


def require_fuse(options: MountOptions) -> None:
    """Check before mounting whether it can work. Raises `FuseMissingError`, `MountError`."""
    load()
    if not os.path.exists(_DEVICE):
        raise FuseMissingError(f"{_DEVICE} is missing", hint="modprobe fuse")
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        raise FuseMissingError(
            f"{_DEVICE} cannot be opened: no permission", hint=f"sudo chmod 666 {_DEVICE}"
        )
    if os.geteuid() == 0:
        return
    if not (shutil.which("fusermount3") or shutil.which("fusermount")):
        raise FuseMissingError("fusermount3 is not installed", hint=_INSTALL)
    if options.is_shared and not _others_are_allowed():
        raise MountError(
            "only root may mount for other users here",
            hint=f"leave out allow_other, or write user_allow_other into {_SETTINGS}",
        )


def _others_are_allowed() -> bool:
    try:
        lines = _SETTINGS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


@contextmanager
def _libfuse_chosen(name: str) -> Iterator[None]:
    """Make mfusepy use libfuse 3 if both versions are installed and the environment has no
    choice."""
    key = "FUSE_LIBRARY_NAME"
    told = key in os.environ or "FUSE_LIBRARY_PATH" in os.environ
    if name != "mfusepy" or told or ctypes.util.find_library("fuse3") is None:
        yield
        return
    os.environ[key] = "fuse3"
    try:
        yield
    finally:
        del os.environ[key]


def _version(module: Any) -> tuple[int, int]:
    number = int(module._libfuse.fuse_version())
    return divmod(number, 100 if number >= 100 else 10)
