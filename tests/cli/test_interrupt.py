"""Ctrl-C takes effect where it is safe."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from vfsd.api.store import Store
from vfsd.cli.output import DeferredInterrupt, Progress


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_waits_for_a_safe_place() -> None:
    with DeferredInterrupt() as interruption:
        interruption.heed()
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            interruption.heed()


def test_the_second_does_not_wait() -> None:
    with DeferredInterrupt():
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()


def test_nothing_is_forgotten_at_the_end() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), DeferredInterrupt():
        press_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before


def test_progress_is_such_a_place() -> None:
    with Progress("x", None, shown=False) as progress:
        progress.advance()
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            progress.advance()


def test_interrupted_copy_leaves_nothing_behind(run: Run, place: Path) -> None:
    with (
        Store.open(place / "videos") as store,
        Progress("x", None, shown=False) as progress,
    ):
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            store.ingest("footage/portrait.mp4", on_progress=progress.advance)
        assert "portrait.mp4" not in store
    assert run("fsck", "--deep").out == ""
