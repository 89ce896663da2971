"""Some operations, interrupted at some points; `python -m benchmarks.faults` covers all points.

After a power cut, a file has either its complete new bytes or its old ones.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.fault.conftest import Run
from tests.fault.powercut import Disk, Model, read_log

SOME = ("mount: copy", "rm")

CUT = """
import sys
from pathlib import Path
from tests.fault import operations
from tests.fault.campaign import Campaign, in_child

folder = Path(sys.argv[1])
inputs = folder / "inputs"
inputs.mkdir()
in_child(lambda: operations.make_inputs(inputs))
for name in sys.argv[2:]:
    campaign = Campaign(operations.named(name), folder, inputs, 1)
    for _ in campaign.cut(15):
        pass
    print(*campaign.row.problems, sep="\\n", end="")
"""

# SQLite's log of the old catalog may come back when the new catalog has its name.
TAKEN_OVER = """
import random, shutil, sys
from pathlib import Path
from tests.fault import operations
from tests.fault.campaign import Campaign, in_child
from tests.fault.powercut import Model, What
from tests.support.killing import ingest_and_die
from vfsd.maintenance import fsck
from vfsd.api.store import Store

def prepare(place):
    operations.with_videos(place)
    with place.open() as store:
        operations.back_up(store.parts, place.backup)
        store.remove("cam", recursive=True)
    ingest_and_die(place.backup, place.inputs / "b.mp4", *(f"x/{n}.mp4" for n in range(3)))

def work(place):
    with place.open() as store:
        operations.back_up(store.parts, place.backup)
        yield

def look():
    with Store.open(campaign._place.backup, threads=1) as store:
        return [one for one in fsck.run(store.parts) if one.check == "catalog"]

folder = Path(sys.argv[1])
inputs = folder / "inputs"
inputs.mkdir()
in_child(lambda: operations.make_inputs(inputs))
campaign = Campaign(operations.Operation("backup", prepare, work), folder, inputs, 1)
for entry in campaign._entries:
    campaign._disk.do(entry)
    if entry.what == What.RENAME and entry.other.endswith("backup/catalog.sqlite3"):
        break
for seed in range(12):
    shutil.rmtree(campaign._place.root)
    campaign._disk.write_to(campaign._place.root, Model.TORN, random.Random(seed))
    print(*in_child(look), sep="\\n", end="")
"""

# Nothing is synced here, and the power cuts must detect that.
NEGLIGENT = """
import sys
from pathlib import Path
import vfsd.disk.object_store, vfsd.disk.store_layout
from tests.fault import layer, operations
from tests.fault.campaign import Campaign, in_child

def forget(path):
    pass

vfsd.disk.object_store.fsync_path = forget
folder = Path(sys.argv[1])
inputs = folder / "inputs"
inputs.mkdir()
in_child(lambda: operations.make_inputs(inputs))
campaign = Campaign(operations.named("ingest --replace"), folder, inputs, 1)
for _ in campaign.cut(5):
    pass
print(campaign.row.losses, campaign.row.dangling)
"""


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory, under_layer: Run) -> dict[str, Any]:
    """The results of each operation by name."""
    folder = tmp_path_factory.mktemp("campaign")
    only = [word for name in SOME for word in ("--only", name)]
    points = ["--kills", "2", "--cuts", "3", "--errors", "7", "--seed", "5"]
    answer = folder / "answer.json"
    done = under_layer(
        *("-m", "benchmarks.faults", *points, *only, "--folder", folder, "--json", answer),
        check=False,
    )
    assert answer.exists(), done.stderr
    rows = json.loads(answer.read_text(encoding="utf-8"))["figures"]["rows"]
    return {row["operation"]: row for row in rows}


@pytest.mark.thorough
@pytest.mark.parametrize("name", SOME)
def test_interrupted_operation(figures: dict[str, Any], name: str) -> None:
    row = figures[name]
    assert row["problems"] == []
    assert (row["kills"], row["cuts"]) == (2, 3)
    assert row["errors"] >= 5
    assert row["clean"] == row["unchanged"] == row["again"] == row["errors"]
    assert (row["losses"], row["dangling"], row["orphans"]) == (0, 0, 0)


@pytest.mark.thorough
def test_unsynced_change(tmp_path: Path, under_layer: Run) -> None:
    names = ("mount: overwrite", "mount: replace", "mv: unsynced")
    assert under_layer("-c", CUT, tmp_path, *names).stdout == ""


@pytest.mark.thorough
def test_interrupted_restore(tmp_path: Path, under_layer: Run) -> None:
    assert under_layer("-c", CUT, tmp_path, "restore").stdout == ""


@pytest.mark.thorough
def test_old_catalog_log_gone(tmp_path: Path, under_layer: Run) -> None:
    assert under_layer("-c", TAKEN_OVER, tmp_path).stdout == ""


@pytest.mark.thorough
def test_missing_sync_detected(tmp_path: Path, under_layer: Run) -> None:
    done = under_layer("-c", NEGLIGENT, tmp_path)
    losses, dangling = map(int, done.stdout.split())
    assert losses + dangling > 0


# --------------------------------------------------------------------------------------------------
# After a power cut, a file has either its complete new bytes or its old ones


OLD, NEW = b"old" * 3000, b"new" * 5000

SAVE = """
import sys
from pathlib import Path
from tests.fault import layer
from vfsd.disk.tempfiles import atomic_file

root, counters = Path(sys.argv[1]), layer.Counters()
with open(sys.argv[2], "wb") as log:
    layer.begin(root, counters, log=log.fileno())
    with atomic_file(root / "file", replace=True) as file:
        file.write(b"new" * 5000)
    layer.end()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(OLD)
    return root


@pytest.mark.parametrize("model", Model)
def test_power_cut_during_save(root: Path, tmp_path: Path, under_layer: Run, model: Model) -> None:
    disk, log = Disk(root), tmp_path / "log"
    under_layer("-c", SAVE, root, log)
    assert (root / "file").read_bytes() == NEW
    for entry in read_log(log):
        disk.do(entry)
        for seed in range(10):
            left = tmp_path / "left"
            disk.write_to(left, model, random.Random(seed))
            assert (left / "file").read_bytes() in (OLD, NEW)
            shutil.rmtree(left)
