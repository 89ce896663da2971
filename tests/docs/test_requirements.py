"""The bounds in setup.cfg, the constraints files and the smoke tests are in step."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from scripts.compare_versions import differences
from scripts.make_constraints import page, requirements

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def pinned(name: str, python: str) -> dict[str, Version]:
    """The version of each package that a constraints file has for a Python."""
    found = {}
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
            (only,) = requirement.specifier
            assert only.operator == "=="
            assert requirement.name not in found
            found[requirement.name] = Version(only.version)
    return found


@pytest.mark.parametrize("line", requirements())
def test_both_bounds(line: str) -> None:
    assert {part.operator for part in Requirement(line).specifier} == {">=", "<"}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", ["constraints.txt", "constraints-lowest.txt"])
def test_constraints_in_bounds(name: str, python: str) -> None:
    versions = pinned(name, python)
    for line in requirements():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is not None and not marker.evaluate({"python_version": python}):
            continue  # some packages have no wheels for the newest Python
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier


def test_lowest_constraints() -> None:
    """On the oldest Python, each direct dependency has the version of its lower bound."""
    versions = pinned("constraints-lowest.txt", PYTHONS[0])
    for line in requirements():
        requirement = Requirement(line)
        (lower,) = (part for part in requirement.specifier if part.operator == ">=")
        assert versions[canonicalize_name(requirement.name)] == Version(lower.version)


def test_page_with_markers() -> None:
    versions = {11: {"numpy": "2.4", "rich": "15"}, 12: {"numpy": "2.5", "rich": "15"}}
    lines = page(versions, "highest").splitlines()
    assert lines[2:] == [
        "# Python 3.11 to 3.12",
        'numpy==2.4 ; python_version == "3.11"',
        'numpy==2.5 ; python_version == "3.12"',
        "rich==15",
    ]


def test_page_without_package() -> None:
    lines = page({11: {"tomli": "2"}, 12: {}}, "highest").splitlines()
    assert lines[3:] == ['tomli==2 ; python_version == "3.11"']


def test_differences(tmp_path: Path) -> None:
    file = tmp_path / "pins.txt"
    file.write_text(
        "# a remark\n"
        "pytest==1.0\n"
        'rich==1.0 ; python_version < "3"\n'
        "no-such-package-anywhere==1.0\n",
        encoding="utf-8",
    )
    found = differences(file)
    assert {name: version for name, (_, version) in found.items()} == {"pytest": "1.0"}


def test_smoke_paths() -> None:
    paths = (ROOT / "tests" / "smoke.txt").read_text(encoding="utf-8").split()
    assert [path for path in paths if not (ROOT / path).is_file()] == []
