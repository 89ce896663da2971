"""Prints the test files that belong to what has changed since a commit, one a line.

python -m scripts.changed_tests [COMMIT]

Without COMMIT, it is where HEAD left the default branch of "origin"; where that is HEAD itself or
there is no such branch, it is the commit before HEAD.  Changes that are not committed count, too.

The files are, in this order: changed test files; test files that name a changed module, as in
`from vfsd.read.read_context import ...`; all files of a folder of tests/ that is called as a
changed package is.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
_SOURCES = ("vfsd", "tiling", "catalog", "codecs")


def main(arguments: list[str]) -> int:
    """Prints the files; returns the exit status, which is 1 without a history to compare with."""
    base = arguments[0] if arguments else default_base()
    changed = None if base is None else _git("diff", "--name-only", base)
    if changed is None:
        print("changed_tests: there is no earlier commit to compare with", file=sys.stderr)
        return 1
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in tests}
    for file in files_of(changed, texts):
        print(file)
    return 0


def files_of(changed: Iterable[str], tests: dict[str, str]) -> list[str]:
    """The test files that belong to changed files.

    Paths are relative to the repository.  `tests` has the text of each test file.
    """
    sources = list(changed)
    modules = {module for path in sources if (module := module_of(path)) is not None}
    folders = {f"tests/{name}/" for module in modules for name in module.split(".")[1:2]}
    found = [path for path in sources if path in tests]
    found += [path for path, text in tests.items() if any(module in text for module in modules)]
    found += [path for path in tests if any(path.startswith(folder) for folder in folders)]
    return list(dict.fromkeys(found))


def module_of(path: str) -> str | None:
    """The dotted name of a source file; of the whole package for its __init__.py; else None."""
    parts = PurePosixPath(path).with_suffix("").parts
    if not path.endswith(".py") or len(parts) < 2 or parts[0] not in _SOURCES:
        return None
    names = parts if parts[0] == "vfsd" else ("vfsd", *parts)
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def default_base() -> str | None:
    """The commit to compare with; None where there is no earlier one."""
    head = _git("rev-parse", "HEAD")
    left = _git("merge-base", "HEAD", "origin/HEAD")
    if left and left != head:
        return left[0]
    before = _git("rev-parse", "--verify", "--quiet", "HEAD~1")
    return before[0] if before else None


def _git(*words: str) -> list[str] | None:
    """The lines that git prints; None where it fails or is not installed."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
