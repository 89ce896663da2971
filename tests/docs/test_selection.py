"""Tests selected by default and with --all, and the report of those left out.

The test files that cover a change.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.changed_tests import files_of, module_of
from tests.support.selection import covering, one_in, thorough_but

pytest_plugins = "pytester"

REPOSITORY = Path(__file__).resolve().parents[2]
HOOKS = "from tests.support.selection import *\n"
TESTS = """
import pytest
from hypothesis import settings
from tests.support.selection import examples, thorough_but

@pytest.mark.parametrize("number", thorough_but([2], [1, 2, 3]))
def test_number(number): pass

@pytest.mark.slow
def test_slow(): pass

def test_examples(): print("examples:", settings().max_examples, examples(300))
"""
OPTIONS = ("-p", "no:cacheprovider", "-o", "markers=thorough\nslow", "-rP")


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeconftest(HOOKS)
    pytester.makepyfile(test_sample=TESTS)
    return pytester


@pytest.mark.parametrize(
    ("arguments", "passed"),
    one_in(
        6,
        [
            ((), 2),
            (("-n", "2"), 2),
            (("--all",), 5),
            (("--all", "-n", "2"), 5),
            (("test_sample.py",), 5),
            (("test_sample.py::test_number",), 3),
            (("test_sample.py::test_number[3]",), 1),
            (("-m", "thorough"), 2),
            (("-k", "number or slow"), 1),
        ],
    ),
)
def test_selected(suite: pytest.Pytester, arguments: tuple[str, ...], passed: int) -> None:
    done = suite.runpytest_subprocess(*OPTIONS, *arguments)
    assert done.parseoutcomes()["passed"] == passed
    said = "left out: 3 marked thorough or slow" in done.stdout.str()
    assert said == (not arguments or arguments in [("-n", "2"), ("-k", "number or slow")])


@pytest.mark.parametrize(("arguments", "told"), [((), "10 30"), (("--all",), "100 300")])
def test_profiles(suite: pytest.Pytester, arguments: tuple[str, ...], told: str) -> None:
    done = suite.runpytest_subprocess(*OPTIONS, "-k", "examples", *arguments)
    assert f"examples: {told}" in done.stdout.str()


def test_time_budget(suite: pytest.Pytester) -> None:
    done = suite.runpytest_subprocess(*OPTIONS, "--all", "--time-budget", "0", "-n", "1")
    assert done.parseoutcomes()["skipped"] == 5
    assert "not run within the time budget: 5 of test_sample.py" in done.stdout.str()


def test_covering() -> None:
    axes = ("abc", (1, 2), (True, False))
    cases = covering(2, *axes)
    assert len(cases) == 12
    default = [case.values for case in cases if not case.marks]
    assert 6 <= len(default) < 12
    for one, other in ((0, 1), (0, 2), (1, 2)):
        pairs = {(values[one], values[other]) for values in default}
        assert len(pairs) == len(axes[one]) * len(axes[other])


def test_covering_each_value() -> None:
    default = [case.values for case in covering(1, "abc", "xy") if not case.marks]
    assert len(default) == 3
    assert {values[1] for values in default} == {"x", "y"}


def test_one_in() -> None:
    assert [bool(case.marks) for case in one_in(2, "abc", ids=["p", "q", "r"])] == [
        False,
        True,
        False,
    ]


def test_unknown_default() -> None:
    with pytest.raises(ValueError, match="not among all cases"):
        thorough_but([4], [1, 2])


# --------------------------------------------------------------------------------------------------
# The test files that belong to a change


TEST_FILES = {
    "tests/derive/test_retile.py": "from vfsd.read.read_context import TileIndex\n",
    "tests/core/test_timebase.py": "from vfsd.core.timebase import parse\n",
    "tests/mount/test_lifecycle.py": "",
    "tests/views/test_raw.py": "import vfsd.views.rendered_view\n",
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
        (["tests/core/test_timebase.py", "tests/test_removed.py"], ["tests/core/test_timebase.py"]),
        (["vfsd/read/read_context.py"], ["tests/derive/test_retile.py"]),
        (["vfsd/mount/fuse/libfuse.py"], ["tests/mount/test_lifecycle.py"]),
        (["vfsd/views/rendered_view.py"], ["tests/views/test_raw.py", "tests/views/test_tree.py"]),
        (
            ["vfsd/core/timebase.py", "tests/views/test_tree.py"],
            ["tests/views/test_tree.py", "tests/core/test_timebase.py"],
        ),
    ],
)
def test_files(changed: list[str], expected: list[str]) -> None:
    assert files_of(changed, TEST_FILES) == expected
