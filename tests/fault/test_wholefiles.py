"""What is saved under a name is whole or what was there before, also when the power is cut."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.fault.conftest import Run
from tests.fault.powercut import Disk, Model, read_log

OLD, NEW = b"old" * 3000, b"new" * 5000

SAVE = """
import sys
from pathlib import Path
from tests.fault import layer
from vfsd.disk.atomic_write import whole_file

root, counters = Path(sys.argv[1]), layer.Counters()
with open(sys.argv[2], "wb") as log:
    layer.begin(root, counters, log=log.fileno())
    with whole_file(root / "file", replace=True) as file:
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
def test_a_power_cut_leaves_the_old_or_the_new(
    root: Path, tmp_path: Path, under_layer: Run, model: Model
) -> None:
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
