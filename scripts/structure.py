"""Print figures of the project's structure: files, lines, names and importers.

    .venv/bin/python -m scripts.structure [--json] [--list]

A module with one importer is a module that a single other product module imports.  A duplicate
name is a public class that more than one module defines.  `--list` names the modules and classes
behind the figures.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import defaultdict
from configparser import ConfigParser
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("vfsd", "catalog", "codecs", "tiling")
_SHORT = 80
_LONG = 600


@dataclass(frozen=True, slots=True)
class Structure:
    """Figures of the product's modules."""

    files: int
    lines: int
    median_lines: float
    loose: list[str]  #: modules of `vfsd` itself
    short: list[str]  #: modules of fewer than 80 lines, packages left out
    long: list[str]  #: modules of more than 600 lines
    contract_rows: int
    duplicate_classes: dict[str, list[str]]  #: public class to the modules that define it
    one_importer: dict[str, str]  #: module to the only module that imports it


def structure(root: Path = ROOT) -> Structure:
    """The figures of the tree below `root`."""
    files = {
        _module(path.relative_to(root)): path
        for folder in FOLDERS
        for path in (root / folder).rglob("*.py")
    }
    trees = {module: ast.parse(path.read_text()) for module, path in files.items()}
    lines = {module: len(path.read_text().splitlines()) for module, path in files.items()}
    plain = sorted(module for module, path in files.items() if path.name != "__init__.py")
    return Structure(
        files=len(files),
        lines=sum(lines.values()),
        median_lines=median(lines.values()),
        loose=[module for module in plain if module.count(".") == 1 and "__" not in module],
        short=[module for module in plain if lines[module] < _SHORT and "__" not in module],
        long=[module for module in plain if lines[module] > _LONG],
        contract_rows=len(_contract(root)),
        duplicate_classes=_duplicates(trees),
        one_importer=_single_importers(trees),
    )


def _module(path: Path) -> str:
    parts = [*path.with_suffix("").parts]
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts if parts[0] == "vfsd" else ["vfsd", *parts])


def _contract(root: Path) -> list[str]:
    setup = ConfigParser()
    setup.read(root / "setup.cfg")
    return setup["importlinter:contract:layers"]["layers"].split("\n")[1:]


def _duplicates(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    places = defaultdict(list)
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    return {name: modules for name, modules in sorted(places.items()) if len(modules) > 1}


def _single_importers(trees: dict[str, ast.Module]) -> dict[str, str]:
    importers = defaultdict(set)
    for module, tree in trees.items():
        for imported in _imports(tree) & trees.keys():
            importers[imported].add(module)
    return {
        module: next(iter(found)) for module, found in sorted(importers.items()) if len(found) == 1
    }


def _imports(tree: ast.Module) -> set[str]:
    """Modules that are imported anywhere in `tree`, and packages of imported names."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def _text(figures: Structure, *, listed: bool) -> str:
    values = asdict(figures)
    width = max(map(len, values))
    lines = []
    for name, value in values.items():
        count = len(value) if isinstance(value, list | dict) else value
        lines.append(f"{name.replace('_', ' '):{width}}  {count}")
        if listed and isinstance(value, list):
            lines += [f"  {module}" for module in value]
        elif listed and isinstance(value, dict):
            lines += [
                f"  {key}: {', '.join(what) if isinstance(what, list) else what}"
                for key, what in value.items()
            ]
    return "\n".join(lines)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--list", action="store_true", help="name the modules and classes")
    options = parser.parse_args()
    figures = structure()
    print(
        json.dumps(asdict(figures), indent=2)
        if options.json
        else _text(figures, listed=options.list)
    )


if __name__ == "__main__":
    main()
