"""The four top-level folders, the links to them and the lists in setup.cfg are in step."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


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
def test_every_package_is_found_in_the_tree_where_setup_cfg_says(package: str, folder: str) -> None:
    in_tree = ROOT / Path(*package.split("."))
    assert in_tree.resolve() == (ROOT / folder).resolve()


def test_packages_are_exactly_the_folders_with_an_init() -> None:
    listed = set(_options()["options"]["packages"].split())
    assert listed == set(_package_dir())
    mapped = {
        str(path.parent.relative_to(ROOT))
        for top in ("vfsd", "tiling", "catalog", "codecs")
        for path in (ROOT / top).rglob("__init__.py")
        if not any(part.is_symlink() for part in path.parents)
    }
    assert {_package_dir()[name] for name in listed} == mapped
