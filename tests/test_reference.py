"""The reference and the list of errors name what the program has."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from vfsd.cli.exit_codes import exit_codes
from vfsd.disk.store_config import StoreSettings
from vfsd.mount.fuse.mount_options import described_options

ROOT = Path(__file__).parents[1]
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
