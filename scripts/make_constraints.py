"""Writes constraints.txt and constraints-lowest.txt: exact versions of every dependency.

python -m scripts.make_constraints            write both files
python -m scripts.make_constraints --names    only print the names of the dependencies

constraints.txt has the newest versions that setup.cfg allows today, for each Python; it is what
scripts/setup.sh installs.  constraints-lowest.txt has the oldest direct dependencies that setup.cfg
allows; .ci/run tries them.  Needs the program uv (pip install uv) and the package registry; the
Pythons themselves need not be there.  Commit what has passed .ci/run.
"""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The minor versions that are supported, in a row.
_PYTHONS = (11, 12, 13, 14)
_FILES = {"highest": "constraints.txt", "lowest-direct": "constraints-lowest.txt"}
# Extras that are left out: atheris has no wheels for some Pythons, torch requires gigabytes of CUDA
# libraries, and schemathesis a newer pytest than the other tests.
_APART = ("fuzz", "test-api", "torch", "torchcodec")
# Packages without wheels. For all others a version counts only if it has a wheel.
_SOURCES = ("fusepy",)
# A package with the extras of it that are wanted.
_NAME = re.compile(r"[\w.-]+(\[[\w,]+\])?")


def main(arguments: list[str]) -> int:
    """Runs one command; returns the exit status."""
    if arguments == ["--names"]:
        matches = (_NAME.match(line) for line in requirements())
        print(" ".join(sorted({match[0] for match in matches if match})))
        return 0
    wanted = "\n".join(requirements())
    for resolution, name in _FILES.items():
        versions = {minor: _resolve(wanted, minor, resolution) for minor in _PYTHONS}
        (ROOT / name).write_text(page(versions, resolution), encoding="utf-8")
        print(f"wrote {name}")
    return 0


def requirements() -> list[str]:
    """What setup.cfg requires, with its bounds: of the package and of the extras that agree."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = parser["options"]["install_requires"].splitlines()
    for extra, text in parser["options.extras_require"].items():
        if extra not in _APART:
            lines += text.splitlines()
    return sorted({line.strip() for line in lines if line.strip() and not line.startswith("#")})


def page(versions: Mapping[int, Mapping[str, str]], resolution: str) -> str:
    """The text of a file, from the version of each package on each Python."""
    first, last = min(versions), max(versions)
    head = [
        "# Written by scripts/make_constraints.py from the bounds in setup.cfg.",
        f"# Versions: {'the newest' if resolution == 'highest' else 'the lowest'} that they allow.",
        f"# Python 3.{first} to 3.{last}",
    ]
    return "\n".join([*head, *_lines(versions), ""])


def _lines(versions: Mapping[int, Mapping[str, str]]) -> list[str]:
    """One line a package where all Pythons have the same version; else one for each Python, with a
    marker."""
    lines = []
    for name in sorted({name for found in versions.values() for name in found}):
        by_python = {minor: found.get(name) for minor, found in versions.items()}
        (first, *others) = set(by_python.values())
        if first is not None and not others:
            lines.append(f"{name}=={first}")
            continue
        for minor, version in by_python.items():
            if version is not None:
                lines.append(f'{name}=={version} ; python_version == "3.{minor}"')
    return lines


def _resolve(wanted: str, minor: int, resolution: str) -> dict[str, str]:
    words = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "-"]
    words += ["--python-version", f"3.{minor}", "--resolution", resolution]
    words += ["--only-binary", ":all:"]
    for name in _SOURCES:
        words += ["--no-binary", name]
    done = subprocess.run(words, input=wanted, stdout=subprocess.PIPE, text=True, check=True)
    pairs = (line.split("==") for line in done.stdout.splitlines() if "==" in line)
    return dict(pairs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
