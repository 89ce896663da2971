"""Helpers for tests of hidden names: waiting, counting, and a catalog that is sometimes locked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.fs_driver import Driver
from vfsd.api.store import Store
from vfsd.catalog import Tree
from vfsd.errors import BusyError
from vfsd.mount.fs.dentry_cache import DentryCache, TreeTransaction

ALIAS = ".fuse_hidden0000000100000001"


def wait_until_settled(it: Driver) -> None:
    """Wait until no hidden name would come back after a crash."""
    names = it.fs._hidden_names._hidden
    wait_until(lambda: not any(hidden.is_unsettled for hidden in tuple(names)))


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rows(store: Store) -> tuple[int, int]:
    """The number of nodes except the root, and the number of orphans."""
    with store.catalog.reading() as seen:
        return len(list(seen.tree.all_nodes())) - 1, len(seen.tree.orphans())


class Refusing:
    """Makes a method of the catalog's tree fail a given number of times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception) -> None:
        self.times = 0  #: the number of calls that will still fail
        refused = getattr(Tree, method)

        def call(tree: Tree, *args: Any, **kwargs: Any) -> Any:
            if self.times:
                self.times -= 1
                raise error
            return refused(tree, *args, **kwargs)

        monkeypatch.setattr(Tree, method, call)


class Changes:
    """Records the threads that began to change names; can block them like another process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by: list[threading.Thread] = []
        self.are_refused = False
        changing = DentryCache.changing

        @contextmanager
        def counted(names: DentryCache, *seconds: float) -> Iterator[TreeTransaction]:
            self.by.append(threading.current_thread())
            if self.are_refused:
                raise BusyError("locked")
            with changing(names, *seconds) as change:
                yield change

        monkeypatch.setattr(DentryCache, "changing", counted)
