"""The guides and the README are correct: every block runs, and prints the documented output.

CONTRIBUTING.md explains how a page marks its blocks.
"""

from __future__ import annotations

import ast
import doctest
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sample_videos import FOLDER
from sample_videos.cameras import Cameras, FilmedScene, write_pictures
from tests.cli.conftest import run_command
from tests.support.seaweedfs import SeaweedServer
from vfsd.errors import EnvironmentMissingError
from vfsd.mount.fuse.libfuse import require_fuse
from vfsd.mount.fuse.mount_options import MountOptions

ROOT = FOLDER.parent
PAGES = ("train", "research", "cameras", "operate", "datasets", "coming-from", "web", "workloads")
_BLOCK = re.compile(
    r"(?:^<!-- test: (?P<marks>[^>]*) -->\n)?^```(?P<language>console|python)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_PLACE = re.compile(r"(?<![\w./])/(?=(?:srv|mnt|backup)/)")
_CODES = re.compile(r"\s+# exit code (\d+)(?: or (\d+))?")
_CHECKER = doctest.OutputChecker()


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page, with the marks of the comment in front of it."""

    line: int
    language: str
    text: str
    marks: frozenset[str]


def blocks_of(page: Path) -> Iterator[Block]:
    source = page.read_text()
    for match in _BLOCK.finditer(source):
        line = source.count("\n", 0, match.start("text")) + 1
        marks = frozenset((match["marks"] or "").split(", ")) - {""}
        yield Block(line, match["language"], match["text"], marks)


def test_every_block_is_executed() -> None:
    """Commands and Python in a guide are in blocks that this module runs."""
    for name in (*PAGES, "cluster"):
        text = (ROOT / "docs" / "guide" / f"{name}.md").read_text()
        fences = re.findall(r"^```(\w+)$", text, re.MULTILINE)
        assert not set(fences) - {"console", "python", "text", "ini"}
        assert len([one for one in fences if one in ("console", "python")]) == len(
            list(blocks_of(ROOT / "docs" / "guide" / f"{name}.md"))
        )


def can_mount() -> bool:
    try:
        require_fuse(MountOptions())
    except EnvironmentMissingError:
        return os.environ.get("VFSD_REQUIRE_FUSE") == "1"
    return True


def is_possible(mark: str) -> bool:
    if mark == "mount":
        return can_mount()
    if mark == "root":
        return os.geteuid() == 0
    assert mark.startswith("needs ")
    return importlib.util.find_spec(mark.removeprefix("needs ")) is not None


class Page:
    """Runs the blocks of one page, with paths below /srv, /mnt and /backup moved to `place`."""

    def __init__(
        self, place: Path, *, apart: bool, replaced: Mapping[str, str] | None = None
    ) -> None:
        """With `apart`, each command runs in a separate process; otherwise `vfsd` runs in this
        one.  `replaced` has the addresses of servers on the page, with those of real servers."""
        self._place = place
        self._apart = apart
        self._replaced = replaced or {}
        self._names: dict[str, Any] = {"__name__": "__guide__"}
        self.problems: list[str] = []

    def run(self, page: Path, block: Block) -> None:
        text = _PLACE.sub(f"{self._place}/", block.text)
        for shown, real in self._replaced.items():
            text = text.replace(shown, real)
        if block.language == "python":
            self._python(page, block.line, text)
        else:
            for command, shown in commands_of(text):
                self._command(f"{page.name}: {command}", command, shown)

    def _python(self, page: Path, line: int, text: str) -> None:
        lines = text.splitlines()
        for node in ast.parse(text).body:
            value = lines[(node.end_lineno or 1) - 1].partition("  # -> ")[2]
            ast.increment_lineno(node, line - 1)
            if isinstance(node, ast.Expr) and value:
                code = compile(ast.Expression(node.value), str(page), "eval")
                got = repr(eval(code, self._names))
                if not is_as_shown(value, got):
                    self.problems.append(f"{page.name}:{node.lineno}: the value is {got}")
            else:
                exec(compile(ast.Module([node], []), str(page), "exec"), self._names)

    def _command(self, where: str, command: str, shown: str) -> None:
        told = _CODES.search(command)
        codes = {int(one) for one in told.groups() if one} if told else {0}
        command = _CODES.sub("", command)
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            os.environ[name] = value
            return
        words = shlex.split(command, comments=True)
        if self._apart or words[0] != "vfsd" or needs_shell(command):
            done = subprocess.run(
                ["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False
            )
            code, out, err = done.returncode, done.stdout, done.stderr
        else:
            result = run_command(*words[1:])
            code, out, err = result.code, result.out, result.err
        printed = (out, err, out + err)
        if code not in codes:
            self.problems.append(f"{where}: the exit code is {code}\n{out}{err}")
        elif shown.strip() and not any(is_as_shown(shown, one) for one in printed):
            self.problems.append(f"{where} prints\n{out}{err}")


def commands_of(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, shown = part.split("\n", 1)
        while command.endswith("\\"):
            more, shown = shown.split("\n", 1)
            command = command[:-1] + more
        yield command, shown


def needs_shell(command: str) -> bool:
    """Whether a command has a pipe, a redirection or the like outside of quotes."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return any(set(word) <= set("();<>|&") for word in lexer)


def is_as_shown(shown: str, got: str) -> bool:
    """Whether output is as a page shows it, where `...` stands for any text."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return _CHECKER.check_output(f"{shown.strip()}\n", f"{got.strip()}\n", flags)


@pytest.fixture(scope="module")
def pair_of_cameras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with west.mp4 and east.mp4: one second of one place, from two cameras."""
    folder = tmp_path_factory.mktemp("cameras")
    filmed = FilmedScene.of(Cameras(), frames=30, seed=1)
    for name, picture in (("west", filmed.left), ("east", filmed.right)):
        write_pictures(folder / f"{name}.mp4", map(picture, range(30)))
    return folder


@pytest.fixture
def place(tmp_path: Path, pair_of_cameras: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory of a page: three clips, a mount point, and `vfsd` on the path."""
    for clip in (FOLDER / "traffic.mp4", *pair_of_cameras.iterdir()):
        shutil.copy(clip, tmp_path)
    for folder in ("srv", "backup", "mnt/v"):
        (tmp_path / folder).mkdir(parents=True)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in (("vfsd", "vfsd"), ("mount.fuse.vfsd", "vfsd.cli.mount_helper")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        program.chmod(0o755)
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("VFSD_STORE", "")  # so that exported variables of a page are undone
    monkeypatch.delenv("VFSD_STORE")
    yield tmp_path
    if os.path.ismount(tmp_path / "mnt/v"):
        run_command("umount", str(tmp_path / "mnt/v"))


def run_page(
    path: Path,
    place: Path,
    *,
    thorough: bool,
    apart: bool,
    replaced: Mapping[str, str] | None = None,
) -> None:
    page = Page(place, apart=apart, replaced=replaced)
    for block in blocks_of(path):
        marks = block.marks - {"thorough"}
        if (thorough or marks == block.marks) and all(map(is_possible, marks)):
            page.run(path, block)
    assert not page.problems, "\n".join(page.problems)


@pytest.mark.parametrize("name", PAGES)
def test_guide(place: Path, name: str) -> None:
    run_page(ROOT / "docs" / "guide" / f"{name}.md", place, thorough=False, apart=False)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_guide_in_processes(place: Path, name: str) -> None:
    run_page(ROOT / "docs" / "guide" / f"{name}.md", place, thorough=True, apart=True)


def test_readme(place: Path) -> None:
    run_page(ROOT / "README.md", place, thorough=False, apart=False)


def test_guide_of_clusters(
    place: Path, own_database: str, seaweedfs: SeaweedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a server for the catalog and one for the bytes."""
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    servers = {
        '"postgresql+psycopg://vfsd@db/videos"': repr(own_database),
        "postgresql+psycopg://vfsd@db/videos": shlex.quote(own_database),
        "s3://footage/videos": f"s3://{seaweedfs.bucket}/{place.name}",
        "s3://footage/backups": f"s3://{seaweedfs.bucket}/{place.name}-backups",
        "http://s3:8333": seaweedfs.endpoint,
    }
    page = ROOT / "docs" / "guide" / "cluster.md"
    run_page(page, place, thorough=False, apart=False, replaced=servers)


def test_page_of_fsspec(place: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    # As the entry point does, where the package is installed.
    fsspec.register_implementation("vfsd", "vfsd.fsspec.VfsdFileSystem", clobber=True)
    run_page(ROOT / "docs" / "reference" / "fsspec.md", place, thorough=False, apart=False)


def test_page_of_tables(place: Path) -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    run_page(ROOT / "docs" / "reference" / "tables.md", place, thorough=False, apart=False)


def test_links_resolve() -> None:
    """Links between documents name files that exist."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs/guide").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
