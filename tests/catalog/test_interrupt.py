"""Ctrl-C during a write to the catalog leaves nothing behind, and the next write succeeds."""

from __future__ import annotations

import random
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import Any

import pytest

from vfsd.catalog import ROOT, Catalog

ROUNDS = 400
LONGEST = 0.004
"""Seconds after which a round is interrupted: as long as two writes take, or so."""


def put(catalog: Catalog, name: str) -> None:
    with catalog.writing() as change:
        change.tree.create(ROOT, name, 0o100644, uid=0, gid=0, now_ns=1)


def names(catalog: Catalog) -> set[str]:
    with catalog.reading() as seen:
        return {name for name, _ in seen.tree.children(ROOT)}


def require_unlocked(catalog: Catalog) -> None:
    """Raises `sqlite3.OperationalError` if another connection could not write."""
    assert catalog.path is not None
    with closing(sqlite3.connect(catalog.path, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")


@contextmanager
def heeding(kind: signal.Signals) -> Iterator[None]:
    """Make that signal raise `KeyboardInterrupt`."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(kind, interrupt)
    try:
        yield
    finally:
        signal.signal(kind, before)


# The interrupt may arrive in Hypothesis's garbage collection callback.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_at_any_moment(catalog: Catalog) -> None:
    rng = random.Random(7)
    interrupted = 0
    written = set()
    for number in range(ROUNDS):
        try:
            with heeding(signal.SIGALRM):
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, LONGEST))
                try:
                    for part in range(50):
                        put(catalog, f"{number}-{part}")
                        written.add(f"{number}-{part}")
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
        require_unlocked(catalog)
        put(catalog, f"after-{number}")
        written.add(f"after-{number}")
    assert interrupted > ROUNDS // 2
    assert written <= names(catalog)


LONG_STATEMENT = (
    "WITH RECURSIVE count(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM count WHERE x < 2000000) "
    "SELECT max(x) FROM count"
)


class Interrupting:
    """A driver's connection that receives Ctrl-C during one of its calls; it is handled after
    the call."""

    def __init__(self, real: Any, call: str, text: str = "") -> None:
        self._real, self._call, self._text = real, call, text

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name != self._call:
            return found

        def called(*args: Any, **named: Any) -> Any:
            result = found(*args, **named)
            if self._text in str(args):
                raise KeyboardInterrupt
            return result

        return called


def test_interrupt_in_a_statement(catalog: Catalog) -> None:
    """SQLAlchemy closes the connection in this case."""
    put(catalog, "before")

    def slow() -> None:
        with catalog.writing() as change:
            change.tree.create(ROOT, "half", 0o100644, uid=0, gid=0, now_ns=1)
            signal.setitimer(signal.ITIMER_REAL, 0.01)  # long before the statement has ended
            change.tree._connection.exec_driver_sql(LONG_STATEMENT).all()

    with heeding(signal.SIGALRM), pytest.raises(KeyboardInterrupt):
        slow()
    require_unlocked(catalog)
    put(catalog, "after")
    assert names(catalog) == {"before", "after"}


def test_interrupt_that_closes_the_connection(catalog: Catalog) -> None:
    put(catalog, "before")

    def interrupted() -> None:
        with catalog.writing() as change:
            change.tree.create(ROOT, "half", 0o100644, uid=0, gid=0, now_ns=1)
            change.tree._connection.invalidate()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    require_unlocked(catalog)
    put(catalog, "after")
    assert names(catalog) == {"before", "after"}


def test_interrupt_at_the_begin_of_a_transaction(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = catalog._database._writer
    begin = writer._begin

    def begun(driver: Any, patience: float) -> None:
        begin(Interrupting(driver, "execute", "BEGIN"), patience)

    monkeypatch.setattr(writer, "_begin", begun)
    with pytest.raises(KeyboardInterrupt):
        put(catalog, "half")
    monkeypatch.undo()
    require_unlocked(catalog)
    put(catalog, "after")
    assert names(catalog) == {"after"}


def test_interrupt_after_acquiring_the_write_lock(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = catalog._database._writer

    def taken(patience: float) -> None:
        writer._lock.acquire(timeout=patience)
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_acquire", taken)
    with pytest.raises(KeyboardInterrupt):
        put(catalog, "half")
    monkeypatch.undo()
    other = threading.Thread(target=put, args=(catalog, "other"))
    other.start()
    other.join(30)
    assert names(catalog) == {"other"}
    put(catalog, "after")
    assert names(catalog) == {"after", "other"}
