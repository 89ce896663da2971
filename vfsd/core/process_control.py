"""Processes: reset of objects in forked children, CPU and memory use, and settings of the current
process such as priority and malloc.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import platform
import signal
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar, overload

from vfsd.errors import UsageError
from vfsd.validation import whole_number

T = TypeVar("T")

_refer = ctypes.pythonapi.Py_IncRef
_refer.argtypes = [ctypes.py_object]
_refer.restype = None

# A thread that imports may itself wait for the forking thread, so the wait needs a limit.
_MAX_IMPORT_WAIT = 5.0


class ForkResettable(Protocol):
    """An object that must be reset in a forked child."""

    def after_fork(self) -> None:
        """Reset to the unused state.  Called in the child before any other code runs there.

        Must not raise or block, and must not free anything that another thread may have been using.
        """


class ForkPrepared(Protocol):
    """An object that must prepare for a fork."""

    def before_fork(self) -> None:
        """Called by the forking thread before the fork.  Must not raise, and must not block for
        long.

        Another thread may fork at the same time and call this, too.
        """

    def after_fork_in_parent(self) -> None:
        """Called in the parent after the fork, once for each `before_fork`.  Must not raise."""


_to_reset: weakref.WeakSet[ForkResettable] = weakref.WeakSet()
_to_prepare: weakref.WeakSet[ForkPrepared] = weakref.WeakSet()
_prepared: list[ForkPrepared] = []  # for the fork in progress
# Protects all three.  The forking thread holds it across the fork, in the parent and in the child.
_guard = threading.Lock()


def reset_after_fork(one: ForkResettable) -> None:
    """Call `after_fork` of `one` in every forked child, as long as `one` exists.

    Call this last in a constructor: another thread may fork at any time.
    """
    with _guard:
        _to_reset.add(one)


def prepare_before_fork(one: ForkPrepared) -> None:
    """Call the hooks of `one` around every fork, as long as `one` exists."""
    with _guard:
        _to_prepare.add(one)


def leak(thing: object) -> None:
    """Never free `thing`, not even at interpreter exit."""
    # Freeing it in a child may hang or harm the parent: FFmpeg waits for decoder threads that do
    # not exist there, and SQLite drops file locks that the parent still needs.  The leak costs the
    # child no memory: the pages are shared with the parent until one of them writes.
    _refer(thing)


class OwnerProcess:
    """The process in which an operation was started."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_parent(self) -> bool:
        """Whether the operation was started in an ancestor process."""
        return self._pid != os.getpid()

    def require_same_process(self, what: str) -> None:
        """Raises `UsageError` in a forked child, where `what` cannot continue."""
        if self.is_parent:
            raise UsageError(
                f"{what} was started before a fork and cannot continue in the child",
                hint="start it again in the child, or continue in the parent",
            )


class ForkGate:
    """Tracks the threads that use SQLite, and keeps them out while a fork is in progress.

    Several forks may close it at once; it opens with the last of them.
    """

    def __init__(self) -> None:
        # The lock is taken directly.  Condition.__enter__ is Python code, in which Ctrl-C could
        # arrive between taking the lock and the point from which it is released.
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)
        self._inside: dict[object, int] = {}  # thread id by entry
        self._times_closed = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be inside for the duration; waits while the gate is closed, unless the thread
        is inside.
        """
        me, entry = threading.get_ident(), object()
        try:
            with self._guard:
                while self._times_closed and me not in self._inside.values():
                    self._changed.wait()
                self._inside[entry] = me
            yield
        finally:
            with self._guard:
                self._inside.pop(entry, None)
                if self._times_closed:
                    self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Let no thread in, and wait up to `seconds` until no other thread is inside."""
        mine = {threading.get_ident()}
        with self._guard:
            self._times_closed += 1
            self._changed.wait_for(lambda: mine.issuperset(self._inside.values()), seconds)

    def open(self) -> None:
        """Undo one `close`; does nothing if Ctrl-C prevented it."""
        with self._guard:
            self._times_closed = max(0, self._times_closed - 1)
            self._changed.notify_all()


class lazy(Generic[T]):  # noqa: N801  a decorator like `property`
    """A property that is computed at its first use and then kept.

    `functools.cached_property` of Python 3.11 holds a lock while it computes, which another thread
    could hold at a fork.  Here two threads may both compute it, and the first result is kept.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        # `setdefault` is atomic.  The next access finds the result without this descriptor.
        found: T = instance.__dict__.setdefault(self._name, self._make(instance))
        return found


def _other_thread_imports() -> bool:
    # Private, but the interpreter has no public list of the modules that are being imported.
    by_name = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", {})
    owners = {getattr(reference(), "owner", None) for reference in list(by_name.values())}
    return not owners <= {None, threading.get_ident()}


def _await_imports() -> None:
    """Wait until no other thread imports a module, at most `_MAX_IMPORT_WAIT` seconds."""
    # Python does not reset the lock of a module after a fork.  A child that imports the module
    # would wait forever for a thread of the parent, and vfsd imports many modules on first use.
    deadline = time.monotonic() + _MAX_IMPORT_WAIT
    while _other_thread_imports() and time.monotonic() < deadline:
        time.sleep(0.001)


def _prepare_all() -> None:
    _await_imports()
    prepared: list[ForkPrepared] = []
    _guard.acquire()
    try:
        # Objects created while others prepare must be prepared, too.
        while made := [one for one in _to_prepare if one not in prepared]:
            _guard.release()
            try:
                for one in made:
                    prepared.append(one)
                    one.before_fork()
            finally:
                _guard.acquire()
    finally:
        _prepared[:] = prepared


def _resume_all() -> None:
    prepared = _prepared.copy()
    _prepared.clear()
    _guard.release()
    # Without the guard: the hooks may make objects that register themselves.
    for one in prepared:
        one.after_fork_in_parent()


def _reset_all() -> None:
    inherited = list(_to_reset)
    prepared = _prepared.copy()  # kept alive until every object has been reset
    _prepared.clear()
    _guard.release()
    for one in inherited:
        one.after_fork()
    del prepared


os.register_at_fork(before=_prepare_all, after_in_parent=_resume_all, after_in_child=_reset_all)


_STAT = Path("/proc/stat")
_TICK = os.sysconf("SC_CLK_TCK")
# Columns of a line of /proc/stat, see proc(5): idle, and iowait.
_IDLE = (3, 4)
# Columns that add up to all the time; guest time is already part of user time.
_TIMES = 8


def host_name() -> str:
    """Return the name of this machine.  It identifies hosts that share a catalog."""
    return platform.node() or "localhost"


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    # A container or taskset may allow fewer cores than the machine has.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worker_count(jobs: int | None) -> int:
    """Return `jobs`, or the number of available cores for None.

    Raises `UsageError` for less than 1.
    """
    if jobs is None:
        return available_cores()
    jobs = whole_number(jobs, "jobs")
    if jobs < 1:
        raise UsageError(f"jobs must be at least 1, got {jobs}")
    return jobs


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, including its threads and its children that were waited
    for.

    0 if the process does not exist.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    # The name of the program comes first, in parentheses, and may contain blanks and parentheses.
    fields = text.rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICK


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/statm").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


class CpuMeter:
    """Measures how busy the cores available to this process are, between two calls."""

    def __init__(self) -> None:
        self._busy, self._all = _core_seconds()

    def share(self, without: float = 0.0) -> float:
        """Return the share of time, 0 to 1, in which the cores were busy since the last call.

        `without` core seconds are subtracted from the busy time: known work of the caller.  0 where
        the system does not provide figures, or no time has passed.
        """
        busy, everything = _core_seconds()
        spent, passed = busy - self._busy - without, everything - self._all
        self._busy, self._all = busy, everything
        return min(1.0, max(0.0, spent / passed)) if passed > 0 else 0.0


def _core_seconds() -> tuple[float, float]:
    """Return (busy, total) seconds of the available cores since boot."""
    try:
        lines = _STAT.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0, 0.0
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    busy = everything = 0
    for line in lines:
        name, *words = line.split()
        if name in mine:
            times = [int(word) for word in words[:_TIMES]]
            everything += sum(times)
            busy += sum(times) - sum(times[column] for column in _IDLE)
    return busy / _TICK, everything / _TICK


_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Kill this process when the thread that started it ends, or now if it has ended.

    `parent` is the pid of the starting process.  Call it again after a change of user ids, which
    clears the setting.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the call: then no signal comes.
    if os.getppid() != parent:
        os._exit(0)


def set_oom_score(score: int) -> None:
    """Set oom_score_adj (see proc(5)), so that the kernel kills this process before others.

    0 is the default of other processes, 1000 the maximum.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(score), encoding="ascii")


# Of sched_setattr(2): the C library has no wrapper.
_SYSCALL_NUMBERS = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
# size, policy (0: SCHED_OTHER), flags, nice, priority, runtime (ns), deadline, period.
_ATTRIBUTES = struct.Struct("<IIQiIQQQ")
# The shortest slice that the kernel accepts.
_SLICE_NS = 100_000


def shorten_time_slice() -> None:
    """Request short time slices for this thread and all that it starts later.  Never fails."""
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return
    # The call sets all attributes: the niceness must be given again.
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, 0, nice, 0, _SLICE_NS, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)


LOWEST_PRIORITY = 19
"""See nice(2)."""


def set_idle_priority() -> None:
    """Use the CPU and the disk only when they are otherwise idle, for the whole process."""
    try:
        # SCHED_IDLE implies the idle class for disk access, see ioprio_set(2).
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)


def set_autogroup_niceness(pid: int, niceness: int) -> bool:
    """Set the niceness of a process's session among other sessions; see sched(7), autogroup.

    Returns False if the caller must retry later: the kernel accepts ten changes a second from
    processes without root.  Does nothing where autogrouping is disabled.
    """
    with suppress(OSError):
        place = os.open(f"/proc/{pid}/autogroup", os.O_WRONLY)
        try:
            os.write(place, str(niceness).encode("ascii"))
        except BlockingIOError:
            return False
        finally:
            os.close(place)
    return True


# Number of malloc arenas. Few arenas let threads reuse memory that others freed.
_ARENAS = 4
# Bytes that an arena may keep free at its end. With the default of glibc, which starts at 128 KiB
# and grows to twice the largest freed block, each reply of 512 KiB cost a hundred page faults.
_FREE_AT_THE_END = 16 << 20
# Larger blocks get their own mapping. 32 MiB is the maximum of glibc's dynamic threshold, which
# becomes static when the other threshold is set.
_OWN_MAPPING = 32 << 20
# Parameters of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# Trimming every second cost a sixth of the throughput of raw views, in page faults.
_CHECK_SECONDS = 5.0
# Bytes that the process may grow by before free memory is returned.
_SLACK = 64 << 20
_LONGEST_SECONDS = 30.0
# Resources kept for the next reader are freed after this idle time.
_IDLE_SECONDS = 30.0
# Option of prctl(2).
_PR_SET_THP_DISABLE = 41


def limit_arenas() -> None:
    """Limit the number of malloc arenas, and let them keep some freed memory.

    Call it before other threads allocate.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    settings = (
        (_ARENA_MAX, _ARENAS),
        (_TRIM_THRESHOLD, _FREE_AT_THE_END),
        (_MMAP_THRESHOLD, _OWN_MAPPING),
    )
    for what, value in settings:
        if not libc.mallopt(what, value):
            _log.debug("mallopt(%d) failed", what)


def disable_huge_pages() -> None:
    """Disable transparent huge pages in this process and its forked children (Linux)."""
    # numpy requests them for arrays of 4 MiB or more, and the advice stays with that part of the
    # heap. After trimming, the kernel would fill up a whole huge page for every small page left.
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None or prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0):
        _log.debug("huge pages cannot be disabled")


class MallocTrimmer:
    """A thread that returns free memory: when the process has grown, and periodically."""

    def __init__(self, evict_idle: Callable[[float], None]) -> None:
        """`evict_idle(seconds)` is called every few seconds and frees what was unused for that
        long.
        """
        self._evict_idle = evict_idle
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vfsd-heap", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        me = os.getpid()
        least, last = resident_bytes(me), time.monotonic()
        while not self._stop.wait(_CHECK_SECONDS):
            self._evict_idle(_IDLE_SECONDS)
            now = resident_bytes(me)
            if now > least + _SLACK or time.monotonic() - last > _LONGEST_SECONDS:
                self._trim(ctypes.c_size_t(0))
                least, last = resident_bytes(me), time.monotonic()
