"""The page: its arithmetic, what its sources must not contain, and the built files."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "vfsd" / "web" / "page"
STATIC = PAGE.parent / "static"
SOURCES = sorted(path for path in (PAGE / "src").rglob("*") if path.is_file())

# Names of videos, tags and labels come from files, and reach the page as text nodes only.
_FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\s*\(|\bnew Function\b"
    r"|javascript:|[\"'`](https?:)?//[a-z0-9]",
    re.IGNORECASE,
)


def test_sources_make_no_markup_from_text() -> None:
    assert len(SOURCES) > 20
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in SOURCES
        if path.suffix in {".js", ".jsx", ".css", ".html"}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _FORBIDDEN.search(line)
    ]
    assert found == []


def test_index_meets_the_content_security_policy() -> None:
    """A policy of 'self' runs no script and applies no style that is in the page."""
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL) == [""]
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", text)
    linked = re.findall(r"(?:src|href)=\"([^\"]+)\"", text)
    assert {path.removeprefix("/static/") for path in linked} == {"app.js", "app.css", "icon.svg"}
    assert all((STATIC / path.removeprefix("/static/")).is_file() for path in linked)


def test_page_stays_small() -> None:
    assert len(gzip.compress((STATIC / "app.js").read_bytes())) <= 90_000


def test_arithmetic() -> None:
    """Frames and times, object-fit and pixels, by the test runner of Node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node")
    done = subprocess.run(
        [node, "--test"], cwd=PAGE, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
def test_built_files_are_those_of_the_sources(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")
    page = tmp_path / "page"
    shutil.copytree(PAGE, page, ignore=shutil.ignore_patterns("node_modules"))
    for command in (["ci", "--no-audit", "--no-fund"], ["run", "check"], ["run", "build"]):
        done = subprocess.run(
            [npm, *command], cwd=page, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    built = {path.name: path.read_bytes() for path in (tmp_path / "static").iterdir()}
    assert built == {path.name: path.read_bytes() for path in STATIC.iterdir()}
