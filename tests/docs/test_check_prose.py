"""The prose checker finds what it should, and leaves plain English alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_prose import RULES, findings_in

WRONG = [
    "Who closes a file that may come back looks through no other names.",  # prose: ok
    "Whoever reads it waits for the lock.",  # prose: ok
    "What is held stays where it is.",  # prose: ok
    "The bytes stay. What was read before is kept.",  # prose: ok
    "A lock that nobody holds.",  # prose: ok
    "It waits until somebody closes the file.",  # prose: ok
    "The rows of which none is in use.",  # prose: ok
    "The time by which it is late.",  # prose: ok
    "The caller is told the number of frames.",  # prose: ok
    "It is left to who reads next.",  # prose: ok
    "Of the left and the right side.",  # prose: ok
    "Both codecs are used by turns.",  # prose: ok
    "The index lies beside the file.",  # prose: ok
    "The tile is encoded anew.",  # prose: ok
    "Other threads work meanwhile.",  # prose: ok
    "The order goes by the time stamp.",  # prose: ok
    "Rates are written as FFmpeg has them.",  # prose: ok
    "'224' is no size.",  # prose: ok
    "{fps} frames per second are none.",  # prose: ok
    "The reader gets what he asked for.",  # prose: ok
]

PLAIN = [
    "Closing a file no longer scans all hidden names.",
    "size must be (width, height) or an int, got 224.5",
    "The default is no less than 4 MiB.",
    "What is a view?  See the guide.",
    "Who can read the store?",
    "The file whose last writer has gone is classified in the background.",
    "The planner picks the layout that costs least.",
    "There is no file a.mp4.",
    "Of eight files, the planner uses three.",
    "Set `what is none` in the configuration.",
]


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong(sentence: str) -> None:
    assert findings_in(Path("page.md"), sentence)[0]
    assert findings_in(Path("module.py"), f'"""{sentence}"""\n')[0]
    assert findings_in(Path("module.py"), f"x = 1\n# {sentence}\n")[0]


@pytest.mark.parametrize("sentence", PLAIN)
def test_plain(sentence: str) -> None:
    assert findings_in(Path("page.md"), sentence)[0] == []
    assert findings_in(Path("module.py"), f'"""{sentence}"""\n')[0] == []


def test_every_rule_is_tested() -> None:
    found = {one.rule for text in WRONG for one in findings_in(Path("page.md"), text)[0]}
    assert found == set(RULES)


def test_line_numbers() -> None:
    source = '"""Reads frames.\n\nIt waits until somebody\ncloses the file.\n"""\n'  # prose: ok
    (found,) = findings_in(Path("module.py"), source)[0]
    assert (found.line, found.words) == (3, "somebody")  # prose: ok


def test_messages() -> None:
    source = 'def f(size):\n    raise ValueError(f"{size!r} is no size")\n'  # prose: ok
    (found,) = findings_in(Path("module.py"), source)[0]  # prose: ok
    assert found.line == 2


def test_code_is_not_prose() -> None:
    assert findings_in(Path("page.md"), "```console\nnobody  # prose: ok\n```\n")[0] == []
