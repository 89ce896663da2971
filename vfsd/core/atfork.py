"""Resets locks, threads, connections and decoders in forked children.

Only the forking thread exists in the child.  A lock held by another thread stays locked there, and
the state that it protects may be half changed.  Objects with such state call `reset_after_fork`:
they are reset in the child before anything else runs there.  They abandon the state of the parent
and must not free all of it; see `leak`.  Work that was started before the fork belongs to the
parent and checks that with `OwnerProcess`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar, overload

from vfsd.errors import UsageError

T = TypeVar("T")

_refer = ctypes.pythonapi.Py_IncRef
_refer.argtypes = [ctypes.py_object]
_refer.restype = None


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
    """Never free `thing`, not even at interpreter exit.

    Freeing it in a child may hang or harm the parent: FFmpeg waits for decoder threads that do not
    exist there, and SQLite drops file locks that the parent still needs.  The leak costs the child
    no memory: the pages are shared with the parent until one of them writes.
    """
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


class lazy(Generic[T]):  # noqa: N801  a decorator like `property`
    """A property that is computed at its first use and then kept.

    `functools.cached_property` of Python 3.11 holds a lock meanwhile, which another thread could
    hold at a fork.  Here two threads may both compute it, and the first result is kept.
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


def _prepare_all() -> None:
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
