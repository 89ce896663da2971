"""What ``vfsd doctor`` looks at: the machine, and a store on it."""

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

from vfsd.cli.failure import describe
from vfsd.core.output_formats import CODECS
from vfsd.core.timebase import human_bytes
from vfsd.disk.config import Settings
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import BusyError, RefusedMediaError, StoreError, VfsdError

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.catalog import Catalog
    from vfsd.codecs.probing.probe import Examination
    from vfsd.write.recordings import Recording

OK, WARN, FAIL = "ok", "warn", "fail"

_DECODERS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mpeg2video", "mjpeg")
_REINSTALL = (
    "install PyAV from its wheels: pip install --force-reinstall --only-binary av av; `pip check` "
    "lists packages whose versions do not fit"
)
_LOW_SPACE = 1 << 30
_LARGE_LOG = 64 << 20
_FUSE_DEVICE = Path("/dev/fuse")
_FUSE_CONF = Path("/etc/fuse.conf")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What one look has shown."""

    check: str
    status: str  #: `OK`, `WARN` or `FAIL`
    message: str
    advice: str | None = None  #: what to do about it


def machine() -> Iterator[Diagnosis]:
    """Everything that does not depend on a store."""
    yield Diagnosis("python", OK, f"{platform.python_version()}, {sys.executable}")
    yield _ffmpeg()
    yield _codecs("decoders", _DECODERS, _has_decoder)
    yield _codecs("encoders", tuple(CODECS), _has_encoder)
    yield _opencv()
    yield _examiner()
    for look in (_fuse_device, _libfuse, _helper, _allow_other):
        yield look()
    yield _asked("binding", _binding)
    yield from _mounts()


def store(root: Path) -> Iterator[Diagnosis]:
    """One store; what cannot be asked because something else fails is left out."""
    try:
        directory = StoreDirectory.open(root)
        directory.require_objects()
    except VfsdError as error:
        yield Diagnosis("store", FAIL, str(error), error.hint)
        return
    yield Diagnosis("store", OK, f"{directory.root}, identity {directory.id}")
    yield _writable(directory.root)
    yield _asked("settings", lambda: _settings(directory))
    yield _catalog(directory)
    yield from _log(directory)
    yield from _sums(directory)
    yield from _of_store(directory)
    yield _holder(directory)
    yield from _mount_log(directory)
    yield from _tuner(directory)
    yield _free_space(directory.root)


# ----------------------------------------------------------------------------------- the machine


def _ffmpeg() -> Diagnosis:
    try:
        from vfsd.codecs import library_versions

        return Diagnosis("ffmpeg", OK, library_versions())
    except Exception as error:  # a binding that does not fit its libraries may raise any
        return _no_pyav("ffmpeg", error)


def _no_pyav(check: str, error: Exception) -> Diagnosis:
    text = f"PyAV cannot be loaded: {type(error).__name__}: {error}"
    return Diagnosis(check, FAIL, text, _REINSTALL)


def _codecs(check: str, wanted: Sequence[str], is_there: Callable[[str], bool]) -> Diagnosis:
    try:
        missing = [codec for codec in wanted if not is_there(codec)]
    except Exception as error:
        return _no_pyav(check, error)
    if missing:
        return Diagnosis(check, WARN, f"none for {', '.join(missing)}", _REINSTALL)
    return Diagnosis(check, OK, ", ".join(wanted))


def _has_decoder(codec: str) -> bool:
    from vfsd.codecs.decoding.context import decoder_context
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


def _opencv() -> Diagnosis:
    try:
        import cv2
    except ImportError as error:  # its wheels load libraries that bare machines lack
        advice = "apt install libgl1 libglib2.0-0"
        return Diagnosis("opencv", FAIL, f"OpenCV cannot be loaded: {error}", advice)
    return Diagnosis("opencv", OK, cv2.__version__)


def _examiner() -> Diagnosis:
    """Have a video with a subtitle stream examined, as every file that comes into a store is."""
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
    from vfsd.codecs.probing.sample import sample_video
    from vfsd.storage.sandbox_pool import Examiner
    from vfsd.storage.sandbox_protocol import Limits

    with closing(Examiner(Limits())) as examiner, TemporaryFile() as file:
        file.write(sample_video())
        file.flush()
        return examiner.examine_open(file.fileno(), "a sample video")


def _fuse_device() -> Diagnosis:
    if not _FUSE_DEVICE.exists():
        return Diagnosis(
            "fuse",
            FAIL,
            f"{_FUSE_DEVICE} is missing: nothing can be mounted",
            "modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN",
        )
    if not os.access(_FUSE_DEVICE, os.R_OK | os.W_OK):
        return Diagnosis(
            "fuse", FAIL, f"{_FUSE_DEVICE} may not be opened", f"chmod 666 {_FUSE_DEVICE} (as root)"
        )
    return Diagnosis("fuse", OK, f"{_FUSE_DEVICE} can be opened")


def _libfuse() -> Diagnosis:
    found = [name for name in ("fuse3", "fuse") if ctypes.util.find_library(name)]
    if not found:
        return Diagnosis("libfuse", FAIL, "not installed", "apt install fuse3, or libfuse2")
    if "fuse3" not in found:
        return Diagnosis("libfuse", WARN, "version 2 only: small requests", "apt install fuse3")
    return Diagnosis("libfuse", OK, "version 3" + (", and 2" if "fuse" in found else ""))


def _binding() -> str:
    from vfsd.mount.fuse.binding import load

    binding = load()
    return f"{binding.name}, on libfuse {binding.major}.{binding.minor}"


def _helper() -> Diagnosis:
    for name in ("fusermount3", "fusermount"):
        path = shutil.which(name)
        if path is not None:
            return Diagnosis("fusermount", OK, path)
    status = WARN if os.geteuid() == 0 else FAIL
    return Diagnosis(
        "fusermount", status, "not installed: only root can mount", "apt install fuse3"
    )


def _allow_other() -> Diagnosis:
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


def _mounts() -> Iterator[Diagnosis]:
    """Mounts of ours that answer, and those whose process has died."""
    from vfsd.disk.mount_client import require_answer
    from vfsd.disk.mount_info import mounts

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


# --------------------------------------------------------------------------------------- a store


def _writable(root: Path) -> Diagnosis:
    if os.access(root, os.W_OK):
        return Diagnosis("access", OK, "can be written")
    return Diagnosis("access", WARN, "can only be read", f"chown or chmod {root} to change that")


def _settings(directory: StoreDirectory) -> str:
    now, first = asdict(Settings.load(directory.settings)), asdict(Settings())
    changed = [key for key, value in now.items() if value != first[key]]
    return f"changed: {', '.join(changed)}" if changed else "as they were at first"


def _catalog(directory: StoreDirectory) -> Diagnosis:
    def look() -> str:
        with _looking_into(directory) as catalog:
            return f"{len(catalog.find())} videos"

    return _asked("catalog", look)


def _log(directory: StoreDirectory) -> Iterator[Diagnosis]:
    """Whether what was changed in the catalog piles up beside it; nothing where it does not."""
    try:
        with _looking_into(directory) as catalog:
            size = catalog.log_bytes()
    except VfsdError:
        return  # told already
    if size > _LARGE_LOG:
        yield Diagnosis(
            "log",
            WARN,
            f"the catalog's log has {human_bytes(size)}",
            "some process has looked at one state of the catalog for long: end what has had the "
            "store open longest; the log shrinks with the changes that follow",
        )


def _sums(directory: StoreDirectory) -> Iterator[Diagnosis]:
    """Whether what is read is compared, and what is known to be damaged; nothing where the catalog
    cannot be asked."""
    from vfsd.storage.checksum_registry import SUMS_ADVICE, without_sums

    try:
        with _looking_into(directory) as catalog:
            found = without_sums(catalog)
            with catalog.reading() as seen:
                damaged = len(seen.integrity.damaged())
    except VfsdError:
        return  # told already
    if damaged:
        have = "file has" if damaged == 1 else "files have"
        advice = "`vfsd fsck` names what that concerns, and how to put it right"
        yield Diagnosis("damage", FAIL, f"{damaged} stored {have} damaged bytes", advice)
    if found is None:
        yield Diagnosis("sums", OK, "all originals have sums of their blocks")
    else:
        yield Diagnosis("sums", WARN, found, SUMS_ADVICE)


def _of_store(directory: StoreDirectory) -> Iterator[Diagnosis]:
    """What only an open store tells: nothing where it cannot be opened, which is told elsewhere."""
    from vfsd.api.store import Store

    with ExitStack() as opened:
        try:
            store = opened.enter_context(Store.open(directory.root, read_only=True))
            found = store.recordings()
        except (OSError, VfsdError):
            return
        yield from _objects(store)
        yield from _recordings(found)


def _objects(store: Store) -> Iterator[Diagnosis]:
    """Whether all are missing, as where their disk is not mounted; nothing where some exist,
    or need not be."""
    try:
        store.parts.require_filled()
    except StoreError as error:
        yield Diagnosis("objects", FAIL, str(error), error.hint)


def _recordings(found: Sequence[Recording]) -> Iterator[Diagnosis]:
    """Those that were not finished; nothing without them."""
    if found:
        were = "recording was" if len(found) == 1 else "recordings were"
        size = human_bytes(sum(one.size for one in found))
        yield Diagnosis(
            "recordings",
            WARN,
            f"{len(found)} {were} not finished ({size}), the newest of {found[-1].name!r}",
            "`vfsd recover` makes videos of them, `vfsd gc --recordings 0` deletes them",
        )


def _holder(directory: StoreDirectory) -> Diagnosis:
    def look() -> str:
        holder = directory.mounted_by()
        if holder is None:
            return "not mounted"
        if "work" in holder:
            return f"not mounted: {holder['work']} (process {holder.get('pid', '?')})"
        return f"at {holder.get('place', '?')}, by process {holder.get('pid', '?')}"

    return _asked("mounted", look)


def _mount_log(directory: StoreDirectory) -> Iterator[Diagnosis]:
    """Where the mount of the store writes its log, or the last one by this user has; nothing
    without such a log."""
    from vfsd.mount.logfile import default_places

    try:
        told = (directory.mounted_by() or {}).get("log")
    except StoreError:
        return  # told already
    places = default_places(directory) if told is None else [Path(str(told))]
    for path in places:
        if path.is_file():
            yield Diagnosis("mount log", OK, f"{path} ({human_bytes(path.stat().st_size)})")
            return


def _tuner(directory: StoreDirectory) -> Iterator[Diagnosis]:
    """What the mount says of the tiles that it makes by itself; nothing without a mount."""
    from vfsd.disk.mount_client import own_attribute
    from vfsd.mount.fs.xattrs import TUNER

    try:
        place = (directory.mounted_by() or {}).get("place")
        own = directory.identity
        state = own_attribute(str(place), TUNER, own).decode(errors="replace") if place else ""
    except (OSError, BusyError):
        return  # that the mount does not answer is told elsewhere
    if state:
        failed = state.startswith("off:")
        advice = "read the log of the mount, and mount the store again" if failed else None
        yield Diagnosis("tuner", WARN if failed else OK, state, advice)


def _free_space(root: Path) -> Diagnosis:
    free = shutil.disk_usage(root).free
    text = f"{human_bytes(free)} free"
    if free < _LOW_SPACE:
        return Diagnosis("space", WARN, text, "make room, or run `vfsd gc`")
    return Diagnosis("space", OK, text)


@contextmanager
def _looking_into(directory: StoreDirectory) -> Iterator[Catalog]:
    """The catalog, in whose place no other comes while it is opened."""
    from vfsd.catalog import Catalog
    from vfsd.disk.disk_reserve import with_reserve
    from vfsd.storage.catalog_swap import settled
    from vfsd.storage.manual_copy import with_log

    with with_log(directory):
        with settled(directory):
            catalog = with_reserve(
                directory,
                lambda: Catalog.open(directory.catalog_url, read_only=True, store_id=directory.id),
            )
        with catalog:
            yield catalog


def _asked(check: str, look: Callable[[], str]) -> Diagnosis:
    """Whatever goes wrong while looking is what was to be found."""
    try:
        return Diagnosis(check, OK, look())
    except Exception as error:
        found = describe(error)
        return Diagnosis(check, FAIL, found.message, found.hint)
