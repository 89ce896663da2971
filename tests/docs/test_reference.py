"""The reference and the list of errors match the program.

The man pages match the commands' help, and render without warnings.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from scripts.make_cli_docs import commands
from scripts.make_man_pages import pages, write_pages
from vfsd.cli.errors import exit_codes
from vfsd.disk.store_config import StoreSettings
from vfsd.mount.fuse.mount_options import described_options, parse_options

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = (*sorted(REFERENCE.glob("*.md")), ROOT / "docs" / "troubleshooting.md")
SYSTEM_TEXTS = {"EMFILE", "too many open files"}


def test_all_settings_are_documented() -> None:
    rows = set(re.findall(r"^\| `([a-z_]+)` \|", _section("### vfsd config"), re.M))
    assert {field.name for field in dataclasses.fields(StoreSettings)} <= rows


def test_all_mount_options_are_documented() -> None:
    text = _section("### vfsd mount")
    missing = [
        word
        for words in described_options()
        for word in words.split(", ")
        if f"`{word}`" not in text
    ]
    assert missing == []


def test_all_exit_codes_are_documented() -> None:
    rows = re.findall(r"^\| (\d+) \|", _section("## Exit codes"), re.M)
    assert [int(code) for code in rows] == list(exit_codes())


def _section(heading: str) -> str:
    """The text of the reference of commands below a heading, up to the next one."""
    text = (REFERENCE / "cli.md").read_text()
    part = text[text.index(f"\n{heading}\n") + 1 :]
    return part[: part.find("\n#", 1)]


def test_messages_exist() -> None:
    """Every quoted message is one of the program, up to names and numbers."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    rows = re.findall(r"^\| (`.*?) \| ", text[: text.index("## Findings")], re.M)
    known = "\n".join(_texts())
    missing = [
        part
        for row in rows
        for quoted in re.findall(r"`([^`]*)`", row)
        for part in (one.strip(" ,:()") for one in quoted.split("..."))
        if " " in part and part not in SYSTEM_TEXTS | {"vfsd umount"} and part not in known
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)", target.read_text(), re.M)
        assert not anchor or anchor in map(_anchor, headings), link


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _texts() -> list[str]:
    """Strings of the program; an inserted value is a line break."""
    found = []
    for folder in ("vfsd", "catalog", "codecs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = (
                        part.value if isinstance(part, ast.Constant) else _value(part)
                        for part in node.values
                    )
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return found


def _value(part: ast.expr) -> str:
    """Constants of the module that stand for themselves in messages."""
    names = {"_DEVICE": "/dev/fuse", "_MARKER": "vfsd-store.json"}
    inner = part.value if isinstance(part, ast.FormattedValue) else part
    return names.get(inner.id, "\n") if isinstance(inner, ast.Name) else "\n"


# --------------------------------------------------------------------------------------------------
# The man pages match the commands' help, and render without warnings


_NO_BUILD = shutil.ignore_patterns(".venv*", ".git", "*.egg-info", "build", ".*_cache")


def test_every_command_has_a_complete_man_page() -> None:
    found = pages()
    for command in commands():
        assert command.name is not None
        page = found[f"vfsd-{command.name.replace(' ', '-')}.1"].replace(r"\-", "-")
        for option in command.params:
            for flag in option.opts:
                assert not flag.startswith("-") or rf"\fB{flag}\fR" in page
        assert f"vfsd-{command.name.replace(' ', '-')}" in found["vfsd.1"].replace(r"\-", "-")


def test_every_mount_option_is_described() -> None:
    for words in described_options():
        for word in words.split(", "):
            key, _, value = word.partition("=")
            given = "debug" if key == "log_level" else "1"
            parse_options([f"{key}={given}" if value else key])


@pytest.mark.parametrize("name", ["vfsd.1", "vfsd-mount.1", "vfsd-read.1", "mount.fuse.vfsd.8"])
def test_man_pages_render_without_warnings(name: str, tmp_path: Path) -> None:
    programs = (["mandoc", "-T", "lint"], ["groff", "-ww", "-man", "-Tutf8"])
    there = [words for words in programs if shutil.which(words[0])]
    if not there:
        pytest.skip("neither mandoc nor groff is installed")
    write_pages(tmp_path)
    for words in there:
        done = subprocess.run([*words, tmp_path / name], capture_output=True, text=True)
        complaints = done.stderr + (done.stdout if words[0] == "mandoc" else "")
        assert (done.returncode, complaints) == (0, "")


@pytest.mark.thorough
def test_man_pages_are_in_the_wheel(tmp_path: Path) -> None:
    pytest.importorskip("pip")
    shutil.copytree(ROOT, tmp_path / "tree", symlinks=True, ignore=_NO_BUILD)
    # pip installs the build requirements of pyproject.toml in a separate environment.
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(tmp_path)]
    subprocess.run([*build, str(tmp_path / "tree")], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = {Path(name).name for name in ZipFile(wheel).namelist() if "/share/man/" in name}
    assert installed == set(pages())


def test_man_pages_are_built_without_libraries() -> None:
    """Setuptools builds in an environment with click only."""
    program = "import sys; from scripts.make_man_pages import pages; pages(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"numpy", "av", "cv2", "sqlalchemy", "yaml", "rich"} & set(done.stdout.split())
