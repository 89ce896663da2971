"""Draws docs/tour.svg: the tour of the README as an animated terminal, from a real run.

    python -m scripts.make_readme_tour

Runs the first block of commands of the README on `sample_videos/traffic.mp4`, which needs FUSE.
Long output is cut after some lines; the still that the tour copies is drawn as a picture.
"""

from __future__ import annotations

import base64
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import cv2

from sample_videos import FOLDER

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "tour.svg"
_PLACE = re.compile(r"(?<![\w./])/(?=(?:srv|mnt)/)")
_MOST_LINES, _COLUMNS = 4, 96
_LINE, _LEFT, _TOP = 19, 16, 44  #: pixels
_WIDTH = 800
_PICTURE = 160  #: pixels: the width of the still
_TYPED, _PRINTED, _HELD = 0.9, 0.25, 6.0  #: seconds: a command, a line of output, the end


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the terminal, and when it appears, in seconds."""

    text: str
    is_command: bool
    begin: float


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines, still = run_tour(tour_commands(), Path(folder))
    OUT.write_text(drawn(lines, still))
    print(f"{OUT}: {OUT.stat().st_size} bytes, {len(lines)} lines")


def tour_commands() -> list[str]:
    readme = (ROOT / "README.md").read_text()
    block = re.search(r"^```console\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert block is not None
    return re.findall(r"^\$ (.*)$", block[1], re.MULTILINE)


def run_tour(commands: list[str], place: Path) -> tuple[list[Line], str]:
    """Runs the commands with their paths below `place`.

    Returns the lines, and the still as a JPEG in base64.
    """
    shutil.copy(FOLDER / "traffic.mp4", place)
    programs, state = place / "bin", place / "state"
    for folder in ("srv", "mnt/v", "bin"):
        (place / folder).mkdir(parents=True)
    program = programs / "vfsd"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vfsd "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(state),
        "COLUMNS": str(_COLUMNS),
    }
    lines, now = list[Line](), 0.5
    try:
        for command in commands:
            lines.append(Line(command, True, now))
            done = subprocess.run(
                ["sh", "-c", _PLACE.sub(f"{place}/", command)],
                cwd=place,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
                check=True,
            )
            now += _TYPED
            for text in _shortened(done.stdout.replace(str(state), "~/.local/state"), place):
                lines.append(Line(text, False, now))
                now += _PRINTED
    finally:
        if os.path.ismount(place / "mnt/v"):
            subprocess.run([str(program), "umount", str(place / "mnt/v")], env=environment)
    frame = cv2.imread(str(place / "000042.png"))
    assert frame is not None
    jpeg = place / "still.jpg"
    cv2.imwrite(str(jpeg), cv2.resize(frame, (_PICTURE * 2, _PICTURE * 3 // 2)), [1, 70])
    return lines, base64.b64encode(jpeg.read_bytes()).decode()


def _shortened(output: str, place: Path) -> list[str]:
    lines = output.replace(f"{place}/", "/").splitlines()
    lines = [one if len(one) <= _COLUMNS else f"{one[: _COLUMNS - 3]}..." for one in lines]
    if len(lines) <= _MOST_LINES:
        return lines
    # The gain is what `vfsd explain` is there to show.
    gain = [line for line in lines[_MOST_LINES:] if line.startswith("gain")]
    return [*lines[:_MOST_LINES], *(gain or ["..."])]


def drawn(lines: list[Line], still: str) -> str:
    """The SVG.  Where animations are off, all lines show."""
    height = _TOP + _LINE * len(lines) + 8
    total = lines[-1].begin + _HELD
    rules, rows = list[str](), list[str]()
    for number, line in enumerate(lines):
        share = 100 * line.begin / total
        rules.append(
            f"@keyframes k{number}{{0%,{share:.2f}%{{opacity:0}}"
            f"{share + 0.01:.2f}%,100%{{opacity:1}}}}"
            f".k{number}{{animation:k{number} {total:.1f}s linear infinite}}"
        )
        text = html.escape(line.text)
        shown = f'<tspan class="p">$ </tspan>{text}' if line.is_command else text
        kind = "c" if line.is_command else "o"
        rows.append(
            f'<text class="{kind} k{number}" x="{_LEFT}" y="{_TOP + _LINE * number + 6}" '
            f'xml:space="preserve">{shown}</text>'
        )
        if "000042.png" in line.text:
            rows.append(
                f'<image class="k{number}" x="{_WIDTH - _PICTURE - 16}" '
                f'y="{_TOP + _LINE * (number + 1)}" '
                f'width="{_PICTURE}" height="{_PICTURE * 3 // 4}" '
                f'href="data:image/jpeg;base64,{still}"/>'
            )
    dots = "".join(
        f'<circle cx="{20 + 18 * i}" cy="16" r="5" fill="{colour}"/>'
        for i, colour in enumerate(("#e5534b", "#daaa3f", "#57ab5a"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img">'
        "<title>The tour of the README, as it runs in a terminal</title><style>"
        "text{font:13px DejaVu Sans Mono,Menlo,Consolas,monospace}"
        ".p{fill:#57ab5a}.c{fill:#f0f3f6}.o{fill:#9aa4af}"
        + "".join(rules)
        + "@media (prefers-reduced-motion){text,image{animation:none!important}}</style>"
        f'<rect width="{_WIDTH}" height="{height}" rx="8" fill="#1c2128"/>{dots}'
        + "".join(rows)
        + "</svg>\n"
    )


if __name__ == "__main__":
    main()
