"""What the common options say, and which store a command works on."""

from __future__ import annotations

import os
import posixpath
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vfsd.cli.output import print_remark
from vfsd.errors import ReadOnlyError, UsageError, VfsdWarning

if TYPE_CHECKING:
    from vfsd.parts import Parts
    from vfsd.store import Store


@dataclass(frozen=True, slots=True)
class Place:
    """A path in a store."""

    root: Path  #: the store's directory
    name: str  #: counted from the root of the store; empty for the root itself


@dataclass
class Session:
    """The common options of one command line."""

    store: Path | None = None
    json: bool = False
    quiet: bool = False
    debug: bool = False

    @property
    def shows_progress(self) -> bool:
        return not self.quiet and sys.stderr.isatty()

    def remark(self, text: str) -> None:
        """Something for people, beside the data."""
        if not self.quiet and not self.json:
            print_remark(text)

    # -- which store

    @property
    def names_store(self) -> bool:
        """Whether --store or VFSD_STORE say which store is meant, or where one is to be."""
        return self.store is not None or bool(os.environ.get("VFSD_STORE"))

    def root(self) -> Path:
        """The store, for commands that are about all of it."""
        return self.place("").root

    def place(self, path: str) -> Place:
        """Where `path` leads: the name of a store's entry, or a path inside a mount of it.

        ``--store`` is obeyed before anything else; it may name a place where the store is mounted.
        Without it a path that lies inside a mount
        (a relative one: when the working directory does) names its store by itself; only then
        VFSD_STORE is asked.  Raises `UsageError` where nothing names a store.
        """
        if self.store is not None:
            named_by_mount = _mounted(str(self.store))
            store = self.store if named_by_mount is None else named_by_mount.root
            mounted = _mounted(path) if path.startswith("/") else None
            if mounted is not None and mounted.root.resolve() == store.resolve():
                return mounted
            return Place(store, store_name(path))
        mounted = _mounted(path or ".")
        if mounted is not None:
            return mounted
        named = os.environ.get("VFSD_STORE")
        if not named:
            raise UsageError(
                "it is not said which store is meant",
                hint="give --store DIR, set VFSD_STORE, or name a path inside a mount",
            )
        return Place(Path(named), store_name(path))

    def places(self, paths: Sequence[str]) -> tuple[Path, list[str]]:
        """(store, names) of several paths.  Raises `UsageError` when they are not of one store."""
        found = [self.place(path) for path in paths]
        roots = {place.root.resolve() for place in found}
        if len(roots) > 1:
            raise UsageError(f"{paths[0]!r} and others are not in the same store")
        return found[0].root, [place.name for place in found]

    @contextmanager
    def opened(self, root: Path, *, writing: bool = False) -> Iterator[Store]:
        """The store in `root`; one that may only be read will do where nothing is written."""
        from vfsd.store import Store

        if writing:
            require_writable(root)
        with (
            self._warnings_shown(),
            Store.open(root, read_only=_is_read_only(root)) as store,
        ):
            yield store

    @contextmanager
    def _warnings_shown(self) -> Iterator[None]:
        """Print the library's warnings as remarks, each once, instead of as Python prints them."""

        def show(message: Warning | str, *_: object, **__: object) -> None:
            if not self.quiet:
                print_remark(f"warning: {message}")

        with warnings.catch_warnings():
            warnings.simplefilter("default", VfsdWarning)
            warnings.showwarning = show
            yield

    @contextmanager
    def looked_into(self, root: Path) -> Iterator[Parts]:
        """The parts of the store in `root`, for commands that neither read a picture nor write.

        What reading takes is not imported then, which is a fifth of what such a command takes.
        """
        from vfsd.parts import Parts

        with closing(Parts.open(root, read_only=_is_read_only(root))) as parts:
            yield parts


def require_writable(root: Path) -> None:
    """Raises `ReadOnlyError` where the store in `root` can only be read."""
    if _is_read_only(root):
        raise ReadOnlyError(
            f"{root} cannot be written",
            hint="look at its owner and permissions, and at how its disk is mounted",
        )


def _is_read_only(root: Path) -> bool:
    return root.is_dir() and not os.access(root, os.W_OK)


def _mounted(path: str) -> Place | None:
    """What a path of the machine is in a store, if it lies inside a mount of one."""
    from vfsd.mounts.mounting import mount_of

    folder, last = os.path.split(path)
    if last not in ("", ".", ".."):
        # A symbolic link is meant itself when it comes last; those above it lead there.
        above = mount_of(folder or ".")
        if above is not None:
            return Place(above[0], posixpath.join(above[1], last))
    found = mount_of(path)
    return None if found is None else Place(*found)


def store_name(path: str) -> str:
    """A path in a store in its one form: no slash at either end, no ``.`` and ``..``."""
    name = posixpath.normpath(path.lstrip("/"))
    if name == ".." or name.startswith("../"):
        raise UsageError(f"{path!r} leads out of the store")
    return "" if name == "." else name
