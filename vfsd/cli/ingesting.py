"""The work of ``vfsd ingest``, file by file: what fails is reported, and the rest goes on."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vfsd.api.store import Store
from vfsd.cli.failure import describe
from vfsd.cli.progress import Progress
from vfsd.core.model import LogicalVideo
from vfsd.errors import (
    BusyError,
    ExistsError,
    NotFoundError,
    RefusedMediaError,
    StoreError,
    UsageError,
)
from vfsd.validation import no_such_file
from vfsd.write.ingest import Source, is_there, plan_tree, require_free
from vfsd.write.rebuild_index import put_back


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one file."""

    source: Source
    status: str  #: ingested, skipped, put back, planned, refused, exists or failed
    reason: str | None = None
    exit_code: int = 0
    video: LogicalVideo | None = None
    corrected: bool | None = None  #: whether a full decode had to correct the frame table


@dataclass(frozen=True, slots=True)
class Ingester:
    """How files are taken in."""

    store: Store
    link: bool
    replace: bool
    tags: Sequence[str]
    verify: bool
    stream: int | None = None
    size: str | None = None  #: first, largest, or None for no wish

    def foretell(self, source: Source) -> Outcome:
        """What `ingest` would do, as far as can be told without looking into the file."""
        if self._is_there(source):
            return Outcome(source, "skipped")
        try:
            require_free(self.store.parts, source.name, self.replace)
        except ExistsError as error:
            return _failed(source, error)
        return Outcome(source, "planned")

    def ingest(self, source: Source, progress: Progress) -> Outcome:
        """Take one file in.  What is wrong with the file is an outcome; what is wrong with the
        store is raised: the next file would meet it, too.
        """
        progress.label(os.path.basename(source.name))
        try:
            if self._is_there(source):
                was_damaged = put_back(self.store.parts, source)
                self._tag(self.store.catalog.video(source.name))
                return Outcome(source, "put back" if was_damaged else "skipped")
            video = self.store.ingest(
                source.path,
                source.name,
                link=self.link,
                replace=self.replace,
                stream=self.stream,
                size=self.size or "first",
                on_progress=progress.advance,
            )
            self._tag(video.info)
            corrected = None
            if self.verify and not video.original.verified:
                progress.label(f"verifying {os.path.basename(source.name)}")
                # The bytes are counted already; this is to be stopped all the same.
                corrected = video.verify(on_progress=lambda *_: progress.advance(0))
            return Outcome(source, "ingested", video=video.info, corrected=corrected)
        except BusyError as error:  # the file changed while it was read
            return _failed(source, error)
        except StoreError:
            raise
        except ExistsError as error:
            if not self._is_there(source):
                return _failed(source, error)
            # Somebody else has taken in the same file meanwhile.
            self._tag(self.store.catalog.video(source.name))
            return Outcome(source, "skipped")
        except (RefusedMediaError, NotFoundError, OSError) as error:
            return _failed(source, error)

    def _is_there(self, source: Source) -> bool:
        in_largest_size = None if self.size is None else self.size == "largest"
        return is_there(self.store.parts, source, self.stream, in_largest_size=in_largest_size)

    def _tag(self, video: LogicalVideo) -> None:
        if self.tags:
            self.store.catalog.tag(video, *self.tags)


def plan_sources(paths: Sequence[str], target: str, rename: str | None) -> list[Source]:
    """Every file that `paths` mean, with its name in the store.

    Raises `NotFoundError`, `RefusedMediaError` for a device or the like, `UsageError` when two
    files would get the same name.
    """
    found = [source for path in paths for source in _sources_of(path, target, rename)]
    twice = [name for name, count in Counter(s.name for s in found).items() if count > 1]
    if twice:
        raise UsageError(
            f"several files would be called {twice[0]!r}", hint="ingest them one by one, with --as"
        )
    return found


def _sources_of(given: str, target: str, rename: str | None) -> Iterator[Source]:
    path = Path(given)
    own = os.path.basename(given.rstrip("/"))
    name = rename if rename is not None else "" if own in (".", "..") else own
    name = posixpath.join(target, name) if name else target
    if path.is_dir():
        yield from plan_tree(path, name)
    elif path.is_file():
        yield Source(path, name, path.stat().st_size)
    elif path.exists():
        raise RefusedMediaError(f"{given} must be a regular file")
    else:
        raise no_such_file(given)


def _failed(source: Source, error: Exception) -> Outcome:
    what = describe(error)
    status = "failed"
    if isinstance(error, RefusedMediaError):
        status = "refused"
    elif isinstance(error, ExistsError):
        status = "exists"
    return Outcome(source, status, what.message, what.exit_code)
