"""The libraries that a process loads: imports are the larger part of what short commands take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.stores import new_store
from vfsd.cli.app import cli
from vfsd.cli.command_table import ENTRIES

_HEAVY = (
    "alembic",
    "av",
    "click",
    "cv2",
    "numpy",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "rich",
    "scipy",
    "sqlalchemy",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.orm",
    "yaml",
)
_LOOKING = {"click", "numpy", "sqlalchemy"}
_VFSD = "import sys; from vfsd.cli.app import main; sys.argv[0] = 'vfsd'; main()"
_TELL = f"import sys; print(*(one for one in {_HEAVY!r} if one in sys.modules))"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imports") / "store"
    new_store(path).close()
    return path


def loaded(code: str, *args: str) -> set[str]:
    """Those of `_HEAVY` that a new process has loaded after `code`, which may exit."""
    program = f"import atexit\ndef tell():\n    {_TELL}\natexit.register(tell)\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_import_loads_no_library() -> None:
    assert loaded("import vfsd") == set()


def test_open_loads_no_codec(store: Path) -> None:
    assert loaded("import sys, vfsd; vfsd.Store.open(sys.argv[1]).close()", str(store)) <= {
        "numpy",
        "sqlalchemy",
    }


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["ls", "--help"]])
def test_help_loads_click_only(args: list[str]) -> None:
    assert loaded(_VFSD, *args) == {"click"}


@pytest.mark.parametrize("args", [["ls"], ["find", "--json"], ["ls", "--long"]])
def test_listing_loads_no_codec(store: Path, args: list[str]) -> None:
    assert loaded(_VFSD, "-s", str(store), *args) <= _LOOKING


def test_help_loads_no_command() -> None:
    code = f"{_VFSD.rpartition(';')[0]}\ntry: main()\nexcept SystemExit: pass\nimport sys\n"
    code += "assert 'vfsd.cli.ingest' not in sys.modules"
    assert loaded(code, "--help") == {"click"}


def test_help_of_commands_loads_no_library() -> None:
    modules = sorted({entry.module for entry in ENTRIES.values()})
    assert loaded(f"import {', '.join(f'vfsd.cli.{name}' for name in modules)}") == {"click"}


def test_summaries_are_those_of_commands() -> None:
    context = click.Context(cli)
    for name, entry in ENTRIES.items():
        command = cli.find(context, name.split())
        assert command is not None
        assert (name, command.get_short_help_str(1000)) == (name, entry.summary)
