"""The test files that belong to a change."""

from __future__ import annotations

import pytest

from scripts.changed_tests import files_of, module_of

TESTS = {
    "tests/test_tiles.py": "from vfsd.read.read_context import TileIndex\n",
    "tests/test_units.py": "from vfsd.core.timebase import parse\n",
    "tests/mount/test_life.py": "",
    "tests/views/test_raw.py": "import vfsd.views.raw_view\n",
    "tests/views/test_tree.py": "",
}


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("vfsd/core/timebase.py", "vfsd.core.timebase"),
        ("codecs/decoding/pool.py", "vfsd.codecs.decoding.pool"),
        ("catalog/__init__.py", "vfsd.catalog"),
        ("vfsd/py.typed", None),
        ("benchmarks/load.py", None),
        ("README.md", None),
    ],
)
def test_modules(path: str, module: str | None) -> None:
    assert module_of(path) == module


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["README.md"], []),
        (["tests/test_units.py", "tests/test_removed.py"], ["tests/test_units.py"]),
        (["vfsd/read/read_context.py"], ["tests/test_tiles.py"]),
        (["vfsd/mount/fuse/binding.py"], ["tests/mount/test_life.py"]),
        (["vfsd/views/raw_view.py"], ["tests/views/test_raw.py", "tests/views/test_tree.py"]),
        (
            ["vfsd/core/timebase.py", "tests/views/test_tree.py"],
            ["tests/views/test_tree.py", "tests/test_units.py"],
        ),
    ],
)
def test_files(changed: list[str], expected: list[str]) -> None:
    assert files_of(changed, TESTS) == expected
