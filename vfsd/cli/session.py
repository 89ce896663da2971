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
from vfsd.errors import NotFoundError, ReadOnlyError, UsageError, VfsdWarning

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.storage.context import Parts


@dataclass(frozen=True, slots=True)
class StorePath:
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

    def place(self, path: str) -> StorePath:
        """Where `path` leads: the name of a store's entry, or a path inside a mount of it.

        ``--store`` is obeyed before anything else; it may name a place where the store is mounted.
        Without it a path that lies inside a mount
        (a relative one: when the working directory does) names its store by itself; only then
        VFSD_STORE is asked.  Raises `UsageError` where nothing names a store, `NotFoundError` for a
        path in a mount of another store, and as `resolve`.
        """
        return self._places([path])[0]

    def places(self, paths: Sequence[str]) -> tuple[Path, list[str]]:
        """(store, names) of several paths.  Raises `UsageError` when they are not of one store."""
        found = self._places(paths)
        if not all(_same_directory(place.root, found[0].root) for place in found):
            raise UsageError(f"{paths[0]!r} and others are not in the same store")
        return found[0].root, [place.name for place in found]

    def _places(self, paths: Sequence[str]) -> list[StorePath]:
        from vfsd.mount.resolve import resolve

        if self.store is not None:
            return self._in_store(self.store, paths)
        named = os.environ.get("VFSD_STORE")
        known = [Path(named)] if named else []
        places = []
        for path, shown in zip(paths, resolve([path or "." for path in paths], known), strict=True):
            if shown is not None:
                places.append(StorePath(shown.root, shown.name))
            elif named:
                places.append(StorePath(Path(named), store_name(path)))
            else:
                raise UsageError(
                    "no store given",
                    hint="give --store DIR, set VFSD_STORE, or name a path inside a mount",
                )
        return places

    def _in_store(self, given: Path, paths: Sequence[str]) -> list[StorePath]:
        """The places of paths in the store that ``--store`` names."""
        from vfsd.mount.resolve import is_store, resolve

        absolute = [path for path in paths if path.startswith("/")]
        own, *others = resolve([str(given), *absolute], [given])
        # A store may lie in a mount of another.
        root = given if own is None or is_store(given) else own.root
        shown = dict(zip(absolute, others, strict=True))
        places = []
        for path in paths:
            found = shown.get(path)
            if found is None:
                places.append(StorePath(root, store_name(path)))
                continue
            if not _same_directory(found.root, root):
                raise NotFoundError(
                    f"{path} is in a mount of the store in {found.root}, not of that in {root}",
                    hint="leave out --store: the path says which store is meant",
                )
            places.append(StorePath(root, found.name))
        return places

    @contextmanager
    def opened(self, root: Path, *, writing: bool = False) -> Iterator[Store]:
        """The store in `root`; one that may only be read will do where nothing is written."""
        from vfsd.api.store import Store

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
        from vfsd.storage.context import Parts

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


def _same_directory(one: Path, other: Path) -> bool:
    """Whether two paths lead to one directory."""
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


def store_name(path: str) -> str:
    """A path in a store in its one form: no slash at either end, no ``.`` and ``..``."""
    name = posixpath.normpath(path.lstrip("/"))
    if name == ".." or name.startswith("../"):
        raise UsageError(f"{path!r} leads out of the store")
    return "" if name == "." else name
