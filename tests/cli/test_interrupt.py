"""Ctrl-C takes effect at safe points only."""

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


def test_first_interrupt_waits_for_a_safe_point() -> None:
    with DeferredInterrupt() as interruption:
        interruption.raise_if_interrupted()
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            interruption.raise_if_interrupted()


def test_second_interrupt_takes_effect_at_once() -> None:
    with DeferredInterrupt():
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()


def test_pending_interrupt_is_raised_at_the_end() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), DeferredInterrupt():
        press_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before


def test_progress_is_a_safe_point() -> None:
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
