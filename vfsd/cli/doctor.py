"""``vfsd doctor``: checks the machine, and a store on it."""

from __future__ import annotations

import ctypes.util
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.errors import describe
from vfsd.cli.output import print_json, print_line, styled
from vfsd.cli.session import Session
from vfsd.core.output_formats import CODECS
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    EXIT_FINDINGS,
    BusyError,
    RefusedMediaError,
    StoreError,
    UsageError,
    VfsdError,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.catalog import Catalog
    from vfsd.codecs.probing.probe import Examination
    from vfsd.disk.store_layout import StoreDirectory
    from vfsd.write.unfinished_files import UnfinishedRecording


_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@define(
    "doctor",
    examples=["vfsd -s videos doctor", "vfsd doctor --json"],
    fields={
        "check": "name of the check",
        "status": "ok, warn or fail",
        "message": "the result",
        "advice": "how to fix it, else null",
    },
    exits=[EXIT_FINDINGS],
    listing=True,
)
def doctor(session: Session) -> None:
    """Check the machine and a store for problems.

    The store is checked if --store, the mount around the working directory or VFSD_STORE names one.
    Ends with 30 if a check fails; warnings do not count.
    """

    failed = False
    for diagnosis in machine_checks():
        failed |= _print_diagnosis(session, diagnosis)
    try:
        root = session.root()
    except UsageError:
        root = None
    if root is not None:
        for diagnosis in store_checks(root):
            failed |= _print_diagnosis(session, diagnosis)
    if failed:
        click.get_current_context().exit(EXIT_FINDINGS)


def _print_diagnosis(session: Session, found: Diagnosis) -> bool:
    """Print a result. Returns whether the check failed."""
    if session.json:
        print_json(asdict(found))
    elif not session.quiet or found.status != "ok":
        status = styled(found.status.ljust(4), _COLOURS[found.status])
        print_line(f"{status}  {found.check.ljust(11)}  {found.message}")
        if found.advice:
            print_line(f"{'':6}{'':13}{found.advice}")
    return found.status == "fail"


OK, WARN, FAIL = "ok", "warn", "fail"

_DECODERS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mpeg2video", "mjpeg")
_REINSTALL = (
    "install PyAV from its wheels: pip install --force-reinstall --only-binary av av; `pip "
    "check` lists packages with conflicting versions"
)
_LOW_SPACE = 1 << 30
_LARGE_LOG = 64 << 20
# Mounts delete garbage of a bucket several times an hour.
_LATE_SECONDS = 86400.0
_MANY_CONNECTIONS = 0.8
_FUSE_DEVICE = Path("/dev/fuse")
_FUSE_CONF = Path("/etc/fuse.conf")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of a check."""

    check: str
    status: str  #: `OK`, `WARN` or `FAIL`
    message: str
    advice: str | None = None  #: how to fix it


def machine_checks() -> Iterator[Diagnosis]:
    """Checks that need no store."""
    yield Diagnosis("python", OK, f"{platform.python_version()}, {sys.executable}")
    yield _check_ffmpeg()
    yield _check_codecs("decoders", _DECODERS, _has_decoder)
    yield _check_codecs("encoders", tuple(CODECS), _has_encoder)
    yield _check_opencv()
    yield _check_examiner()
    for look in (_check_fuse_device, _check_libfuse, _check_fusermount, _check_allow_other):
        yield look()
    yield _checked("binding", _binding_text)
    yield from _check_mounts()


def store_checks(root: Path) -> Iterator[Diagnosis]:
    """Checks of a store. Checks that depend on a failed one are skipped."""
    from vfsd.disk.store_layout import StoreDirectory

    try:
        directory = StoreDirectory.open(root)
        directory.require_objects()
    except VfsdError as error:
        yield Diagnosis("store", FAIL, str(error), error.hint)
        return
    yield Diagnosis("store", OK, f"{directory.root}, identity {directory.id}")
    yield _check_access(directory.root)
    yield _checked("settings", lambda: _settings_text(directory))
    yield _check_catalog(directory)
    yield from _check_server(directory)
    yield from _check_catalog_log(directory)
    yield from _check_checksums(directory)
    yield from _check_open_store(directory)
    yield _check_mounted(directory)
    yield from _check_mount_log(directory)
    yield from _check_tuner(directory)
    yield _check_free_space(directory.root)


# ------------------------------------------------------------------------------------------ machine


def _check_ffmpeg() -> Diagnosis:
    try:
        from vfsd.codecs.pyav import library_versions

        return Diagnosis("ffmpeg", OK, library_versions())
    except Exception as error:  # a mismatched binary may raise anything
        return _no_pyav("ffmpeg", error)


def _no_pyav(check: str, error: Exception) -> Diagnosis:
    text = f"PyAV cannot be loaded: {type(error).__name__}: {error}"
    return Diagnosis(check, FAIL, text, _REINSTALL)


def _check_codecs(check: str, wanted: Sequence[str], is_there: Callable[[str], bool]) -> Diagnosis:
    try:
        missing = [codec for codec in wanted if not is_there(codec)]
    except Exception as error:
        return _no_pyav(check, error)
    if missing:
        return Diagnosis(check, WARN, f"none for {', '.join(missing)}", _REINSTALL)
    return Diagnosis(check, OK, ", ".join(wanted))


def _has_decoder(codec: str) -> bool:
    from vfsd.codecs.pyav import decoder_context
    from vfsd.core.model import MediaInfo

    try:
        decoder_context(MediaInfo("", codec, None, 16, 16, "yuv420p", Fraction(1, 25), None))
    except RefusedMediaError:
        return False
    return True


def _has_encoder(codec: str) -> bool:
    from vfsd.codecs.encoding.encoder import EncoderSettings, parameter_sets

    try:
        parameter_sets(EncoderSettings(codec, 64, 64, 23, Fraction(25)))
        return True
    except ValueError:
        return False


def _check_opencv() -> Diagnosis:
    try:
        import cv2
    except ImportError as error:  # its wheels need libraries that minimal systems lack
        advice = "apt install libgl1 libglib2.0-0"
        return Diagnosis("opencv", FAIL, f"OpenCV cannot be loaded: {error}", advice)
    return Diagnosis("opencv", OK, cv2.__version__)


def _check_examiner() -> Diagnosis:
    """Examine a video with a subtitle stream in the sandbox, as for every new file."""
    try:
        found = _examined_sample()
    except BusyError as error:
        return Diagnosis("examiner", FAIL, str(error), error.hint)
    except VfsdError as error:
        return Diagnosis("examiner", FAIL, str(error), _REINSTALL)
    except Exception as error:
        return _no_pyav("examiner", error)
    kinds = ", ".join(stream.codec for stream in found.media.side_streams)
    text = f"examined a sample video of {found.media.codec} with {kinds}"
    return Diagnosis("examiner", OK, text)


def _examined_sample() -> Examination:
    from vfsd.codecs.probing.probe import sample_video
    from vfsd.storage.sandbox_pool import Examiner
    from vfsd.storage.sandbox_protocol import SandboxLimits

    with closing(Examiner(SandboxLimits())) as examiner, TemporaryFile() as file:
        file.write(sample_video())
        file.flush()
        return examiner.examine_open(file.fileno(), "a sample video")


def _check_fuse_device() -> Diagnosis:
    if not _FUSE_DEVICE.exists():
        return Diagnosis(
            "fuse",
            FAIL,
            f"{_FUSE_DEVICE} is missing: nothing can be mounted",
            "modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN",
        )
    if not os.access(_FUSE_DEVICE, os.R_OK | os.W_OK):
        return Diagnosis(
            "fuse", FAIL, f"{_FUSE_DEVICE} cannot be opened", f"chmod 666 {_FUSE_DEVICE} (as root)"
        )
    return Diagnosis("fuse", OK, f"{_FUSE_DEVICE} can be opened")


def _check_libfuse() -> Diagnosis:
    found = [name for name in ("fuse3", "fuse") if ctypes.util.find_library(name)]
    if not found:
        return Diagnosis("libfuse", FAIL, "not installed", "apt install fuse3, or libfuse2")
    if "fuse3" not in found:
        return Diagnosis("libfuse", WARN, "version 2 only: small requests", "apt install fuse3")
    return Diagnosis("libfuse", OK, "version 3" + (", and 2" if "fuse" in found else ""))


def _binding_text() -> str:
    from vfsd.mount.fuse.libfuse import load

    binding = load()
    return f"{binding.name}, on libfuse {binding.major}.{binding.minor}"


def _check_fusermount() -> Diagnosis:
    for name in ("fusermount3", "fusermount"):
        path = shutil.which(name)
        if path is not None:
            return Diagnosis("fusermount", OK, path)
    status = WARN if os.geteuid() == 0 else FAIL
    return Diagnosis(
        "fusermount", status, "not installed: only root can mount", "apt install fuse3"
    )


def _check_allow_other() -> Diagnosis:
    try:
        lines = _FUSE_CONF.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    if any(line.strip() == "user_allow_other" for line in lines):
        return Diagnosis("allow_other", OK, "users may share their mounts with others")
    if os.geteuid() == 0:
        return Diagnosis("allow_other", OK, "root may share mounts with others")
    return Diagnosis(
        "allow_other",
        WARN,
        "mounts cannot be shared with other users",
        f"put user_allow_other into {_FUSE_CONF}, if you want -o allow_other",
    )


def _check_mounts() -> Iterator[Diagnosis]:
    """Mounts of vfsd, including those whose process has died."""
    from vfsd.disk.mount_queries import mounts, require_answer

    for mount in mounts():
        if not mount.is_ours:
            continue
        try:
            require_answer(mount.place)
        except PermissionError:
            yield Diagnosis("mount", OK, f"{mount.source} at {mount.place}, of another user")
        except BusyError as error:
            yield Diagnosis("mount", FAIL, str(error), error.hint)
        except OSError as error:
            yield Diagnosis(
                "mount",
                FAIL,
                f"{mount.place} does not answer: {error.strerror}",
                f"vfsd umount {shlex.quote(str(mount.place))}",
            )
        else:
            yield Diagnosis("mount", OK, f"{mount.source} at {mount.place}")


# -------------------------------------------------------------------------------------------- store


def _check_access(root: Path) -> Diagnosis:
    if os.access(root, os.W_OK):
        return Diagnosis("access", OK, "can be written")
    return Diagnosis("access", WARN, "can only be read", f"chown or chmod {root} to change that")


def _settings_text(directory: StoreDirectory) -> str:
    from vfsd.disk.store_config import StoreSettings

    now, first = asdict(StoreSettings.load(directory.settings)), asdict(StoreSettings())
    changed = [key for key, value in now.items() if value != first[key]]
    return f"changed: {', '.join(changed)}" if changed else "all settings have their defaults"


def _check_catalog(directory: StoreDirectory) -> Diagnosis:
    def look() -> str:
        with _open_catalog(directory) as catalog:
            return f"{len(catalog.find())} videos"

    return _checked("catalog", look)


def _check_server(directory: StoreDirectory) -> Iterator[Diagnosis]:
    """The database server of the catalog, if there is one."""
    try:
        with _open_catalog(directory) as catalog:
            found = catalog.server_facts()
    except VfsdError:
        return  # another check reports it
    if found is None:
        return
    text = (
        f"PostgreSQL {found.version}, synchronous_commit {found.synchronous_commit}, "
        f"{found.connections} of {found.max_connections} connections"
    )
    if found.pooler is not None:
        text += f", through a pooler in {found.pooler} mode"
    advice = None
    if not found.fsync:
        advice = "set fsync = on: a power cut at the server may destroy the catalog"
    elif found.synchronous_commit == "off":
        advice = "set synchronous_commit = on: a crash of the server loses the last changes"
    elif found.connections > _MANY_CONNECTIONS * found.max_connections:
        advice = "raise max_connections, or use PgBouncer in transaction mode"
    yield Diagnosis("server", OK if advice is None else WARN, text, advice)


def _check_catalog_log(directory: StoreDirectory) -> Iterator[Diagnosis]:
    """Warn if the SQLite write-ahead log has grown large."""
    try:
        with _open_catalog(directory) as catalog:
            size = catalog.log_bytes()
    except VfsdError:
        return  # another check reports it
    if size > _LARGE_LOG:
        yield Diagnosis(
            "log",
            WARN,
            f"the write-ahead log of the catalog has {human_bytes(size)}",
            "a process has kept an old snapshot of the catalog open: end the process that opened "
            "the store first; later changes shrink the log",
        )


def _check_checksums(directory: StoreDirectory) -> Iterator[Diagnosis]:
    """Checksums and known damage; nothing if the catalog cannot be read."""
    from vfsd.storage.original_files import SUMS_ADVICE, missing_checksums_message

    try:
        with _open_catalog(directory) as catalog:
            found = missing_checksums_message(catalog)
            with catalog.reading() as seen:
                damaged = len(seen.integrity.damaged())
    except VfsdError:
        return  # another check reports it
    if damaged:
        have = "file has" if damaged == 1 else "files have"
        advice = "`vfsd fsck` names the files and their repair"
        yield Diagnosis("damage", FAIL, f"{damaged} stored {have} damaged bytes", advice)
    if found is None:
        yield Diagnosis("sums", OK, "all originals have block checksums")
    else:
        yield Diagnosis("sums", WARN, found, SUMS_ADVICE)


def _check_open_store(directory: StoreDirectory) -> Iterator[Diagnosis]:
    """Checks that need an open store; nothing if it cannot be opened, which another check
    reports.
    """
    from vfsd.api.store import Store

    with ExitStack() as opened:
        try:
            store = opened.enter_context(Store.open(directory.root, read_only=True))
            found = store.recordings()
        except (OSError, VfsdError):
            return
        yield from _check_objects(store)
        yield from _check_bucket(store)
        yield from _check_recordings(found)
        yield from _check_home(store)


def _check_objects(store: Store) -> Iterator[Diagnosis]:
    """Fail if all objects are missing, as with an unmounted disk."""
    try:
        store.parts.require_objects_present()
    except StoreError as error:
        yield Diagnosis("objects", FAIL, str(error), error.hint)


def _check_bucket(store: Store) -> Iterator[Diagnosis]:
    """Check the bucket of a store, its server, and that it has all objects."""
    from vfsd.maintenance.push import bucket_text
    from vfsd.storage.remote_objects import RemoteObjects

    objects = store.parts.objects
    if not isinstance(objects, RemoteObjects):
        return
    yield _checked("bucket", lambda: bucket_text(objects, store.parts.directory.id))
    with store.catalog.reading() as seen:
        missing = seen.objects.unplaced()
    if missing:
        size = human_bytes(sum(missing.values()))
        text = f"{len(missing)} objects ({size}) are only files of a home"
        yield Diagnosis("push", WARN, text, "`vfsd push` copies them for other hosts")
    late = store.catalog.garbage.total(store.settings.object_grace + _LATE_SECONDS)
    if late.files:
        text = f"{late.files} files ({human_bytes(late.bytes)}) of the bucket should be deleted"
        yield Diagnosis("garbage", WARN, text, "`vfsd gc` deletes them, and so does any mount")


def _check_recordings(found: Sequence[UnfinishedRecording]) -> Iterator[Diagnosis]:
    """Warn about unfinished recordings."""
    if found:
        were = "recording" if len(found) == 1 else "recordings"
        size = human_bytes(sum(one.size for one in found))
        yield Diagnosis(
            "recordings",
            WARN,
            f"{len(found)} unfinished {were} ({size}), the newest of {found[-1].name!r}",
            "`vfsd recover` makes videos of them, `vfsd gc --recordings 0` deletes them",
        )


def _check_home(store: Store) -> Iterator[Diagnosis]:
    """Which home this is, if the store has several; warn about a copy of a home."""
    from vfsd.storage.homes import own_home

    if store.catalog.home == "":
        yield Diagnosis(
            "home",
            WARN,
            "this directory is a copy of a home, and can only be read",
            "make a home of its own with `vfsd join`; if it was moved here from another host, run "
            "`vfsd homes claim`",
        )
    elif (home := own_home(store.parts)) is not None:
        yield Diagnosis("home", OK, f"{home}, one of several: `vfsd homes` lists all")


def _check_mounted(directory: StoreDirectory) -> Diagnosis:
    def look() -> str:
        holder = directory.mounted_by()
        if holder is None:
            return "not mounted"
        if "work" in holder:
            return f"not mounted: {holder['work']} (process {holder.get('pid', '?')})"
        return f"at {holder.get('place', '?')}, by process {holder.get('pid', '?')}"

    return _checked("mounted", look)


def _check_mount_log(directory: StoreDirectory) -> Iterator[Diagnosis]:
    """The log of the present mount, or of the last one by this user, if it exists."""
    from vfsd.mount.mount_log import default_places

    try:
        log = (directory.mounted_by() or {}).get("log")
    except StoreError:
        return  # another check reports it
    places = default_places(directory) if log is None else [Path(str(log))]
    for path in places:
        if path.is_file():
            yield Diagnosis("mount log", OK, f"{path} ({human_bytes(path.stat().st_size)})")
            return


def _check_tuner(directory: StoreDirectory) -> Iterator[Diagnosis]:
    """State of the tuner in the mount, if it runs."""
    from vfsd.disk.mount_queries import own_attribute
    from vfsd.mount.fs.inode_metadata import TUNER

    try:
        place = (directory.mounted_by() or {}).get("place")
        own = directory.identity
        state = own_attribute(str(place), TUNER, own).decode(errors="replace") if place else ""
    except (OSError, BusyError):
        return  # another check reports it
    if state:
        failed = state.startswith("off:")
        advice = "read the log of the mount, and mount the store again" if failed else None
        yield Diagnosis("tuner", WARN if failed else OK, state, advice)


def _check_free_space(root: Path) -> Diagnosis:
    free = shutil.disk_usage(root).free
    text = f"{human_bytes(free)} free"
    if free < _LOW_SPACE:
        return Diagnosis("space", WARN, text, "free space on the disk, or run `vfsd gc`")
    return Diagnosis("space", OK, text)


@contextmanager
def _open_catalog(directory: StoreDirectory) -> Iterator[Catalog]:
    """The catalog, protected against a restore while it is opened."""
    from vfsd.catalog import Catalog
    from vfsd.disk.disk_reserve import with_reserve
    from vfsd.storage.catalog_swap import keeping_wal, settled

    with keeping_wal(directory):
        with settled(directory):
            catalog = with_reserve(
                directory,
                lambda: Catalog.open(directory.catalog_url, read_only=True, store_id=directory.id),
            )
        with catalog:
            yield catalog


def _checked(check: str, look: Callable[[], str]) -> Diagnosis:
    """Run a check. An exception is its result."""
    try:
        return Diagnosis(check, OK, look())
    except Exception as error:
        found = describe(error)
        return Diagnosis(check, FAIL, found.message, found.hint)
