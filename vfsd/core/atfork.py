"""What becomes of objects in a forked child.

Of all threads only the one that forks goes on in the child.  A lock that another one held at that
moment stays locked there, what it was changing stays half changed, and who waits for it waits for
ever.  So objects with locks, threads, connections or decoders tell `reset_after_fork`, and begin
anew in the child.  What they had they leave alone, and some of it has to be kept: see `leak`.
What was under way when the process was forked is the parent's, and has an `OwnerProcess` to tell
that.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Protocol

from vfsd.errors import UsageError

_refer = ctypes.pythonapi.Py_IncRef
_refer.argtypes = [ctypes.py_object]
_refer.restype = None


class ForkResettable(Protocol):
    """An object that a forked child has from its parent."""

    def begin_anew(self) -> None:
        """Be as if nobody had used it yet; called in the child, before anything else happens there.

        Raises nothing, waits for nothing, and frees nothing that a thread may have had in hand.
        """


class ForkPrepared(Protocol):
    """An object that has to know before the process forks."""

    def prepare_fork(self) -> None:
        """Called by the thread that forks.  Raises nothing, and does not wait for long.

        Another thread may fork at the same time, and call it as well.
        """

    def go_on(self) -> None:
        """Called in the parent when that is done, once for each `prepare_fork`.  Raises nothing."""


_to_reset: weakref.WeakSet[ForkResettable] = weakref.WeakSet()
_to_prepare: weakref.WeakSet[ForkPrepared] = weakref.WeakSet()
_prepared: list[ForkPrepared] = []  # for the fork that is under way
_guard = (
    threading.Lock()
)  # of all three; the thread that forks has it, in the parent and in the child


def reset_after_fork(one: ForkResettable) -> None:
    """Have `one` begin anew in every child that is forked as long as it lives.

    To be called when `one` is made whole: another thread may fork at any time.
    """
    with _guard:
        _to_reset.add(one)


def prepare_before_fork(one: ForkPrepared) -> None:
    """Have `one` told of every fork as long as it lives."""
    with _guard:
        _to_prepare.add(one)


def leak(thing: object) -> None:
    """Never free `thing`, not even when the interpreter ends.

    To free it in a child may hang, or harm the parent: FFmpeg waits for the threads of a decoder,
    which are not there, and SQLite gives up locks that both have.  It costs the child nothing: its
    memory is the parent's as long as nobody writes to it.
    """
    _refer(thing)


class OwnerProcess:
    """The process in which something was begun."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_parent(self) -> bool:
        """Whether that was a process from which this one was forked."""
        return self._pid != os.getpid()

    def require_own(self, what: str) -> None:
        """Raises `UsageError` in a child: `what` cannot go on there."""
        if self.is_parent:
            raise UsageError(
                f"{what} that was begun before a fork cannot go on in the child",
                hint="begin it anew in the child, or go on in the parent",
            )


def _prepare_all() -> None:
    prepared: list[ForkPrepared] = []
    _guard.acquire()
    try:
        # Those that are made while others prepare have to know, too.
        while made := [one for one in _to_prepare if one not in prepared]:
            _guard.release()
            try:
                for one in made:
                    prepared.append(one)
                    one.prepare_fork()
            finally:
                _guard.acquire()
    finally:
        _prepared[:] = prepared


def _resume_all() -> None:
    prepared = _prepared.copy()
    _prepared.clear()
    _guard.release()
    for one in prepared:
        one.go_on()


def _reset_all() -> None:
    inherited = list(_to_reset)
    prepared = _prepared.copy()  # freed only when each has begun anew
    _prepared.clear()
    _guard.release()
    for one in inherited:
        one.begin_anew()
    del prepared


os.register_at_fork(before=_prepare_all, after_in_parent=_resume_all, after_in_child=_reset_all)
