"""The layer sees what a process does to files, and can end or refuse it."""

from __future__ import annotations

import random
import signal
from pathlib import Path

from tests.fault.conftest import Run
from tests.fault.powercut import Disk, Model, read_log

PROGRAM = ("-m", "tests.fault.calls")


def start(tmp_path: Path) -> tuple[Path, Path]:
    """A directory with a file in it, and where the log is to be."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "old").write_bytes(b"0123456789")
    return root, tmp_path / "log"


def test_what_is_logged_is_what_happened(tmp_path: Path, under_layer: Run) -> None:
    root, log = start(tmp_path)
    disk = Disk(root)
    done = under_layer(*PROGRAM, root, log, "all")
    changes, marks = map(int, done.stdout.split())
    entries = read_log(log)
    assert marks == 1
    assert len(entries) >= changes - 5  # creating what is there, and the like
    for entry in entries:
        disk.do(entry)
    copy = tmp_path / "copy"
    disk.write_to(copy, Model.ALL, random.Random(1))
    names = sorted(path.relative_to(root) for path in root.rglob("*"))
    assert Path("db-wal") in names
    for name in names:
        if (root / name).is_file() and not str(name).endswith("-shm"):
            assert (copy / name).read_bytes() == (root / name).read_bytes(), name
            assert (copy / name).is_symlink() == (root / name).is_symlink()
    assert {path.relative_to(copy) for path in copy.rglob("*")} == set(names) - {Path("db-shm")}


def test_calls_fail_when_they_are_told_to(tmp_path: Path, under_layer: Run) -> None:
    root, log = start(tmp_path)
    done = under_layer(*PROGRAM, root, log, "full", check=False)
    assert "No space left on device" in done.stderr
    assert (root / "a").read_bytes() == b"onetwo"
    assert (root / "old").read_bytes() == b"0123456789"


def test_a_process_ends_before_the_call_that_was_named(tmp_path: Path, under_layer: Run) -> None:
    root, log = start(tmp_path)
    done = under_layer(*PROGRAM, root, log, "kill", check=False)
    assert done.returncode == -signal.SIGKILL
    # Seven went through: a file made, written, opened to append and written, another written,
    # synced and cut, and one directory made; it was not renamed yet.
    assert sorted(path.name for path in root.iterdir()) == ["a", "folder", "old"]
    assert (root / "old").read_bytes() == b"012ne"
    assert len(read_log(log)) == 7
