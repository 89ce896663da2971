"""Documents stay short, and contributor documents name existing files only."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from scripts.check_prose import passages_of_markdown

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "architecture.md",
    *sorted((ROOT / "docs" / "adr").glob("*.md")),
)
PRODUCT = ("vfsd", "catalog", "codecs", "tiling")
FOLDERS = (*PRODUCT, "tests", "scripts", "benchmarks", "sample_videos", "docs")
OTHERS = {"AVRational", "mount.lock"}
"""A class of PyAV, and a file of a store."""
_QUOTED = re.compile(r"`([^`\n]+)`")
_CLASS = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+")
# Of all sources, which take long to parse.
_DEFINED_CLASS = re.compile(r"^ *class (\w+)", re.M)
_IMPORTED = re.compile(r"^ *from vfsd\.(\w+)(?:\.[\w.]+)? import", re.M)


def packages() -> list[str]:
    """The packages of the import contract, from top to bottom."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return re.findall(r"vfsd\.(\w+)", parser["importlinter:contract:layers"]["layers"])


def test_packages_are_in_the_order_of_the_contract() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text[text.index("### Packages") : text.index("### Inside")]
    cells = re.findall(r"^\| (`[^|]*`) \|", table, re.M)
    assert [name for cell in cells for name in _QUOTED.findall(cell)] == packages()


def test_packages_in_the_picture_import_what_is_below() -> None:
    """In the layer diagram, a package is above or left of those that it may import."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    picture = text[text.index("```text") : text.index("### Packages")]
    order = packages()
    rows = [re.findall(r"[a-z]+", line) for line in picture.split("\n")[1:-1]]
    shown = [name for row in rows for name in row if name in order]
    assert sorted(set(shown)) == sorted(order)
    first_line = {name: next(i for i, row in enumerate(rows) if name in row) for name in order}
    for package, others in imports_of_packages().items():
        for other in others:
            above = first_line[package] < first_line[other]
            arrow = re.search(rf"\b{package}\b.*>.*\b{other}\b", picture)
            assert above or arrow, f"{package} imports {other}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_exist(page: Path) -> None:
    missing = [name for name in names_of(page.read_text()) if not exists(name)]
    assert missing == []


def test_missing_names_are_found() -> None:
    text = "`read.no_module`, `vfsd/no_file.py`, `NoSuchClass`, `core.atfork.no_name`"
    names = list(names_of(text))
    assert len(names) == 4
    assert not any(map(exists, names))


def test_documents_stay_short() -> None:
    """Blocks of code, records of measurements and generated pages are not counted."""
    docs = ROOT / "docs"
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *docs.rglob("*.md")]
    counts = {page: words_of(page) for page in pages if page.name != "cli.md"}
    assert counts[ROOT / "README.md"] <= 1_000
    assert counts[docs / "architecture.md"] <= 2_000
    records = {page for page in counts if page.parent.name == "adr" and page.stem != "README"}
    assert [page.name for page in records if counts[page] > 200] == []
    assert sum(counts.values()) <= 24_500


def words_of(page: Path) -> int:
    """Words with at least one letter or digit."""
    passages = passages_of_markdown(page.read_text())
    return sum(
        bool(re.search(r"[A-Za-z0-9]", word)) for one in passages for word in one.text.split()
    )


def names_of(text: str) -> Iterator[str]:
    """Quoted modules (`read.read_log`), files (`vfsd/errors.py`) and classes (`ViewResolver`)."""
    known = {*packages(), *FOLDERS}
    for quoted in _QUOTED.findall(text):
        name = quoted.removeprefix("python -m ").removeprefix("sh ").split(" ")[0]
        first = re.split(r"[./]", name.removeprefix("vfsd."), maxsplit=1)[0]
        is_module = re.fullmatch(r"\w+(\.\w+)+", name) and first in known
        is_file = re.fullmatch(r"[\w/.-]+", name) and "/" in name and first in FOLDERS
        if name not in OTHERS and (is_module or is_file or _CLASS.fullmatch(name)):
            yield name


def exists(name: str) -> bool:
    if "/" in name:
        return (ROOT / name).exists()
    if "." not in name:
        return name in classes()
    parts = name.removeprefix("vfsd.").split(".")
    if parts[0] not in FOLDERS:
        parts.insert(0, "vfsd")
    for count in range(len(parts), 0, -1):
        module = ROOT.joinpath(*parts[:count])
        if module.is_dir() or module.with_suffix(".py").exists():
            rest = parts[count:]
            source = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
            return not rest or rest[0] in defined_names(source)
    return False


@cache
def defined_names(source: Path) -> set[str]:
    tree = ast.parse(source.read_text())
    kinds = (ast.ClassDef, ast.FunctionDef, ast.Name, ast.alias)
    return {
        node.id if isinstance(node, ast.Name) else node.name
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    }


@cache
def classes() -> set[str]:
    return {name for path in product_files() for name in _DEFINED_CLASS.findall(path.read_text())}


def imports_of_packages() -> dict[str, set[str]]:
    """The packages that each package of the contract imports."""
    order = set(packages())
    found: dict[str, set[str]] = {name: set() for name in order}
    for path in product_files():
        parts = path.relative_to(ROOT).with_suffix("").parts
        package = parts[1] if parts[0] == "vfsd" else parts[0]
        if package not in order:
            continue
        found[package] |= order.intersection(_IMPORTED.findall(path.read_text())) - {package}
    return found


@cache
def product_files() -> tuple[Path, ...]:
    found = (path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))
    return tuple(path for path in found if not any(one.is_symlink() for one in path.parents))
