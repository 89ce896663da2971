"""The tests that run by default: all but those marked `thorough` or `slow`.

`--all` runs every test.  So does `-m` with one of the two markers in its expression, for the tests
that the expression selects.  A test whose file or node id is given on the command line always runs.

`--time-budget SECONDS` skips the tests that have not begun after that time, and the run's summary
names their files.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

_LEFT_OUT = ("thorough", "slow")
_THOROUGH = pytest.mark.thorough

_KEY = "tests_left_out"
_COUNT = pytest.StashKey[int]()
_END = pytest.StashKey[float]()
_NO_TIME = "not run within the time budget"

# A deadline for each example would fail on a busy machine.
settings.register_profile("default", deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None, max_examples=100)


def examples(thorough: int) -> int:
    """The number of Hypothesis examples of a test that needs its own number.

    It is `thorough` with `--all`.  By default it is a tenth of that, and at least 5.
    """
    return max(5, thorough * settings().max_examples // 100)


def thorough_but(
    default: Iterable[object], cases: Iterable[object], *, ids: Iterable[str] | None = None
) -> list[ParameterSet]:
    """`cases` for `pytest.mark.parametrize`; those that are not among `default` are `thorough`.

    A case that is a tuple gives one value to each of several arguments.
    """
    kept = list(default)
    listed = list(cases)
    names: list[str | None] = [None] * len(listed) if ids is None else list(ids)
    if missing := [case for case in kept if case not in listed]:
        raise ValueError(f"these default cases are not among all cases: {missing}")
    return [
        _case(case, name, default=case in kept) for case, name in zip(listed, names, strict=True)
    ]


def one_in(
    nth: int, cases: Iterable[object], *, ids: Sequence[str] | None = None
) -> list[ParameterSet]:
    """`cases` for `pytest.mark.parametrize`; the first of each `nth` cases runs by default."""
    listed = list(cases)
    names: Sequence[str | None] = [None] * len(listed) if ids is None else ids
    return [
        _case(case, name, default=at % nth == 0)
        for at, (case, name) in enumerate(zip(listed, names, strict=True))
    ]


def covering(ways: int, *axes: Sequence[object]) -> list[ParameterSet]:
    """The product of `axes` for `pytest.mark.parametrize`.

    By default enough of its cases run for each combination of values of `ways` axes to occur: with
    1, each value of each axis; with 2, each pair of values of two axes.  The others are `thorough`.
    """
    cases = list(product(*axes))
    numbers = list(product(*(range(len(axis)) for axis in axes)))

    def covered(numbered: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(combinations(enumerate(numbered), ways))

    left = set().union(*map(covered, numbers)) if cases else set()
    default = set()
    uses = Counter[tuple[int, int]]()
    while left:
        best = max(
            numbers,
            key=lambda numbered: (
                len(covered(numbered) & left),
                -sum(uses[value] for value in enumerate(numbered)),
            ),
        )
        default.add(best)
        uses.update(enumerate(best))
        left -= covered(best)
    return [
        _case(case, None, default=numbered in default)
        for case, numbered in zip(cases, numbers, strict=True)
    ]


def _case(case: object, name: str | None, *, default: bool) -> ParameterSet:
    if isinstance(case, ParameterSet):
        return case if default else case._replace(marks=(*case.marks, _THOROUGH))
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, id=name, marks=() if default else _THOROUGH)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="run the tests marked thorough or slow, too"
    )
    parser.addoption(
        "--time-budget",
        type=float,
        metavar="SECONDS",
        help="skip the tests that have not begun after this time",
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("thorough" if config.option.all else "default")
    if config.option.time_budget is not None:
        config.stash[_END] = time.monotonic() + config.option.time_budget


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash.get(_END, math.inf):
        pytest.skip(_NO_TIME)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = _left_out(config, items)
    if left_out:
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=left_out)
    _note_left_out(config, len(left_out))
    if hasattr(config, "workeroutput"):  # a process of xdist, which prints nothing
        config.workeroutput[_KEY] = len(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process of xdist collects all tests, so each has the same number."""
    _note_left_out(node.config, getattr(node, "workeroutput", {}).get(_KEY, 0))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if count := config.stash.get(_COUNT, 0):
        terminalreporter.write_line(
            f"left out: {count} marked thorough or slow; --all runs them, as does naming their file"
        )
    unfinished = Counter(
        report.nodeid.partition("::")[0]
        for report in terminalreporter.stats.get("skipped", [])
        if _NO_TIME in str(report.longrepr)
    )
    for file, count in sorted(unfinished.items()):
        terminalreporter.write_line(f"{_NO_TIME}: {count} of {file}")


def _note_left_out(config: pytest.Config, count: int) -> None:
    config.stash[_COUNT] = max(count, config.stash.get(_COUNT, 0))


def _left_out(config: pytest.Config, items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Those of `items` that do not run, by the options and arguments of this run."""
    expression = str(config.option.markexpr or "")
    if config.option.all or any(marker in expression for marker in _LEFT_OUT):
        return []
    named = [_Named(config, argument) for argument in config.args]
    return [
        item
        for item in items
        if any(item.get_closest_marker(marker) for marker in _LEFT_OUT)
        and not any(one.has(item) for one in named)
    ]


class _Named:
    """An argument of the command line: a folder, a file, or a node id."""

    def __init__(self, config: pytest.Config, argument: str) -> None:
        path, _, self._within = argument.partition("::")
        self._path = (config.invocation_params.dir / path).resolve()

    def has(self, item: pytest.Item) -> bool:
        """Whether the argument names the test or its file; a folder does not count."""
        if Path(item.path).resolve() != self._path:
            return False
        within = item.nodeid.partition("::")[2]
        return within == self._within or within.startswith(
            ("",) if not self._within else (f"{self._within}[", f"{self._within}::")
        )
