"""The common options of a command line, the store that it works on, and the videos that its
arguments select.
"""

from __future__ import annotations

import os
import posixpath
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vfsd.cli.output import print_json, print_line, print_remark, printable
from vfsd.errors import NotFoundError, OutOfRangeError, ReadOnlyError, UsageError, VfsdWarning
from vfsd.validation import is_pattern, is_url

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.catalog import Catalog
    from vfsd.core.model import LogicalVideo
    from vfsd.storage.context import StoreContext


@dataclass(frozen=True, slots=True)
class StorePath:
    """A path in a store."""

    root: Path  #: the store's directory
    name: str  #: relative to the root of the store; empty for the root itself


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
        """Print a remark for people on stderr, next to the data on stdout."""
        if not self.quiet and not self.json:
            print_remark(text)

    def report(self, record: Mapping[str, object], remark: str) -> None:
        """Print `record` with --json, else a remark on stderr."""
        if self.json:
            print_json(record)
        else:
            self.remark(remark)

    def print_result(self, record: Mapping[str, object], line: str) -> None:
        """Print `record` with --json, else a line of data on stdout."""
        if self.json:
            print_json(record)
        else:
            print_line(line)

    # -- which store

    @property
    def names_store(self) -> bool:
        """Whether --store or VFSD_STORE names a store."""
        return self.store is not None or bool(os.environ.get("VFSD_STORE"))

    def root(self) -> Path:
        """The store, for commands that concern all of it."""
        return self.place("").root

    def place(self, path: str) -> StorePath:
        """Resolve `path`: a name in the store, or a path inside a mount of it.

        ``--store`` comes first, and may name a mount point. Next comes the mount that the path lies
        in; a relative path lies in the mount of the working directory. VFSD_STORE is the last
        choice.

        Raises `UsageError` if nothing names a store, `NotFoundError` for a path in a mount of
        another store, and the errors of `resolve`.
        """
        return self._places([path])[0]

    def places(self, paths: Sequence[str]) -> tuple[Path, list[str]]:
        """(store, names) of several paths. Raises `UsageError` if they belong to different
        stores.
        """
        found = self._places(paths)
        if not all(_same_directory(place.root, found[0].root) for place in found):
            raise UsageError(f"all paths must be in one store, got {paths[0]!r} and others")
        return found[0].root, [place.name for place in found]

    def places_or_root(self, paths: Sequence[str]) -> tuple[Path, list[str]]:
        """(store, names) of several paths; without paths, the whole store and no names."""
        return self.places(paths) if paths else (self.root(), [])

    def _places(self, paths: Sequence[str]) -> list[StorePath]:
        from vfsd.mount.mounted_path import resolve

        if self.store is not None:
            return self._in_store(self.store, paths)
        variable = os.environ.get("VFSD_STORE")
        named = store_path(variable) if variable else None
        known = [named] if named else []
        places = []
        for path, shown in zip(paths, resolve([path or "." for path in paths], known), strict=True):
            if shown is not None:
                places.append(StorePath(shown.root, shown.name))
            elif named:
                places.append(StorePath(named, store_name(path)))
            else:
                raise UsageError(
                    "no store given",
                    hint="give --store DIR, set VFSD_STORE, or name a path inside a mount",
                )
        return places

    def _in_store(self, given: Path, paths: Sequence[str]) -> list[StorePath]:
        """The places of paths in the store that ``--store`` names."""
        from vfsd.mount.mounted_path import is_store, resolve

        absolute = [path for path in paths if path.startswith("/")]
        own, *others = resolve([str(given), *absolute], [given])
        # A store may lie in a mount of another store.
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
                    f"{path} is in a mount of the store in {found.root}, not of the one in {root}",
                    hint="leave out --store: the path names the store",
                )
            places.append(StorePath(root, found.name))
        return places

    @contextmanager
    def opened(self, root: Path, *, writing: bool = False) -> Iterator[Store]:
        """Open the store in `root`, read-only where it cannot be written.

        Raises `ReadOnlyError` for such a store if `writing`.
        """
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
        """Print each warning of the library once, as a remark."""

        def show(message: Warning | str, *_: object, **__: object) -> None:
            if not self.quiet:
                print_remark(f"warning: {message}")

        with warnings.catch_warnings():
            # Regardless of -W and PYTHONWARNINGS, which may hide warnings or make them errors.
            warnings.simplefilter("default", VfsdWarning)
            warnings.showwarning = show
            yield

    @contextmanager
    def opened_context(self, root: Path) -> Iterator[StoreContext]:
        """The context of the store in `root`, for commands that neither decode nor write.

        It skips the imports that reading needs: a fifth of the run time of such a command.
        """
        from vfsd.storage.context import StoreContext

        with closing(StoreContext.open(root, read_only=_is_read_only(root))) as parts:
            yield parts


def store_path(text: str) -> Path:
    """The directory of a store that is given as a path, or by the URL of its catalog."""
    if is_url(text):
        from vfsd.storage.homes import home_of_catalog  # imports the catalog

        return home_of_catalog(text)
    return Path(text)


def require_writable(root: Path) -> None:
    """Raises `ReadOnlyError` if the store in `root` cannot be written."""
    if _is_read_only(root):
        raise ReadOnlyError(
            f"{root} cannot be written",
            hint="check its owner and permissions, and how its disk is mounted",
        )


def _is_read_only(root: Path) -> bool:
    return root.is_dir() and not os.access(root, os.W_OK)


def _same_directory(one: Path, other: Path) -> bool:
    """Whether two paths lead to the same directory."""
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


def store_name(path: str) -> str:
    """Normalize a path in a store: no slash at either end, no ``.`` and no ``..``."""
    name = posixpath.normpath(path.lstrip("/"))
    if name == ".." or name.startswith("../"):
        raise UsageError(f"{path!r} leads out of the store")
    return "" if name == "." else name


_T = TypeVar("_T")


def select_video_list(store: Store, names: Sequence[str]) -> list[Video]:
    """The videos of `select_videos`, without the names."""
    return list(select_videos(store, names).values())


def select_or_all(store: Store, names: Sequence[str]) -> list[Video]:
    """The videos of `select_videos`, or without names all videos of the store."""
    return select_video_list(store, names) if names else list(store.find())


def select_videos(store: Store, names: Sequence[str]) -> dict[str, Video]:
    """The videos of `select_records`, opened."""
    return {name: store.open_video(info) for name, info in select_records(store, names).items()}


def select_records(store: Store, names: Sequence[str]) -> dict[str, LogicalVideo]:
    """The videos with these names, without duplicates and in this order, by name.

    A name with ``*``, ``?`` or ``[`` is a pattern of `vfsd find`, unless a video has exactly this
    name. Raises `NotFoundError` for a name or pattern without a video.
    """
    found: dict[str, LogicalVideo] = {}
    for name in names:
        if is_pattern(name) and name not in store:
            found.update((video.name, video) for video in store.catalog.matching(name))
        elif name not in found:
            try:
                found[name] = store.catalog.video(name)
            except NotFoundError:
                # Only this waits for a file that a mount is just classifying.
                found[name] = store[name].info
    return found


def matched_paths(catalog: Catalog, names: Sequence[str]) -> list[str]:
    """Paths of entries of any kind, without duplicates and in this order.

    A name with ``*``, ``?`` or ``[`` is a pattern for names of videos, unless an entry has exactly
    this name. Raises `NotFoundError` for a pattern without a match; other names are not looked up.
    """
    found: dict[str, None] = {}
    for name in names:
        if is_pattern(name) and not _has_entry(catalog, name):
            found.update((video.name, None) for video in catalog.matching(name))
        else:
            found[name] = None
    return list(found)


def single_path(catalog: Catalog, name: str, command: str) -> str:
    """The path of the entry with this name; a pattern must match exactly one video.

    Raises `NotFoundError` for a pattern without a match, `UsageError` for several matches.
    """
    matches = matched_paths(catalog, [name])
    if len(matches) > 1:
        raise UsageError(
            f"{command} takes one video; {len(matches)} match {name!r}",
            hint=f"`vfsd find {shlex.quote(name)}` lists them",
        )
    return matches[0]


def for_each(
    session: Session,
    videos: Mapping[str, _T],
    work: Callable[[str, _T], None],
    *,
    headed: bool = True,
) -> None:
    """Call `work` with path and video, and print a heading before each one of several videos.

    With several videos, one that lies outside of the requested span, range or region is skipped
    with a warning. Raises `OutOfRangeError` if no video is left, and the errors of `work`.
    """
    several, out_of_range, done = len(videos) > 1, None, 0
    for path, video in videos.items():
        try:
            if several and headed and not session.json:
                print_line(f"{printable(path)}:")
            work(path, video)
            done += 1
        except OutOfRangeError as error:
            if not several:
                raise
            out_of_range = error
            if not session.quiet:
                print_remark(f"warning: skipped {printable(path)}: {error}")
    if out_of_range is not None and not done:
        raise out_of_range


def _has_entry(catalog: Catalog, name: str) -> bool:
    try:
        with catalog.reading() as seen:
            seen.tree.resolve(name)
    except NotFoundError:
        return False
    return True
