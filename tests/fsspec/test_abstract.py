"""The suites that fsspec has for every file system."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("fsspec")

from fsspec.tests import abstract


class _Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]  # fsspec has no types
    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return posixpath.join

    @pytest.fixture
    def fs_path(self) -> str:
        return "work"

    @pytest.fixture
    def fs(self, fs: Any) -> Any:
        return fs


class TestCopy(abstract.AbstractCopyTests, _Fixtures):  # type: ignore[misc]
    test_copy_glob_edge_cases = pytest.mark.thorough(
        abstract.AbstractCopyTests.test_copy_glob_edge_cases
    )


@pytest.mark.thorough
class TestGet(abstract.AbstractGetTests, _Fixtures):  # type: ignore[misc]
    pass


@pytest.mark.thorough
class TestPut(abstract.AbstractPutTests, _Fixtures):  # type: ignore[misc]
    pass


class TestPipe(abstract.AbstractPipeTests, _Fixtures):  # type: ignore[misc]
    pass


class TestOpen(abstract.AbstractOpenTests, _Fixtures):  # type: ignore[misc]
    pass
