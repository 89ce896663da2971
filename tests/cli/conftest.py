"""A store with a few videos in it, and a way to run commands on it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from sample_videos import FOLDER
from vfsd.cli.app import App, cli
from vfsd.cli.command import Command
from vfsd.records.label_records import UNKNOWN_LABELS_FIELDS

CLIPS = ("traffic.mp4", "open-gop.mkv", "portrait.mp4", "mjpeg.avi")

MOMENTS = """\
path,start,end,label
cam1/traffic.mp4,0.5,1,queue
cam1/open-gop,0,0.25,red light
"""
CUES = "WEBVTT\n\n00:00.000 --> 00:01.000\nqueue\n\n00:01.000 --> 00:02.000\nqueue\n"
LABELS = """\
frame,track,label,x1,y1,x2,y2,confidence
0,1,car,10,20,60,50,0.9
0,,red,10,20,60,50,
5,1,car,20,20,70,50.5,0.4
7,2,truck,200,100,300,180,0.8
"""


Y4M = b"YUV4MPEG2 W64 H48 F10:1 Ip A4:3 C420mpeg2 XCOLORRANGE=FULL\n" + b"".join(
    b"FRAME\n" + bytes([16 * number]) * (64 * 48) + bytes([128]) * (64 * 24) for number in range(7)
)
WORKLOAD = """\
{"queries": [
  {"region": "80x60+100+90", "span": [0, 2], "times": 50},
  {"labels": "car"}
]}
"""


@dataclass(frozen=True)
class Result:
    """Output and exit code of a command line."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def object(self) -> dict[str, Any]:
        (only,) = self.objects
        return only


Run = Callable[..., Result]


def run_command(*args: str | Path, input: str | bytes | None = None) -> Result:
    """Run a command line in this process, and check that its JSON output is documented."""
    words = [str(word) for word in args]
    done = CliRunner().invoke(cli, words, input=input)
    result = Result(done.exit_code, done.stdout, done.stderr)
    if "--json" in words and result.out:
        check_documented(words, result)
    return result


def check_documented(words: list[str], result: Result) -> None:
    """Check that the printed keys are those that the command documents."""
    assert isinstance(cli, App)
    context = click.Context(cli, **cli.context_settings)
    at = next(at for at, word in enumerate(words) if word in cli.list_commands(context))
    command = cli.find(context, words[at : at + 2]) or cli.find(context, words[at : at + 1])
    assert isinstance(command, Command)
    fields = next(
        (command.variants[word] for word in words if word in command.variants), command.fields
    )
    for printed in result.objects:
        if "unknown_labels" in printed:
            assert command.unknown_labels
            assert printed == result.objects[-1]
            assert list(printed) == ["schema", *UNKNOWN_LABELS_FIELDS]
            continue
        assert list(printed) == ["schema", *fields]
        assert printed["schema"] == 1
    assert command.listing or len(result.lines) == 1


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store ``videos``, folders ``footage``, ``labels``, ``stills`` and, empty,
    ``mnt``, and files ``workload.json``, ``pixels.rgb`` and ``clip.y4m``."""
    place = tmp_path_factory.mktemp("pristine")
    (place / "footage").mkdir()
    (place / "mnt").mkdir()
    (place / "labels").mkdir()
    (place / "labels" / "traffic.csv").write_text(LABELS, encoding="utf-8")
    (place / "labels" / "moments.csv").write_text(MOMENTS, encoding="utf-8")
    (place / "labels" / "moments.vtt").write_text(CUES, encoding="utf-8")
    for name in CLIPS:
        shutil.copy2(FOLDER / name, place / "footage" / name)
    (place / "workload.json").write_text(WORKLOAD, encoding="utf-8")
    (place / "pixels.rgb").write_bytes(bytes(64 * 48 * 3) * 5)
    (place / "clip.y4m").write_bytes(Y4M)
    (place / "stills").mkdir()
    for number in (3, 10, 200):
        still = np.full((48, 64, 3), number, np.uint8)
        cv2.imwrite(str(place / "stills" / f"{number:06d}.png"), still)
    (place / "footage" / "notes.txt").write_text("no video\n", encoding="utf-8")
    store = place / "videos"
    assert run_command("init", store).code == 0
    for name in ("traffic.mp4", "open-gop.mkv"):
        done = run_command("-s", store, "ingest", place / "footage" / name, "--to", "cam1")
        assert done.code == 0, done.err
    saved = run_command(
        *("-s", store, "labels", "query", "cam1/*", "car", "--save", "cars at the gate")
    )
    assert saved.code == 0, saved.err
    return place


@pytest.fixture
def place(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `pristine`, which is the working directory."""
    copy = tmp_path / "place"
    shutil.copytree(pristine, copy)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("PWD", str(copy))
    monkeypatch.delenv("VFSD_STORE", raising=False)
    return copy


@pytest.fixture
def run(place: Path) -> Run:
    """Runs a command on the store in `place`."""

    def on_the_store(*args: str | Path, input: str | bytes | None = None) -> Result:
        return run_command("--store", place / "videos", *args, input=input)

    return on_the_store
