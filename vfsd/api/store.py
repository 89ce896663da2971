"""`Store`: a directory of videos, opened for use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from reprlib import repr as shown
from typing import TYPE_CHECKING, Unpack

from vfsd.api.store_tree import StoreTree
from vfsd.catalog import Catalog, FindOptions, absolute_url, database_taken_error, has_password
from vfsd.core.model import TilingDecision
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import (
    IntegrityError,
    NotFoundError,
    UsageError,
)
from vfsd.storage.context import StoreContext
from vfsd.validation import local_path, whole_number, yes_or_no

if TYPE_CHECKING:
    from vfsd.api.batches import Request
    from vfsd.api.frames import ReadOptions
    from vfsd.api.scan import Scan
    from vfsd.api.scanning import ScanOptions
    from vfsd.api.video import Video
    from vfsd.core.frames import Frames
    from vfsd.core.label_query import Labels
    from vfsd.derive.derived_budget import DerivedBudget
    from vfsd.derive.proposals import Proposal
    from vfsd.derive.retile import OnProgress
    from vfsd.derive.tuner import BetweenSteps, OnFailed, Tuner, TuningBudget
    from vfsd.derive.what_if import Advice
    from vfsd.derive.workload import WorkloadQuery
    from vfsd.read.read_context import ReadContext
    from vfsd.tiling.policy import LedgerParameters


class Store(StoreTree):
    """A store, opened for use.  Safe to use from several threads, and after a fork.

        with Store.open("/srv/videos") as store:
            video = store["cam1/a.mp4"]
            clip = video.read(span=(10, 20), region=(600, 300, 1000, 600))

    Several processes may have a store open at once, a mount among them.
    """

    def __init__(self, parts: StoreContext, threads: int | None = None) -> None:
        self._parts = parts
        self._threads = threads
        self._made_tools: list[ReadContext] = []

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, catalog_url: str | None = None) -> Store:
        """Make a new store in `path`, a directory that is empty or does not exist yet.

        `catalog_url` names a database elsewhere (any that SQLAlchemy knows); by default the
        catalog is an SQLite file in the store.  When this returns, the store survives a power cut;
        after an interruption, call it again.  Raises `ExistsError` where something is there, or
        the database is another store's or something else's, `BusyError` where somebody else is just
        making one there, and `UsageError` or `ExtraMissingError` for a URL that no database can
        have, or one in memory; nothing is made then.  (Who loses the database to another that is
        made at the same moment leaves a directory in which a store may be begun anew.)
        """
        root = local_path(path, "a place for a store")
        if catalog_url is not None:
            catalog_url = absolute_url(catalog_url)
            _require_unused(root, catalog_url)
        is_secret = catalog_url is not None and has_password(catalog_url)
        with StoreDirectory.creating(
            root, catalog_url=catalog_url, is_secret=is_secret
        ) as directory:
            Catalog.create(directory.catalog_url, store_id=directory.id).close()
        return cls.open(root)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        threads: int | None = None,
    ) -> Store:
        """Open a store.

        `threads` is how many decode side by side; default: one for each core that this process may
        use.  A single one takes the least CPU time for a read, which is best where each core has a
        process of its own.

        Raises `NoStoreError` where there is none, `StoreVersionError` for one that a newer vfsd
        wrote, `StoreError` where something that is no file has the name of one, or the catalog is
        another store's, `BusyError`, `UsageError`, and `ReadOnlyError` where a backup or a restore
        was killed just before its end, and the store cannot be written to finish it.
        """
        read_only = yes_or_no(read_only, "read_only")
        if threads is not None:
            threads = whole_number(threads, "threads")
            if threads < 1:
                raise UsageError(f"{threads} threads decode nothing")
        parts = StoreContext.open(local_path(path, "a store"), read_only=read_only)
        return cls(parts, threads)

    def close(self) -> None:
        for tools in self._made_tools[:1]:
            tools.close()
        self._parts.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.path}>"

    @property
    def path(self) -> Path:
        return self._parts.directory.root

    @property
    def parts(self) -> StoreContext:
        """What the store is made of, for the layers that work on it."""
        return self._parts

    @property
    def tools(self) -> ReadContext:
        """The decoder pools and caches that its videos share."""
        # Made at the first use: a program that only looks at the catalog loads no decoder.  A lock
        # could be held by another thread at a fork.  With a list, the first of two threads wins.
        if not self._made_tools:
            from vfsd.read.read_context import ReadContext

            made = ReadContext.of(self._parts, self._threads)
            self._made_tools.append(made)
            if self._made_tools[0] is not made:
                made.close()
        return self._made_tools[0]

    @property
    def _tools(self) -> ReadContext:
        return self.tools

    @property
    def catalog(self) -> Catalog:
        """What is stored: finding, tagging, frame tables, where each byte lies."""
        return self._parts.catalog

    @property
    def settings(self) -> StoreSettings:
        return self._parts.settings

    # -- videos

    def __getitem__(self, name: str) -> Video:
        """The video called `name`.

        Waits for a file that a mount is just making into a video.  Raises `NotFoundError`, also
        for a file that is no video.
        """
        self._settle(name)
        return self.open_video(self.catalog.video(name))

    def __contains__(self, name: object) -> bool:
        try:
            self.catalog.video(str(name))
        except (NotFoundError, UsageError):  # nothing can be called so
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        """The names of all videos, sorted."""
        return iter(self.catalog.find().names())

    def __len__(self) -> int:
        return len(self.catalog.find())

    def find(self, name: str | None = None, **what: Unpack[FindOptions]) -> Iterator[Video]:
        """The videos that `Catalog.find` finds, ready to be read."""
        return (self.open_video(info) for info in self.catalog.find(name, **what))

    def read(self, name: str, **what: Unpack[ReadOptions]) -> Frames:
        """Frames of the video called `name`; see `Video.read`."""
        return self[name].read(**what)

    def scan(self, name: str, labels: Labels | None = None, **what: Unpack[ScanOptions]) -> Scan:
        """What was seen in the video called `name`, with its pixels; see `Video.scan`."""
        return self[name].scan(labels, **what)

    def advise(self, name: str, workload: Sequence[WorkloadQuery] | None = None) -> Advice:
        """What to tile of the video called `name` for a workload; see `Video.advise`."""
        return self[name].advise(workload)

    @property
    def budget(self) -> DerivedBudget:
        """What the tiles and renditions of all videos take and may take."""
        from vfsd.derive.derived_budget import DerivedBudget

        return DerivedBudget(self._parts, self._tools, None)

    # -- tiles by what was read

    def proposals(self, names: Sequence[str] | None = None) -> list[Proposal]:
        """What should be tiled, going by the reads that are remembered; the best value first.

        Of the videos called `names`, or of all.  Raises `NotFoundError`.
        """
        return self.tuner(names).proposals()

    def tune(
        self,
        names: Sequence[str] | None = None,
        *,
        budget: TuningBudget | None = None,
        on_progress: OnProgress | None = None,
        on_failed: OnFailed | None = None,
    ) -> list[TilingDecision]:
        """Make what is proposed, the best value first, as far as `budget` goes; what was made.

        Each segment is published by itself, together with the decision.  `on_failed` is told of
        each video that is damaged, or whose pictures cannot be put into tiles: (video, error).
        Raises `NotFoundError`, and as `Video.retile` does; what was finished until then stays.
        """
        return self.tuner(names).tune(budget, on_progress, on_failed)

    def tuner(
        self,
        names: Sequence[str] | None = None,
        *,
        maker: str = "tune",
        between: BetweenSteps | None = None,
        terms: LedgerParameters | None = None,
    ) -> Tuner:
        """For those who make one proposal at a time; see `vfsd.derive.tuner.Tuner`."""
        from vfsd.derive.tuner import Tuner

        return Tuner(
            self._parts,
            self._tools,
            lambda: self._read_lately() if names is None else self.named(names),
            self.open_video,
            maker=maker,
            between=between,
            terms=terms,
        )

    def undo(self, decision: int | None = None) -> TilingDecision:
        """Take back the decision of that number, by default the last that is in use.

        What it had taken the place of is used again.  Raises `NotFoundError`, `ExistsError` where
        it was taken back before, `OutdatedError` where something later has its place.
        """
        from vfsd.derive.tuner import undo_decision

        number = None if decision is None else whole_number(decision, "decision")
        return undo_decision(self._parts, number)[0]

    def named(self, names: Iterable[str]) -> list[Video]:
        """The videos of these names, in that order.

        Raises `UsageError` for anything but a list of names, `NotFoundError`.
        """
        if isinstance(names, str):
            raise UsageError(f"{names!r} is one name", hint=f"give a list: [{names!r}]")
        if not isinstance(names, Iterable):
            raise UsageError(
                f"names must be a list, got {shown(names)}", hint="give a list of names"
            )
        return [self[name] for name in names]

    def _read_lately(self) -> list[Video]:
        """The videos of which any reads are remembered."""
        found = []
        with self.catalog.reading() as seen:
            for number in seen.reads.videos():
                with suppress(NotFoundError, IntegrityError):  # it is just being written
                    found.append(seen.videos.get(number))
        return [self.open_video(info) for info in found]

    def read_many(self, requests: Iterable[Request]) -> Iterator[Frames]:
        """What `Video.read` gives for each of (name, its arguments), in that order.

            clips = [("a.mp4", {"span": (1, 2)}), ("b.mp4", {"frames": [7], "size": (64, 48)})]
            for frames in store.read_many(clips): ...

        Several are read side by side.  Raises `NotFoundError`, and as `Video.read` does, when it is
        that request's turn.
        """
        from vfsd.api.batches import read_many

        return read_many(self.__getitem__, requests, self._tools.pool.threads)


def _require_unused(root: Path, catalog_url: str) -> None:
    """Raises `ExistsError` for the catalog of another store than the one that is made in `root`,
    before anything is made.  `Catalog.create` asks once more, when it is its turn."""
    if Catalog.is_at(catalog_url):
        owner = Catalog.owner_at(catalog_url)
        if owner is None or owner != StoreDirectory.begun_id(root):
            raise database_taken_error(catalog_url)
