"""Tells which installed packages have other versions than a constraints file.

python -m scripts.compare_versions [FILE]    default: constraints.txt

Prints lines such as "numpy 2.6.0 (constraints.txt: 2.5.5)", or nothing where all versions agree.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> int:
    """Prints the differences; returns the exit status."""
    file = Path(arguments[0]) if arguments else ROOT / "constraints.txt"
    for name, (installed, pinned) in sorted(differences(file).items()):
        print(f"{name} {installed} ({file.name}: {pinned})")
    return 0


def differences(file: Path) -> dict[str, tuple[str, str]]:
    """(installed version, version in the file) of each package of this environment that differs."""
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        (only,) = requirement.specifier
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            found[requirement.name] = (installed, only.version)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
