"""Fixtures for processes under the layer, and for a small disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fault import layer
from tests.support.disks import mounted

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not layer.has_compiler():
        pytest.skip("no C compiler: the layer under a process cannot be made")
    return layer.build(tmp_path_factory.mktemp("layer"))


@pytest.fixture(scope="session")
def under_layer(library: Path) -> Run:
    """Run Python with these arguments under the layer."""

    def run(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=layer.environment(library),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=check,
        )

    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=8m", "tmpfs") as place:
        yield place
