"""The work of a unit, by verb.  Each function may run any number of times, also at once.

The transaction that publishes a result compares it with the catalog.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vfsd.api.detect import detect
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.model import LogicalVideo
from vfsd.core.process_control import host_name
from vfsd.core.subprocess_entry import child_environment, module_command
from vfsd.derive.deferred_compression import recompress_segment
from vfsd.derive.retile import missing_segments, retile
from vfsd.derive.tile_encoder import TileSettings
from vfsd.disk.object_store import digest_file
from vfsd.errors import (
    EXIT_FINDINGS,
    ExistsError,
    IntegrityError,
    NotFoundError,
    NothingSavedError,
    OutdatedError,
    OverBudgetError,
    RefusedMediaError,
    UnreachableError,
    UsageError,
    VfsdError,
)
from vfsd.labels.detectors import make_detector
from vfsd.maintenance.remote_backup import copy_objects
from vfsd.maintenance.scrub import Scrubber
from vfsd.work.plan import proposals_from_json, segments_from_json
from vfsd.work.units import (
    FAILED,
    MADE,
    OUTDATED,
    REFUSED,
    SKIPPED,
    TAKEN,
    OnProgress,
    Outcome,
    Unit,
)
from vfsd.write.ingest_file import (
    SourceFile,
    ingest_copy,
    ingest_own_file,
    is_ingested,
    require_outside_store,
)

_CHUNK = 1 << 20
_SILENT_SECONDS = 20.0
# `verify` decodes in a process of its own.
_DECODING = frozenset({"retile", "render", "detect", "replace", "tune"})
_BUCKET_MODULE = "vfsd.remote.copy_file"


def run_verb(store: Store, unit: Unit, on_progress: OnProgress) -> Outcome:
    """Perform a unit.  Raises errors of the video, and those after which it may be tried again."""
    if unit.verb == "ingest":
        return _ingest(store, unit, on_progress)
    if unit.verb == "backup":
        return _backup(store, unit, on_progress)
    info = _info_of(store, unit)
    try:
        if info is not None and info.digest == unit.digest:
            entry = store.parts.quarantine.of(info.original, now=True)
            if entry is not None and entry.barred and unit.verb in _DECODING:
                return Outcome(
                    REFUSED,
                    error=f"{info.name}: {entry.reason}",
                    exit_code=RefusedMediaError.exit_code,
                )
            return _VERBS[unit.verb](store, store.open_video(info), unit, on_progress)
    except (NotFoundError, OutdatedError):
        info = _info_of(store, unit)
        if info is not None and info.digest == unit.digest:
            raise
    # Removed or replaced, perhaps by another run of this unit.
    is_done = unit.verb == "replace" and info is not None and _is_replaced(store, info, unit)
    return Outcome(SKIPPED, skipped=1) if is_done else Outcome(OUTDATED)


def _info_of(store: Store, unit: Unit) -> LogicalVideo | None:
    """Return the video of a unit; None if it is gone."""
    assert unit.video is not None
    try:
        with store.catalog.reading() as seen:
            info = seen.videos.get(unit.video)
    except NotFoundError:
        return None
    return info if info.name else None


# ----------------------------------------------------------------------------------------- ingest


def _ingest(store: Store, unit: Unit, on_progress: OnProgress) -> Outcome:
    spec, name = unit.spec, str(unit.spec["name"])
    size = -1
    try:
        with _local_source(store, str(spec["source"]), on_progress) as (path, is_own):
            source = SourceFile(path, name, path.stat().st_size)
            size = source.size
            done = _ingest_file(store, source, spec, on_progress, is_own=is_own)
    except RefusedMediaError as error:
        if not spec.get("skip_refused"):
            raise
        return Outcome(SKIPPED, skipped=1, error=str(error), exit_code=error.exit_code)
    if done.outcome == TAKEN:
        return done
    video = store[name]
    if spec.get("tags"):
        store.catalog.tag(video.info, *spec["tags"])
    if spec.get("verify") and not video.original.verified:
        video.verify(on_progress=on_progress)
    return Outcome(
        done.outcome,
        made=done.made,
        skipped=done.skipped,
        frames=len(video),
        bytes_read=size,
        bytes_written=size if done.made else 0,
    )


def _ingest_file(
    store: Store,
    source: SourceFile,
    spec: Mapping[str, Any],
    on_progress: OnProgress,
    *,
    is_own: bool,
) -> Outcome:
    stream, in_largest_size = spec.get("stream"), spec.get("size") == "largest"

    def advance(count: int) -> None:
        on_progress(count, source.size)

    if is_ingested(store.parts, source, stream, in_largest_size=in_largest_size):
        return Outcome(SKIPPED, skipped=1)
    try:
        if is_own and stream is None and not in_largest_size:
            ingest_own_file(store.parts, source, on_progress=advance)
        else:
            if not is_own:
                require_outside_store(store.parts, source)
            ingest_copy(
                store.parts,
                source,
                stream=stream,
                in_largest_size=in_largest_size,
                on_progress=advance,
            )
    except ExistsError as error:
        # Perhaps another run of this unit was faster.
        if _has_bytes(store, source):
            return Outcome(SKIPPED, skipped=1)
        return Outcome(TAKEN, error=str(error), exit_code=error.exit_code)
    return Outcome(MADE, made=1)


def _has_bytes(store: Store, source: SourceFile) -> bool:
    """Return whether the name of a source is that of a video with its bytes."""
    try:
        info = store[source.name].info
    except VfsdError:  # another file, or one that cannot be opened
        return False
    return info.size == source.size and digest_file(source.path).key == info.digest


@contextmanager
def _local_source(
    store: Store, source: str, on_progress: OnProgress
) -> Iterator[tuple[Path, bool]]:
    """Yield a file with the bytes of a source, and whether it is a temporary file of the store."""
    if "://" not in source:
        path = Path(source)
        if not path.is_file():
            raise NotFoundError(
                f"{host_name()} has no file {source}: sources of an order must be on storage that "
                "all workers share, or be URLs"
            )
        yield path, False
        return
    with store.parts.objects.new_file() as new:
        if urlsplit(source).scheme in ("http", "https"):
            _download(source, new.path, on_progress)
        else:
            _copy_from_bucket(store, source, new.path)
        yield new.path, True


def _download(url: str, path: Path, on_progress: OnProgress) -> None:
    try:
        with (
            urllib.request.urlopen(url, timeout=_SILENT_SECONDS) as answer,
            path.open("wb") as file,
        ):
            expected = int(answer.headers.get("Content-Length") or -1)
            modified = answer.headers.get("Last-Modified")
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                on_progress(file.tell(), max(expected, file.tell()))
            size = file.tell()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code < 500 and error.code != 429:
            raise NotFoundError(f"{url} answers {error.code} {error.reason}") from None
        raise UnreachableError(f"{url} answers {error.code} {error.reason}") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise UnreachableError(f"{url} cannot be read: {error}") from error
    if expected not in (-1, size):
        raise UnreachableError(f"{url} ended after {size} of {expected} bytes")
    if modified:
        at = parsedate_to_datetime(modified).timestamp()
        os.utime(path, (at, at))


# The client of buckets must not run in a process that may fork.
def _copy_from_bucket(store: Store, url: str, path: Path) -> None:
    bucket = store.parts.directory.bucket
    options = [] if bucket is None else [f"{key}={value}" for key, value in bucket[1].items()]
    done = subprocess.run(
        module_command(_BUCKET_MODULE, url, os.fspath(path), *options),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=child_environment(),
        check=False,
    )
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        kind = NotFoundError if done.returncode == NotFoundError.exit_code else UnreachableError
        raise kind(f"{url} cannot be read: {text[-1]}")


def _backup(store: Store, unit: Unit, on_progress: OnProgress) -> Outcome:
    spec = unit.spec
    done = copy_objects(
        store.parts,
        spec["to"],
        spec.get("options") or {},
        tuple(spec["keys"]),
        derived=spec.get("derived", True),
        on_progress=on_progress,
    )
    return Outcome(
        MADE if done.objects else SKIPPED,
        made=done.objects,
        skipped=done.there,
        bytes_read=done.bytes,
        bytes_written=done.bytes,
    )


# ------------------------------------------------------------------------------- tiles and labels


def _retile(store: Store, video: Video, unit: Unit, on_progress: OnProgress) -> Outcome:
    spec = unit.spec
    settings = TileSettings(spec["codec"], spec["psnr"], spec["quality"])
    planned = segments_from_json(spec["segments"])
    context = context_of(video)
    if not video.original.verified:
        raise UsageError(
            f"{video.name} was not verified", hint=f"run `vfsd verify {video.name}` first"
        )
    wanted = missing_segments(context.parts, video.info, planned, settings)
    made = retile(
        context.parts,
        context.tools.pool,
        video.info,
        context.table,
        planned,
        settings,
        jobs=1,
        on_progress=on_progress,
    )
    frames = sum(len(one.frames) for one in wanted)
    return Outcome(
        MADE if made else SKIPPED,
        made=len(made),
        skipped=len(planned) - len(made),
        frames=frames,
        bytes_read=_bytes_of(video, frames),
        bytes_written=sum(one.size for one in made),
    )


def _detect(store: Store, video: Video, unit: Unit, on_progress: OnProgress) -> Outcome:
    assert unit.frames is not None
    spec, frames = unit.spec, range(*unit.frames)
    every = spec.get("every") or 1
    detector = make_detector(
        spec["detector"],
        every=every,
        min_confidence=spec.get("min_confidence"),
        label=spec.get("label"),
        names=None if spec.get("names") is None else Path(spec["names"]),
    )
    context, again = context_of(video), bool(spec.get("replace"))
    before = 0 if again else _examined(video, detector.source, frames)
    boxes = detect(
        context, detector, None, every, on_progress, again, float("inf"), frames_only=frames
    )
    after = _examined(video, detector.source, frames)
    return Outcome(
        MADE if after - before else SKIPPED,
        made=boxes,
        skipped=before,
        frames=after - before,
        bytes_read=_bytes_of(video, len(frames)) if after - before else 0,
    )


def _examined(video: Video, source: Any, frames: range) -> int:
    """Return how many of the frames a source has examined."""
    found = (one.frames for one in video.labels.examined(source))
    return sum(max(0, min(one.stop, frames.stop) - max(one.start, frames.start)) for one in found)


def _verify(store: Store, video: Video, unit: Unit, on_progress: OnProgress) -> Outcome:
    original = video.original
    if unit.spec.get("all") and original.verified and original.damage is not None:
        return Outcome(SKIPPED, skipped=1)
    try:
        corrected = video.verify(on_progress=on_progress)
    except (RefusedMediaError, IntegrityError) as error:
        return Outcome(FAILED, error=str(error), exit_code=EXIT_FINDINGS)
    status = "corrected" if corrected else "right"
    details = {"status": status, "damaged": video.original.damaged_frames}
    size = video.info.size
    return Outcome(MADE, made=1, frames=len(video), bytes_read=size, details=details)


def _scrub(store: Store, video: Video, unit: Unit, on_progress: OnProgress) -> Outcome:
    # Files that were read since the order was made are skipped.
    age = max(0.0, time.time() - float(unit.spec["since"]))
    scrubber = Scrubber(
        context_of(video).parts,
        [video.info],
        older_than=age,
        rate=unit.spec.get("rate"),
        on_progress=on_progress,
    )
    count, size = scrubber.planned
    damage = [one.message for one in scrubber.run()]
    damage += [str(error) for error in [*scrubber.unread, *scrubber.stuck]]
    if damage:
        return Outcome(
            FAILED, made=count, bytes_read=size, error="; ".join(damage), exit_code=EXIT_FINDINGS
        )
    return Outcome(MADE if count else SKIPPED, made=count, bytes_read=size)


# ----------------------------------------------------------- compression, replacement and tuning


def _compress(store: Store, video: Video, unit: Unit, on_progress: OnProgress) -> Outcome:
    level = int(unit.spec["level"])
    read = written = made = 0
    damage = []

    def on_bytes(count: int) -> None:
        on_progress(count, count)

    for number in unit.spec["segments"]:
        try:
            with store.catalog.reading() as seen:
                segment = seen.segments.get(number)
            if all(cell.quality >= level for cell in segment.cells):
                continue
            after = recompress_segment(store.parts, segment, level, on_bytes=on_bytes)
        except NotFoundError:  # dropped, or compressed by another process
            continue
        except IntegrityError as error:
            damage.append(f"segment {number}: {error}")
            continue
        made, read, written = made + 1, read + segment.size, written + after.size
    skipped = len(unit.spec["segments"]) - made - len(damage)
    outcome = FAILED if damage else MADE if made else SKIPPED
    return Outcome(
        outcome,
        made=made,
        skipped=skipped,
        bytes_read=read,
        bytes_written=written,
        error="; ".join(damage) or None,
        exit_code=EXIT_FINDINGS if damage else None,
    )


def _replace(store: Store, video: Video, unit: Unit, on_progress: OnProgress) -> Outcome:
    spec, size = unit.spec, video.info.size

    def report(what: str, done: int, total: int) -> None:
        on_progress(done, total)

    policy, given = video.policy, {"psnr": spec.get("psnr"), "codec": spec["codec"]}
    try:
        if spec.get("keep"):
            done = policy.decay(spec["keep"], **given, on_progress=report)
        else:
            done = policy.replace_original(**given, on_progress=report)
    except NothingSavedError as error:
        return Outcome(SKIPPED, skipped=1, error=str(error))
    return Outcome(MADE, made=1, frames=len(video), bytes_read=size, bytes_written=done.new_size)


def _is_replaced(store: Store, info: LogicalVideo, unit: Unit) -> bool:
    """Return whether the bytes of a video replaced those that a unit is about."""
    with store.catalog.reading() as seen:
        entry = seen.retention.replacement(info.id, info.digest)
    return entry is not None and entry.digest == unit.digest


def _tune(store: Store, video: Video, unit: Unit, on_progress: OnProgress) -> Outcome:
    tuner = store.tuner(video.name, between=lambda: on_progress(0, 0))
    made = []
    outdated = skipped = 0
    for proposal in proposals_from_json(video.info, unit.spec["proposals"]):
        try:
            made.append(tuner.make(proposal))
        except OutdatedError:
            # Other tiles than those that the proposal was compared with: perhaps its own.
            plan = proposal.plan
            if missing_segments(store.parts, video.info, [plan], proposal.settings):
                outdated += 1
            else:
                skipped += 1
        except OverBudgetError:  # existing data is worth more
            skipped += 1
    frames = sum(len(one.frames) for one in made)
    return Outcome(
        MADE if made else OUTDATED if outdated else SKIPPED,
        made=len(made),
        skipped=skipped + outdated,
        frames=frames,
        bytes_read=_bytes_of(video, frames),
        bytes_written=sum(one.bytes for one in made),
    )


def _bytes_of(video: Video, frames: int) -> int:
    return round(video.original.size * frames / max(1, len(video)))


_VERBS: Mapping[str, Callable[[Store, Video, Unit, OnProgress], Outcome]] = {
    "retile": _retile,
    "render": _retile,
    "detect": _detect,
    "verify": _verify,
    "scrub": _scrub,
    "compress": _compress,
    "replace": _replace,
    "tune": _tune,
}
