"""Imports, packages and figures of the source tree.

The libraries that a process loads: imports take most of the time of short commands.  Import rules
cover all modules, since a module outside of every layer could import anything.  The four top-level
folders, the links to them and the lists in setup.cfg agree.  The tree keeps the bounds on the
figures that `scripts.structure` prints.
"""

from __future__ import annotations

import configparser
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import click
import pytest

from scripts.structure import structure
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.cli.app import cli
from vfsd.cli.command_table import ENTRIES

_HEAVY = (
    "alembic",
    "av",
    "click",
    "cv2",
    "duckdb",
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
    """The modules of `_HEAVY` that a new process has loaded after `code`, which may exit."""
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


@pytest.mark.parametrize("args", one_in(3, [["ls"], ["find", "--json"], ["ls", "--long"]]))
def test_listing_loads_no_codec(store: Path, args: list[str]) -> None:
    assert loaded(_VFSD, "-s", str(store), *args) <= _LOOKING


def test_help_loads_no_command() -> None:
    code = f"{_VFSD.rpartition(';')[0]}\ntry: main()\nexcept SystemExit: pass\nimport sys\n"
    code += "assert 'vfsd.cli.ingest' not in sys.modules"
    assert loaded(code, "--help") == {"click"}


def test_help_of_commands_loads_no_library() -> None:
    modules = sorted({entry.module for entry in ENTRIES.values()})
    assert loaded(f"import {', '.join(f'vfsd.cli.{name}' for name in modules)}") == {"click"}


def test_summaries_equal_those_of_commands() -> None:
    context = click.Context(cli)
    for name, entry in ENTRIES.items():
        command = cli.find(context, name.split())
        assert command is not None
        assert (name, command.get_short_help_str(1000)) == (name, entry.summary)


# --------------------------------------------------------------------------------------------------
# Import rules cover all modules: a module outside of every layer could import anything


ROOT = Path(__file__).parents[2]


def test_every_module_is_in_a_layer() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    layers = setup["importlinter:contract:layers"]["layers"].replace("|", " ").split()
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "vfsd").rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    ]
    assert [one for one in modules if not any(f"{one}.".startswith(f"{e}.") for e in layers)] == []


# --------------------------------------------------------------------------------------------------
# The four top-level folders, the links to them and the lists in setup.cfg agree


def _options() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def _package_dir() -> dict[str, str]:
    lines = _options()["options"]["package_dir"].split("\n")
    return {
        name.strip(): folder.strip()
        for name, _, folder in (line.partition("=") for line in lines if line.strip())
    }


@pytest.mark.parametrize(("package", "folder"), sorted(_package_dir().items()))
def test_packages_are_where_setup_cfg_says(package: str, folder: str) -> None:
    in_tree = ROOT / Path(*package.split("."))
    assert in_tree.resolve() == (ROOT / folder).resolve()


def test_every_package_folder_is_listed() -> None:
    listed = set(_options()["options"]["packages"].split())
    assert listed == set(_package_dir())
    mapped = {
        str(path.parent.relative_to(ROOT))
        for top in ("vfsd", "tiling", "catalog", "codecs")
        for path in (ROOT / top).rglob("__init__.py")
        if not any(part.is_symlink() for part in path.parents)
    }
    assert {_package_dir()[name] for name in listed} == mapped


# --------------------------------------------------------------------------------------------------
# The figures that `scripts.structure` prints, and the bounds that this tree keeps


SETUP = """
[importlinter:contract:layers]
layers =
    vfsd.api
    vfsd.core
"""


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_figures_of_a_small_tree(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "setup.cfg": SETUP,
            "vfsd/__init__.py": "",
            "vfsd/loose.py": "import vfsd.api.one\n",
            "vfsd/api/__init__.py": "",
            "vfsd/api/one.py": "class Same:\n    pass\n\n\nclass _Same:\n    pass\n",
            "catalog/__init__.py": "from vfsd.api import one\n",
            "catalog/two.py": "class Same:\n    pass\n" + "x = 1\n" * 700,
            "codecs/three.py": "def f():\n    from vfsd.catalog.two import Same\n",
        },
    )
    figures = structure(tmp_path)
    assert figures.files == 7
    assert figures.contract_rows == 2
    assert figures.loose == ["vfsd.loose"]
    assert figures.long == ["vfsd.catalog.two"]
    assert figures.short == ["vfsd.api.one", "vfsd.codecs.three", "vfsd.loose"]
    assert figures.duplicate_classes == {"Same": ["vfsd.api.one", "vfsd.catalog.two"]}
    assert figures.one_importer == {
        "vfsd.api": "vfsd.catalog",
        "vfsd.catalog.two": "vfsd.codecs.three",
    }


def test_tree_stays_within_its_bounds() -> None:
    figures = structure()
    assert figures.files <= 502
    assert figures.contract_rows <= 20
    assert figures.duplicate_classes == {}
    assert len(figures.loose) <= 4
