"""What may be left of calls after a power cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fault.powercut import Disk, Entry, Model, What

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


def test_what_is_synced_survives(root: Path, after: Callable[..., dict[str, bytes]]) -> None:
    entries = aside(root, file_synced=True, folder_synced=True)
    for number, model in enumerate(Model):
        for seed in range(5):
            assert after(entries, model, 10 * number + seed) == {"kept": NEW}


def test_a_rename_that_is_not_synced_happens_or_does_not(
    root: Path, after: Callable[..., dict[str, bytes]]
) -> None:
    entries = aside(root, file_synced=True, folder_synced=False)
    assert after(entries, Model.LEAST) == {"kept": OLD}
    seen = [after(entries, Model.JOURNAL, seed) for seed in range(20)]
    assert all(one["kept"] in (OLD, NEW) for one in seen)
    assert {one["kept"] for one in seen} == {OLD, NEW}
    # A file that was synced has the name that it was made with.
    assert all(
        one.get("new", NEW) == NEW and (b"o" not in one["kept"] or "new" in one) for one in seen
    )


def test_bytes_that_are_not_synced_are_torn(
    root: Path, after: Callable[..., dict[str, bytes]]
) -> None:
    entries = aside(root, file_synced=False, folder_synced=True)
    assert after(entries, Model.LEAST) == {"kept": b""}
    seen = {after(entries, Model.TORN, seed)["kept"] for seed in range(20)}
    assert len(seen) > 5
    assert all(set(one) <= set(b"n\0") and len(one) <= len(NEW) for one in seen)


def test_nothing_at_all_is_lost_without_a_power_cut(
    root: Path, after: Callable[..., dict[str, bytes]]
) -> None:
    entries = aside(root, file_synced=False, folder_synced=False)
    assert after(entries, Model.ALL) == {"kept": NEW}
