"""Every example in the help runs as it stands."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from sample_videos.cameras import Cameras, FilmedScene, write_pictures
from scripts.make_cli_docs import commands
from tests.cli.conftest import run_command
from tests.selection import one_in
from vfsd.api.store import Store
from vfsd.derive.proposals import Proposal
from vfsd.derive.tile_settings import PlannedSegment, TileSettings
from vfsd.tiling import TileLayout

TRAFFIC = "cam1/traffic.mp4"
JOINED = ("cam1/west.mp4", "cam1/east.mp4")
LAYOUT = TileLayout.parse("160+160x240")
NEED_A_MOUNT = ("mount", "umount", "top")
EXAMPLES = [
    (command.name, example)
    for command in commands()
    for example in command.examples
    if command.name not in NEED_A_MOUNT
]


def _decide(place: Path) -> None:
    with Store.open(place / "videos") as store:
        video, plan = store[TRAFFIC].info, PlannedSegment(range(30), LAYOUT, (0,))
        here = frozenset[int]()
        one = Proposal(video, plan, TileSettings(), (), 1, 0.1, 1, 1.0, 0.5, here)
        store.tuner().make(one)


def _film(place: Path) -> None:
    """Two cameras of one place."""
    filmed = FilmedScene.of(Cameras(), frames=30, seed=1)
    for name, picture in (("west", filmed.left), ("east", filmed.right)):
        write_pictures(place / f"{name}.mp4", map(picture, range(30)))
        assert run_command("-s", "videos", "ingest", f"{name}.mp4", "--to", "cam1").code == 0


@pytest.mark.parametrize(
    ("name", "example"), one_in(2, EXAMPLES), ids=[text for _, text in EXAMPLES]
)
def test_example(place: Path, name: str, example: str) -> None:
    if name.startswith("layout "):
        assert run_command("-s", "videos", "retile", TRAFFIC, "--layout", "uniform:2x2").code == 0
    if name.startswith("rendition "):
        assert run_command("-s", "videos", "render", TRAFFIC, "--size", "160x120").code == 0
    if "--from-reads" in example:
        read = ("read", TRAFFIC, "crop.npy", "--region", "80x60+100+90")
        assert run_command("-s", "videos", *read).code == 0
    if "west.mp4" in example:
        _film(place)
    if name in ("overlap ls", "overlap split") and "west.mp4" in example:
        assert run_command("-s", "videos", "overlap", "join", *JOINED).code == 0
    if name == "tune undo":
        _decide(place)
    if name == "unpin":
        assert run_command("-s", "videos", "pin", TRAFFIC).code == 0
    if name == "replace":
        policy = ("policy", "set", TRAFFIC, "original=replaceable,psnr=34")
        assert run_command("-s", "videos", *policy).code == 0
    if name == "hold remove":
        assert run_command("-s", "videos", "hold", "add", TRAFFIC, "--reason", "x").code == 0
    if name == "restore":
        assert run_command("-s", "videos", "backup", "disk/videos").code == 0
    program, *args = shlex.split(os.path.expandvars(example))
    done = run_command(*args)
    assert program == "vfsd"
    if name == "doctor":
        assert done.code in (0, 30)  # what it finds depends on the machine
    else:
        assert done.code == 0, done.err
