"""``vfsd ingest``: add files and directory trees to the store."""

from __future__ import annotations

import os
import posixpath
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define, replace_option
from vfsd.cli.errors import describe
from vfsd.cli.options import capture_value, require_zone_needed, word_value
from vfsd.cli.output import Progress, column_lines, print_json, print_line, printable
from vfsd.cli.session import Session, store_name
from vfsd.cli.work import ORDER_EXITS, ORDER_VARIANTS, engine_options, run_units
from vfsd.core.capture_time import CaptureTime, capture_source
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    BusyError,
    ExistsError,
    HeldError,
    NotFoundError,
    OverBudgetError,
    RefusedMediaError,
    StoreError,
    UsageError,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.model import LogicalVideo
    from vfsd.write.ingest_file import SourceFile

_MOST_FOLDERS = 10


@define(
    "ingest",
    examples=[
        "vfsd -s videos ingest footage/traffic.mp4 --to cam1 --replace",
        "vfsd -s videos ingest footage --tag summer --skip-refused",
        "vfsd -s videos ingest footage/portrait.mp4 --as front-door.mp4 --link",
        "vfsd -s videos ingest footage/portrait.mp4 --as front-door-0.mp4 --stream 0",
        "vfsd -s videos ingest footage/portrait.mp4 --to web --browser",
        "vfsd -s videos ingest footage --to more --skip-refused --on local:2",
        "vfsd -s videos ingest footage --captured 'name:%Y-%m-%d/%H-%M-%S' --zone Europe/Zurich",
    ],
    fields={
        "source": "path of the file",
        "name": "path from the root of the store",
        "status": "ingested, skipped (exists), put back (exists, was damaged), refused, exists "
        "(as another file), failed; planned with --dry-run",
        "size": "bytes",
        "reason": "why it was refused or failed, else null",
        "frames": "number of displayed frames, null if not ingested",
        "seconds": "duration, null if not ingested",
        "corrected": "whether --verify corrected the frame table; null without a check",
        "browser": "with --browser: rendition, played (browsers play the video) or why there can "
        "be no rendition; else null",
    },
    variants=ORDER_VARIANTS,
    exits=[RefusedMediaError, ExistsError, NotFoundError, HeldError, *ORDER_EXITS],
    listing=True,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--to",
    "target",
    metavar="DIR",
    default="",
    help="Directory in the store. A PATH that is a directory keeps its name in it.",
)
@click.option("--as", "rename", metavar="NAME", help="Name in the store, for a single PATH.")
@click.option("--link", is_flag=True, help="Index files in place instead of copying them.")
@replace_option("Replace existing files.")
@click.option(
    "--tag",
    "tags",
    metavar="WORD",
    type=word_value,
    multiple=True,
    help="Tag every new video.",
)
@click.option(
    "--stream",
    metavar="N",
    type=click.IntRange(min=0),
    help="Number of the video stream to index, among all streams of the file. The default is "
    "FFmpeg's choice.",
)
@click.option(
    "--size",
    type=click.Choice(("first", "largest")),
    help="If the pictures change their size, scale them to the first size (the default) or to "
    "the largest.",
)
@click.option(
    "--verify/--no-verify",
    default=False,
    help="Decode each new video at once, to check every frame. By default a mount does it in "
    "idle time, or `vfsd verify`.",
)
@click.option(
    "--browser",
    is_flag=True,
    help="Make a rendition for web browsers at once, where one is needed: as wide as the policy "
    "says, or 1280 pixels.",
)
@click.option(
    "--captured",
    metavar="SOURCE",
    type=capture_value,
    help="When the videos were recorded: a time, container (the default) or name:PATTERN; see "
    "`vfsd captured`.",
)
@click.option(
    "--zone", metavar="ZONE", help="Time zone of the names, like Europe/Zurich. The default is UTC."
)
@click.option("--skip-refused", is_flag=True, help="Do not fail for files that are not videos.")
@engine_options
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
def ingest(
    session: Session,
    paths: tuple[str, ...],
    target: str,
    rename: str | None,
    link: bool,
    replace: bool,
    tags: tuple[str, ...],
    stream: int | None,
    size: str | None,
    verify: bool,
    browser: bool,
    captured: datetime | str | None,
    zone: str | None,
    skip_refused: bool,
    on: str | None,
    units: Path | None,
    dry_run: bool,
) -> None:
    """Add videos to the store.

    Each PATH is a file, or a directory that is added with its name (`DIR/.`: only its contents).
    Missing directories in the store are created. The names of new videos are printed.

    A video with the same name, size and time is skipped, so the same command continues after an
    interruption. If the bytes in the store are damaged or missing, they are put back; a damaged
    frame table is rebuilt. A file that is not a video is refused, and the command continues.

    With --on, all workers must be able to read each PATH, and it may be a URL: http, https, s3, gs
    or az. A name that has another file is left alone.
    """
    from vfsd.disk.external_files import require_linkable
    from vfsd.write.ingest_file import require_outside_store

    require_zone_needed(zone, captured)
    if rename is not None and len(paths) != 1:
        raise UsageError("--as takes a single file or directory", hint="use --to for several")
    if rename is not None and rename.endswith("/") and not os.path.isdir(paths[0]):
        raise UsageError(
            f"{rename!r} names a directory",
            hint=f"`--to {shlex.quote(rename)}` puts the file into it",
        )
    place = session.place(target)
    if on is not None or units is not None:
        if link or replace or browser or captured is not None:
            raise UsageError(
                "--link, --replace, --browser and --captured cannot be combined with --on",
                hint="ingest these files without --on; `vfsd captured` sets times later, and "
                "`vfsd render --browser` makes renditions",
            )
        options = {
            "stream": stream,
            "size": size,
            "tags": list(tags),
            "verify": verify,
            "skip_refused": skip_refused,
        }
        name = None if rename is None else store_name(rename)
        found = _sources_for_workers(paths, place.name, name)
        with session.opened(place.root, writing=not dry_run) as store:
            from vfsd.work.plan import ingest_units

            run_units(
                *(session, store, "ingest", [one[1] for one in found], options),
                list(ingest_units(found, options)),
                on=on,
                units=units,
                dry_run=dry_run,
            )
        return
    sources = plan_sources(paths, place.name, None if rename is None else store_name(rename))
    total = sum(source.size for source in sources)
    shown_bar = session.shows_progress and not dry_run
    outcomes: list[IngestOutcome] = []
    with session.opened(place.root, writing=not dry_run) as store:
        for source in sources:
            require_outside_store(store.parts, source)
            if link:
                require_linkable(source.path.resolve())
        ingester = Ingester(
            store,
            link=link,
            replace=replace,
            tags=tags,
            verify=verify,
            browser=browser,
            stream=stream,
            size=size,
            captured=None if captured is None else capture_source(captured, zone or "UTC"),
        )
        try:
            with Progress("ingesting", total, shown=shown_bar, in_bytes=True) as progress:
                done = 0
                for source in sources:
                    if dry_run:
                        outcome = ingester.predict(source)
                    else:
                        outcome = ingester.ingest(source, progress)
                    outcomes.append(outcome)
                    with progress.hidden():
                        _print_outcome(session, outcome)
                    done += source.size
                    progress.reach(done, total)
        finally:
            _summarize(session, outcomes, len(sources))
    click.get_current_context().exit(_exit_code(outcomes, skip_refused))


def _sources_for_workers(
    paths: Sequence[str], target: str, rename: str | None
) -> list[tuple[str, str, int]]:
    """Return (absolute path or URL, name, bytes) of each file."""
    from vfsd.work.plan import named_sources

    urls = [path for path in paths if "://" in path]
    files = plan_sources([path for path in paths if "://" not in path], target, rename)
    found = [(os.path.abspath(one.path), one.name, one.size) for one in files]
    for url, name, size in named_sources(urls, target):
        found.append((url, posixpath.join(target, rename) if rename else name, size))
    duplicates = [name for name, count in Counter(one[1] for one in found).items() if count > 1]
    if duplicates:
        raise _duplicate_error(duplicates[0])
    return found


def _duplicate_error(name: str) -> UsageError:
    return UsageError(
        f"several files would be named {name!r}", hint="ingest them one by one, with --as"
    )


def _print_outcome(session: Session, outcome: IngestOutcome) -> None:
    if session.json:
        print_json(_outcome_record(outcome))
    elif outcome.status in ("ingested", "put back", "planned"):
        print_line(printable(outcome.source.name))


def _outcome_record(outcome: IngestOutcome) -> dict[str, Any]:
    original = None if outcome.video is None else outcome.video.original
    return {
        "source": str(outcome.source.path),
        "name": outcome.source.name,
        "status": outcome.status,
        "size": outcome.source.size,
        "reason": outcome.reason,
        "frames": None if original is None else original.frames,
        "seconds": None if original is None else float(original.duration),
        "corrected": outcome.corrected,
        "browser": outcome.browser,
    }


def _summarize(session: Session, outcomes: Sequence[IngestOutcome], planned: int) -> None:
    """Print the totals, and a line for every file that was not ingested."""
    counts = Counter(outcome.status for outcome in outcomes)
    size = sum(o.source.size for o in outcomes if o.status == "ingested")
    parts = [f"{count} {status}" for status, count in counts.items()]
    if size:
        parts.append(human_bytes(size))
    if len(outcomes) < planned:
        parts.append(f"{planned - len(outcomes)} not done")
    session.remark(", ".join(parts) or "nothing to ingest")
    # `ingest DIR --to odd` makes odd/DIR/, which is not obvious from the option.
    added = [o for o in outcomes if o.status in ("ingested", "planned")]
    folders = Counter(posixpath.dirname(o.source.name) for o in added)
    for folder, count in list(folders.items())[:_MOST_FOLDERS]:
        session.remark(f"{count} into {printable(folder) + '/' if folder else 'the top directory'}")
    if len(folders) > _MOST_FOLDERS:
        session.remark(f"and {len(folders) - _MOST_FOLDERS} more directories")
    missing = [
        (outcome.status, printable(str(outcome.source.path)), outcome.reason)
        for outcome in outcomes
        if outcome.reason is not None
    ]
    for line in column_lines(missing, "<<<"):
        session.remark(line)


def _exit_code(outcomes: Sequence[IngestOutcome], skip_refused: bool) -> int:
    """The exit code of the worst outcome: failures, then existing names, then refused files."""
    # Scripts see one code only: the one that needs attention first.
    for status in ("failed", "exists", "refused"):
        for outcome in outcomes:
            if outcome.status == status and not (skip_refused and status == "refused"):
                return outcome.exit_code
    return 0


@dataclass(frozen=True, slots=True)
class IngestOutcome:
    """The result for one file."""

    source: SourceFile
    status: str  #: ingested, skipped, put back, planned, refused, exists or failed
    reason: str | None = None
    exit_code: int = 0
    video: LogicalVideo | None = None
    corrected: bool | None = None  #: whether a full decode corrected the frame table
    browser: str | None = None  #: rendition, played, or why there can be no rendition


@dataclass(frozen=True, slots=True)
class Ingester:
    """Settings of an ingest, for all of its files."""

    store: Store
    link: bool
    replace: bool
    tags: Sequence[str]
    verify: bool
    browser: bool = False
    stream: int | None = None
    size: str | None = None  #: first, largest, or None for the default
    captured: Callable[[LogicalVideo], CaptureTime | None] | None = None

    def predict(self, source: SourceFile) -> IngestOutcome:
        """The outcome of `ingest`, as far as it is known without reading the file."""
        from vfsd.write.ingest_file import require_name_free

        if self._is_there(source):
            return IngestOutcome(source, "skipped")
        try:
            require_name_free(self.store.parts, source.name, self.replace)
        except ExistsError as error:
            return _failure_of(source, error)
        return IngestOutcome(source, "planned")

    def ingest(self, source: SourceFile, progress: Progress) -> IngestOutcome:
        """Ingest one file.

        An error of the file becomes its outcome. An error of the store is raised, since it would
        hit the next file, too.
        """
        from vfsd.write.frame_index import restore_original_file

        progress.label(os.path.basename(source.name))
        try:
            if self._is_there(source):
                was_damaged = restore_original_file(self.store.parts, source)
                self._tag(self.store.catalog.video(source.name))
                return IngestOutcome(source, "put back" if was_damaged else "skipped")
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
                # The bytes are counted already; this call makes Ctrl-C work.
                corrected = video.verify(on_progress=lambda *_: progress.advance(0))
            made = self._browser_rendition(video, progress) if self.browser else None
            return IngestOutcome(
                source, "ingested", video=video.info, corrected=corrected, browser=made
            )
        except BusyError as error:  # the file changed while it was read
            return _failure_of(source, error)
        except StoreError:  # it would hit the next file, too
            raise
        except ExistsError as error:
            if not self._is_there(source):
                return _failure_of(source, error)
            # Another process has ingested the same file.
            self._tag(self.store.catalog.video(source.name))
            return IngestOutcome(source, "skipped")
        except (RefusedMediaError, NotFoundError, OSError) as error:
            return _failure_of(source, error)

    def _browser_rendition(self, video: Video, progress: Progress) -> str:
        from vfsd.derive.rendition_plan import BROWSER_WIDTH
        from vfsd.maintenance.browser_policy import make_browser_rendition

        progress.label(f"encoding {os.path.basename(video.name)} for browsers")
        width = self.store.catalog.policy(video.info).browser or BROWSER_WIDTH
        try:
            result = make_browser_rendition(
                video, width, on_progress=lambda *_: progress.advance(0)
            )
        except OverBudgetError as error:  # the video is ingested
            return str(error)
        return result.refused or ("rendition" if result.made else "played")

    def _is_there(self, source: SourceFile) -> bool:
        from vfsd.write.ingest_file import is_ingested

        in_largest_size = None if self.size is None else self.size == "largest"
        return is_ingested(self.store.parts, source, self.stream, in_largest_size=in_largest_size)

    def _tag(self, video: LogicalVideo) -> None:
        if self.tags:
            self.store.catalog.tag(video, *self.tags)
        if self.captured is not None:
            # A name without a time leaves that of the container.
            when = self.captured(video) or video.captured
            with self.store.catalog.writing() as change:
                change.videos.set_captured(video.id, when)


def plan_sources(paths: Sequence[str], target: str, rename: str | None) -> list[SourceFile]:
    """Every file in `paths`, with its name in the store.

    Raises `NotFoundError`, `RefusedMediaError` for a special file such as a device, `UsageError` if
    two files would get the same name.
    """
    found = [source for path in paths for source in _sources_of(path, target, rename)]
    duplicates = [name for name, count in Counter(s.name for s in found).items() if count > 1]
    if duplicates:
        raise _duplicate_error(duplicates[0])
    return found


def _sources_of(given: str, target: str, rename: str | None) -> Iterator[SourceFile]:
    from vfsd.validation import no_such_file
    from vfsd.write.ingest_file import SourceFile, plan_tree

    path = Path(given)
    own = os.path.basename(given.rstrip("/"))
    name = rename if rename is not None else "" if own in (".", "..") else own
    name = posixpath.join(target, name) if name else target
    if path.is_dir():
        yield from plan_tree(path, name)
    elif path.is_file():
        yield SourceFile(path, name, path.stat().st_size)
    elif path.exists():
        raise RefusedMediaError(f"{given} must be a regular file")
    else:
        raise no_such_file(given)


def _failure_of(source: SourceFile, error: Exception) -> IngestOutcome:
    what = describe(error)
    status = "failed"
    if isinstance(error, RefusedMediaError):
        status = "refused"
    elif isinstance(error, ExistsError):
        status = "exists"
    return IngestOutcome(source, status, what.message, what.exit_code)
