"""Tests of the fault layer and of the power cut models.

The layer sees all changes to files, and can kill the process or make calls fail.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fault.conftest import Run
from tests.fault.powercut import Disk, Entry, Model, What, read_log

OLD = b"o" * 20_000
NEW = b"n" * 20_000


def entry(what: What, file: int, path: str = "", other: str = "", data: bytes = b"") -> Entry:
    return Entry(what, file, 0, len(data), path, other, data)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    top = tmp_path / "root"
    top.mkdir()
    (top / "kept").write_bytes(OLD)
    return top


@pytest.fixture
def after(root: Path, tmp_path: Path) -> Callable[..., dict[str, bytes]]:
    """Names and bytes after these calls and a power cut."""

    def cut(entries: list[Entry], model: Model, seed: int = 0) -> dict[str, bytes]:
        disk = Disk(root)
        for each in entries:
            disk.do(each)
        target = tmp_path / f"{model.value}{seed}"
        disk.write_to(target, model, random.Random(seed))
        return {path.name: path.read_bytes() for path in target.iterdir()}

    return cut


def aside(root: Path, *, file_synced: bool, folder_synced: bool) -> list[Entry]:
    """New bytes under another name, then renamed over the old ones."""
    done = [
        entry(What.CREATE, 9, f"{root}/new"),
        entry(What.WRITE, 9, data=NEW),
        entry(What.SYNC, 9),
        entry(What.RENAME, 9, f"{root}/new", f"{root}/kept"),
        entry(What.SYNCDIR, 1, str(root)),
    ]
    if not folder_synced:
        done.pop(4)
    if not file_synced:
        done.pop(2)
    return done


def test_synced_data_survives(root: Path, after: Callable[..., dict[str, bytes]]) -> None:
    entries = aside(root, file_synced=True, folder_synced=True)
    for number, model in enumerate(Model):
        for seed in range(5):
            assert after(entries, model, 10 * number + seed) == {"kept": NEW}


def test_unsynced_rename(root: Path, after: Callable[..., dict[str, bytes]]) -> None:
    entries = aside(root, file_synced=True, folder_synced=False)
    assert after(entries, Model.LEAST) == {"kept": OLD}
    seen = [after(entries, Model.JOURNAL, seed) for seed in range(20)]
    assert all(one["kept"] in (OLD, NEW) for one in seen)
    assert {one["kept"] for one in seen} == {OLD, NEW}
    # A file that was synced has the name that it was made with.
    assert all(
        one.get("new", NEW) == NEW and (b"o" not in one["kept"] or "new" in one) for one in seen
    )


def test_unsynced_bytes_torn(root: Path, after: Callable[..., dict[str, bytes]]) -> None:
    entries = aside(root, file_synced=False, folder_synced=True)
    assert after(entries, Model.LEAST) == {"kept": b""}
    seen = {after(entries, Model.TORN, seed)["kept"] for seed in range(20)}
    assert len(seen) > 5
    assert all(set(one) <= set(b"n\0") and len(one) <= len(NEW) for one in seen)


def test_no_loss_without_power_cut(root: Path, after: Callable[..., dict[str, bytes]]) -> None:
    entries = aside(root, file_synced=False, folder_synced=False)
    assert after(entries, Model.ALL) == {"kept": NEW}


# --------------------------------------------------------------------------------------------------
# The layer sees all changes to files, and can kill the process or make calls fail


PROGRAM = ("-m", "tests.fault.calls")


def start(tmp_path: Path) -> tuple[Path, Path]:
    """A directory with a file in it, and where the log is to be."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "old").write_bytes(b"0123456789")
    return root, tmp_path / "log"


def test_log_matches_disk(tmp_path: Path, under_layer: Run) -> None:
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


def test_injected_errors(tmp_path: Path, under_layer: Run) -> None:
    root, log = start(tmp_path)
    done = under_layer(*PROGRAM, root, log, "full", check=False)
    assert "No space left on device" in done.stderr
    assert (root / "a").read_bytes() == b"onetwo"
    assert (root / "old").read_bytes() == b"0123456789"


def test_kill_before_call(tmp_path: Path, under_layer: Run) -> None:
    root, log = start(tmp_path)
    done = under_layer(*PROGRAM, root, log, "kill", check=False)
    assert done.returncode == -signal.SIGKILL
    # Seven changes were made: a file was created, written and appended to, another one was
    # written, synced and truncated, and a directory was created but not renamed yet.
    assert sorted(path.name for path in root.iterdir()) == ["a", "folder", "old"]
    assert (root / "old").read_bytes() == b"012ne"
    assert len(read_log(log)) == 7
