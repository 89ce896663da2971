"""Checks the English of docstrings, comments, messages and documents.

    python -m scripts.check_prose             every finding, and the counts; exit code 1 for any
    python -m scripts.check_prose --summary   the counts alone
    python -m scripts.check_prose PATH ...    only these files and folders

A line that ends in ``prose: ok`` is not checked: use it to quote a construction.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

_START = r"(?:(?<=[.!?:;]\s)|(?<=[.!?:;]\s\s)|^)"
_VERB = (
    r"(?:is|are|was|were|has|have|had|can|cannot|could|may|might|must|does|do|did|will|would|"
    r"should|[a-z]+(?:s|ed))"
)
RULES: dict[str, re.Pattern[str]] = {
    "a sentence must not begin with Who or Whoever as its subject": re.compile(
        rf"{_START}Who(?:ever)?\s+(?!\?)[a-z]+(?![^.]*\?)"
    ),
    "a sentence must not begin with a What clause as its subject": re.compile(
        rf"{_START}What(?:ever)?\s+(?:\w+\s+){{0,3}}?{_VERB}\b(?![^.]*\?)"
    ),
    "name the component instead of nobody, somebody or anybody": re.compile(
        r"\b(?:[Nn]obody|[Ss]omebody|[Aa]nybody|[Ww]hoever|[Ww]homever)\b"
    ),
    "rewrite a clause with of which, by which, with whom": re.compile(
        r"\b(?:[Oo]f|[Bb]y|[Ww]ith|[Tt]o|[Ff]or)\s+(?:which|whom)\b"
    ),
    "rewrite of who, to who, than who with the component": re.compile(
        r"\b(?:of|to|by|with|for|than|as|from|at|like)\s+who\b(?![^.]*\?)"
    ),
    "begin with what it is, not with a fragment such as Of the original": re.compile(
        r"\AOf\s+(?![^.]*\b(?:is|are|was|were|has|have|must|can)\b)[^,.:;]{1,70}[.;]"
    ),
    "write alternately instead of by turns": re.compile(r"\bby\s+turns\b"),
    "write `NAME returns`, `NAME receives` or `NAME is called with` instead of is told": re.compile(
        r"\b(?:is|are|was|were|be|been|being)\s+told\b"
    ),
    "write next to, besides or along with instead of beside": re.compile(r"\b[Bb]eside\b"),
    "write again instead of anew": re.compile(r"\b[Aa]new\b"),
    "write in the meantime or while instead of meanwhile": re.compile(r"\b[Mm]eanwhile\b"),
    "write depends on or follows instead of goes by": re.compile(
        r"\bgo(?:es|ing)?\s+by\b(?!\s+(?:train|car))"
    ),
    "write by NAME or according to NAME instead of as NAME has it": re.compile(
        r"\bas\s+[\w`'. ]{1,40}?\s+(?:has|have|had)\s+(?:it|them)\b"
    ),
    "write must be ..., got ... instead of is no ...": re.compile(
        r"(?<![Tt]here )\b(?:is|are)\s+"
        r"(?:no\s+(?!longer|more|less|other|need|such|\d)[a-z]+|none\b)"
    ),
    "he, him and his must not stand for programs or readers": re.compile(r"\b(?:he|him|his)\b"),
}
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_CODE = re.compile(r"``[^`]*``|`[^`]*`")
_IGNORED = "prose: ok"


@dataclass(frozen=True, slots=True)
class Passage:
    """Prose of one file: its first line there, and its text."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    path: Path
    line: int
    rule: str
    words: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.words!r}"


def passages_of_python(source: str) -> Iterator[Passage]:
    """Docstrings, comments, and texts of at least three words, such as messages and help."""
    docstrings = set()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.add(id(node.value))
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "NAME"
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in inside:
                continue
            text = node.value
        else:
            continue
        if id(node) in docstrings or len(_WORD.findall(text)) >= 3:
            yield Passage(node.lineno, text)
    comment: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if comment and token.start[0] != last + 1:
            yield Passage(first, "\n".join(comment))
            comment = []
        if not comment:
            first = token.start[0]
        last = token.start[0]
        comment.append(token.string.lstrip("#: "))
    if comment:
        yield Passage(first, "\n".join(comment))


def passages_of_markdown(source: str) -> Iterator[Passage]:
    """Everything but blocks of code."""
    lines, first, in_code = list[str](), 1, False
    for number, line in enumerate([*source.split("\n"), ""], start=1):
        is_fence = line.lstrip().startswith("```")
        if is_fence or in_code or not line.strip():
            if lines:
                yield Passage(first, "\n".join(lines))
                lines = []
            in_code ^= is_fence
            continue
        if not lines:
            first = number
        lines.append(line)


def findings_in(path: Path, source: str) -> tuple[list[Finding], int]:
    """The findings in a file, and the number of words that were checked."""
    passages = passages_of_markdown if path.suffix == ".md" else passages_of_python
    found, words = [], 0
    lines = source.split("\n")
    for passage in passages(source):
        text = _CODE.sub(lambda code: "NAME" + "\n" * code.group().count("\n"), passage.text)
        words += len(_WORD.findall(text))
        for rule, pattern in RULES.items():
            for match in pattern.finditer(text):
                line = passage.line + text.count("\n", 0, match.start())
                if line <= len(lines) and lines[line - 1].rstrip().endswith(_IGNORED):
                    continue
                found.append(Finding(path, line, rule, " ".join(match.group().split())))
    return found, words


_THIS_FILE = "scripts/check_prose.py"


def _files(chosen: Iterable[str]) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *chosen],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    # The rules of this file quote what they forbid.
    paths = [Path(one) for one in listed if one.endswith((".py", ".md")) and one != _THIS_FILE]
    return [one for one in paths if (ROOT / one).is_file() and not (ROOT / one).is_symlink()]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="check_prose", description=__doc__)
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args(arguments)
    counts, words = Counter[str](), 0
    for path in _files(options.paths):
        found, number = findings_in(path, (ROOT / path).read_text())
        words += number
        counts.update(one.rule for one in found)
        if not options.summary:
            for one in found:
                print(one)
    for rule in RULES:
        rate = counts[rule] * 100_000 / max(words, 1)
        print(f"{counts[rule]:6} ({rate:6.1f} per 100,000 words)  {rule}", file=sys.stderr)
    print(f"{sum(counts.values())} findings in {words} words", file=sys.stderr)
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
