"""Hidden names while the catalog is locked by another process, or while the disk is full."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fs_driver import Driver, failing
from tests.support.selection import one_in
from tests.support.silly_rename import ALIAS, Changes, Refusing, rows, wait_until
from vfsd.api.store import Store
from vfsd.catalog import Tree
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import BusyError, NoSpaceError
from vfsd.mount.fs import Filesystem, handles, unlinked_files
from vfsd.storage.reclaim import reclaim


@pytest.fixture
def kind() -> type[Filesystem]:
    """Only an adapter that knows files by path hides names."""
    return Filesystem


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defer all cleanup until it is needed or the mount ends."""
    for name in ("_SETTLING_SECONDS", "_PENDING_SECONDS"):
        monkeypatch.setattr(unlinked_files, name, 3600)
    monkeypatch.setattr(unlinked_files, "_RETRY_SECONDS", 3600)


def hide_closed(it: Driver, count: int) -> list[str]:
    """Hidden names of files that are no longer open."""
    names = [f"/{number}" for number in range(count)]
    for number, name in enumerate(names):
        it.write(name, b"x")
        with it.opened(name):
            it.fs.hide(name, f"{ALIAS[:-1]}{number}")
    it.fs.settle()
    return names


def errors(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.levelno >= logging.ERROR for record in caplog.records)


def test_close_waits_once(
    it: Driver,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    patient: None,
) -> None:
    names = hide_closed(it, 5)
    changes = Changes(monkeypatch)
    changes.are_refused = True
    it.fs.close()
    assert len(changes.by) == 1
    assert errors(caplog) == 1
    changes.are_refused = False
    after = Filesystem(store.parts)
    after.recover()
    assert [f"/{name}" for name in Driver(after).names()] == names
    after.close()


def test_close_with_open_files(
    it: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unlinked_files, "_PENDING_SECONDS", 0.05)
    monkeypatch.setattr(unlinked_files, "_RETRY_SECONDS", 3600)
    for number in range(5):
        it.write(f"/{number}", b"x")
        it.open(f"/{number}")
        it.fs.hide(f"/{number}", f"{ALIAS[:-1]}{number}")
    it.fs.settle()
    wait_until(lambda: not it.fs._hidden_names._hidden)
    # Nothing becomes due between the release of the handles and the end of the cleanup thread.
    monkeypatch.setattr(unlinked_files, "_PENDING_SECONDS", 3600)
    changes = Changes(monkeypatch)
    changes.are_refused = True
    it.fs.close()
    assert len(changes.by) == 2
    assert errors(caplog) == 1


def test_close_during_failing_attempt(
    it: Driver, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleanup thread retries once if an attempt from before the close fails after it."""
    monkeypatch.setattr(unlinked_files, "_RETRY_SECONDS", 3600)
    confirm_orphan = Tree.confirm_orphan
    attempts: list[bool] = []
    has_begun = threading.Event()

    def settle(tree: Tree, *args: Any, **kwargs: Any) -> Any:
        attempts.append(it.fs._cleanup.is_closing)
        if len(attempts) == 1:
            has_begun.set()
            wait_until(lambda: it.fs._cleanup.is_closing)
            raise BusyError("locked")
        return confirm_orphan(tree, *args, **kwargs)

    monkeypatch.setattr(Tree, "confirm_orphan", settle)
    it.write("/b", b"old")
    it.open("/b")
    it.fs.hide("/b", ALIAS)
    assert has_begun.wait(10)
    # The last step of `Filesystem.close`.  Its first steps would wait for the transaction above.
    it.fs._cleanup.close()
    assert attempts == [False, True]
    with store.catalog.reading() as seen:
        assert [former for _, former in seen.tree.orphans()] == [None]


def test_close_in_one_transaction(
    it: Driver, store: Store, monkeypatch: pytest.MonkeyPatch, patient: None
) -> None:
    hide_closed(it, 5)
    changes = Changes(monkeypatch)
    it.fs.close()
    assert len(changes.by) == 1
    assert rows(store) == (0, 0)
    assert list(store.parts.directory.spooled()) == []


def test_reclaim_waits_once(
    it: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, patient: None
) -> None:
    writing = it.create("/w")
    hide_closed(it, 5)
    changes = Changes(monkeypatch)
    changes.are_refused = True
    refuse_while(monkeypatch, lambda: True)
    for times in (1, 2):
        assert failing(it.fs.write, writing, b"x", 0) == "ENOSPC"
        assert len(changes.by) == times
    assert errors(caplog) == 1
    changes.are_refused = False


def refuse_while(monkeypatch: pytest.MonkeyPatch, is_full: Callable[[], bool]) -> None:
    """Nothing is written to files while the disk is full."""

    def require_reserve(_: StoreDirectory) -> None:
        if is_full():
            raise NoSpaceError("full")

    monkeypatch.setattr(handles, "require_reserve", require_reserve)


def test_reclaim_during_deletion(it: Driver, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cleanup thread is deleting the only file that can be deleted."""
    spooled = store.parts.directory.spool_file(it.write("/large", b"large"))
    writing = it.create("/w")
    it.fs.settle()
    deleting, has_failed = threading.Event(), threading.Event()

    def slowly(*args: Any, **kwargs: Any) -> list[str]:
        deleting.set()
        assert has_failed.wait(10)
        return reclaim(*args, **kwargs)

    def is_full() -> bool:
        if spooled.exists():
            threading.Timer(0.2, has_failed.set).start()
            return True
        return False

    monkeypatch.setattr(unlinked_files, "reclaim", slowly)
    refuse_while(monkeypatch, is_full)
    it.fs.unlink("/large")
    assert deleting.wait(10)
    assert it.fs.write(writing, b"x", 0) == 1


def test_reclaim_after_deletion(it: Driver, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    spooled = store.parts.directory.spool_file(it.write("/large", b"large"))
    writing = it.create("/w")
    it.fs.settle()
    it.fs.unlink("/large")

    def is_full() -> bool:
        if not spooled.exists():
            return False
        it.fs.delete_pending()  # as the cleanup thread may
        return True

    refuse_while(monkeypatch, is_full)
    assert it.fs.write(writing, b"x", 0) == 1


def test_deletion_retried(
    it: Driver, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unlinked_files, "_RETRY_SECONDS", 0.02)
    spooled = store.parts.directory.spool_file(it.write("/a", b"x"))
    it.fs.settle()
    refused: list[Any] = []

    def seldom(*args: Any, **kwargs: Any) -> list[str]:
        if len(refused) < 2:
            refused.append(args)
            raise BusyError("locked")
        return reclaim(*args, **kwargs)

    monkeypatch.setattr(unlinked_files, "reclaim", seldom)
    it.fs.unlink("/a")
    wait_until(lambda: not spooled.exists())
    assert errors(caplog) == 1


def test_cleanup_retried(it: Driver, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlinked_files, "_PENDING_SECONDS", 0.05)
    monkeypatch.setattr(unlinked_files, "_RETRY_SECONDS", 0.02)
    deleting = Refusing(monkeypatch, "delete", BusyError("locked"))
    spooled = store.parts.directory.spool_file(it.write("/a", b"x"))
    with it.opened("/a"):
        it.fs.hide("/a", ALIAS)
        wait_until(lambda: not it.fs._hidden_names._hidden)
        deleting.times = 2
    wait_until(lambda: not spooled.exists())
    assert rows(store) == (0, 0)


def test_restore_does_not_wait(it: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlinked_files, "_RETRY_SECONDS", 0.02)
    it.write("/a", b"new")
    it.write("/b", b"old")
    it.fs.settle()
    with it.opened("/b"):
        hidden = it.fs.hide("/b", ALIAS)
        changes = Changes(monkeypatch)
        changes.are_refused = True
        assert failing(lambda: it.fs.rename("/a", "/b", hidden=hidden)) == "EBUSY"
        assert changes.by.count(threading.current_thread()) == 1
        wait_until(lambda: len(changes.by) > 3)  # the cleanup thread does
        changes.are_refused = False
        wait_until(lambda: it.names() == ["a", "b"])
        assert it.read("/b") == b"old"


@pytest.mark.parametrize(
    ("method", "action"),
    one_in(
        4,
        [
            ("create", lambda it, _: it.mkdir("/d")),
            ("create", lambda it, _: it.write("/f", b"x")),
            ("create", lambda it, _: it.fs.symlink("target", "/s", it.caller)),
            ("create", lambda it, _: it.fs.mknod("/p", 0o010644, 0, it.caller)),
            ("link", lambda it, _: it.fs.link("/a", "/l")),
            ("rename", lambda it, _: it.fs.rename("/a", "/c")),
            ("rename", lambda it, hidden: it.fs.rename("/a", "/b", hidden=hidden)),
            ("exchange", lambda it, _: it.fs.rename("/a", "/o", 2)),
            ("alter", lambda it, _: it.fs.chmod("/a", 0o600)),
            ("alter", lambda it, _: it.fs.chown("/a", 1, 1)),
            ("alter", lambda it, _: it.fs.utimens("/a", 1, 1)),
            ("set_xattr", lambda it, _: it.fs.setxattr("/a", "user.n", b"v")),
            ("remove_xattr", lambda it, _: it.fs.removexattr("/a", "user.o")),
        ],
    ),
)
def test_changes_reclaim_space(
    it: Driver,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    patient: None,
    method: str,
    action: Callable[[Driver, Any], None],
) -> None:
    for name in ("/a", "/b", "/o"):
        it.write(name, b"x")
    it.fs.setxattr("/a", "user.o", b"v")
    spooled = store.parts.directory.spool_file(it.write("/large", b"large"))
    it.fs.settle()
    with it.opened("/b"), it.opened("/large"):
        hidden = it.fs.hide("/b", f"{ALIAS}2")
        it.fs.hide("/large", ALIAS)
    changed = getattr(Tree, method)

    def change(*args: Any, **kwargs: Any) -> Any:
        if spooled.exists():
            raise NoSpaceError("full")
        return changed(*args, **kwargs)

    monkeypatch.setattr(Tree, method, change)
    action(it, hidden)
    assert not spooled.exists()
