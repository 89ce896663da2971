"""Help and documentation agree with the commands and are cheap to print.  Every example in the
help runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest

import vfsd.errors as errors
from sample_videos.cameras import Cameras, FilmedScene, write_pictures
from scripts.make_cli_docs import PAGE, commands, main, page
from tests.cli.conftest import run_command
from tests.datasets.test_recorder_archives import frigate_database
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.cli.command import Command
from vfsd.cli.errors import error_classes
from vfsd.derive.proposals import Proposal
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.tiling import TileLayout

ALL = {command.name: command for command in commands() if command.name is not None}


def every_error() -> Iterator[type[errors.VfsdError]]:
    waiting = [errors.VfsdError]
    while waiting:
        kind = waiting.pop()
        yield kind
        waiting += kind.__subclasses__()


@pytest.fixture(params=sorted(ALL))
def command(request: pytest.FixtureRequest) -> Command:
    return ALL[request.param]


def test_every_command_has_help_and_an_example(command: Command) -> None:
    assert command.name is not None
    assert command.help
    assert command.get_short_help_str(60)[-1] == "."
    assert command.examples
    assert all(f" {command.name}" in example for example in command.examples)
    assert command.fields
    for option in command.params:
        assert not isinstance(option, click.Option) or option.help
    for flag in ("-h", "--help"):
        done = run_command(*command.name.split(), flag)
        assert done.code == 0
        assert done.out.startswith(f"Usage: vfsd {command.name}")
        for example in command.examples:
            assert example in done.out
    assert run_command("help", *command.name.split()).out.strip() == done.out.strip()


def test_command_reference_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m scripts.make_cli_docs"
    assert main(["--check"]) == 0


def test_command_reference_is_complete() -> None:
    text = page()
    for name, command in ALL.items():
        assert f"### vfsd {name}\n" in text
        for option in command.params:
            for flag in option.opts if isinstance(option, click.Option) else ():
                assert flag in text
    for kind in every_error():
        assert f"`{kind.__name__}`" in text
        assert f"\n| {kind.exit_code} | " in text


def test_command_reference_begins_with_exit_codes() -> None:
    begin = page().partition("## Options of every command")[0]
    told = [int(code) for code in re.findall(r"^\| (\d+) \|", begin, re.MULTILINE)]
    assert told == [0, 1, 2, 7, 10, 11, 12, 13, 14, 130, 141]
    every = ", ".join(map(str, told))
    assert f"Any command may end with {every}" in run_command("help", "exit-codes").out


def test_documented_exit_codes_match_the_error_classes() -> None:
    described = {error.name: error for error in error_classes()}
    for kind in every_error():
        assert described[kind.__name__].code == kind.exit_code
        assert str(kind.exit_code) in run_command("help", "exit-codes").out


def test_help_lists_all_commands() -> None:
    text = run_command("--help").out
    for name in ALL:
        assert f"\n  {name} " in text
    assert "..." not in text.replace("[ARGS]...", "")  # every summary fits on its line


def test_help_on_views() -> None:
    assert "t=10-20.mp4" in run_command("help", "views").out


def test_help_on_an_unknown_topic() -> None:
    assert run_command("help", "nothing").code == 2


def test_no_command_prints_help() -> None:
    done = run_command()
    assert (done.code, done.out) == (2, "")
    assert "Usage: vfsd" in done.err


def test_version() -> None:
    assert run_command("--version").out.startswith("vfsd ")


@pytest.mark.parametrize(
    "args", [["--help"], ["info", "--help"], ["labels", "import", "-h"], ["ingest", "-h"], ["-V"]]
)
def test_help_imports_nothing_but_click_and_the_standard_library(args: list[str]) -> None:
    program = (
        "import sys\n"
        "from vfsd.cli import main\n"
        f"sys.argv = ['vfsd', *{args!r}]\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    print(*sorted(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    tops = {name.partition(".")[0] for name in done.stderr.split()}
    # Modules that a virtual environment or an editable install loads at start do not count.
    known = {"vfsd", "click", *sys.stdlib_module_names, "__main__", "sitecustomize"}
    foreign = {name for name in tops - known if not name.startswith("__editable__")}
    assert done.returncode == 0, done.stderr
    assert foreign <= {"_distutils_hack", "usercustomize"}


# --------------------------------------------------------------------------------------------------
# Every example in the help runs


TRAFFIC = "cam1/traffic.mp4"
JOINED = ("cam1/west.mp4", "cam1/east.mp4")
LAYOUT = TileLayout.parse("160+160x240")
NEED_A_MOUNT = ("mount", "umount", "top")
EXAMPLES = [
    (command.name, example)
    for command in commands()
    for example in command.examples
    if command.name not in NEED_A_MOUNT and "postgresql" not in example
]


def _decide(place: Path) -> None:
    with Store.open(place / "videos") as store:
        video, plan = store[TRAFFIC].info, PlannedSegment(range(30), LAYOUT, (0,))
        here = frozenset[int]()
        one = Proposal(video, plan, TileSettings(), (), 1, 0.1, 1, 1.0, 0.5, here)
        store.tuner().make(one)


def _add_maps(place: Path, name: str) -> None:
    """Two videos with maps, and a layer; its boxes are those of a detector."""
    maps = np.indices((120, 60, 80)).sum(0).astype(np.uint8)
    with Store.open(place / "videos") as store:
        for file, chosen, form in (("maps", maps, "gray"), ("depth", maps[::10] * 9, "gray16")):
            pixels = chosen[..., None].astype(np.uint8 if form == "gray" else np.uint16)
            written = {"format": form, "codec": "ffv1", "lossless": True}
            store.write(f"cam1/{file}.mkv", pixels, fps=30, **written)  # type: ignore[arg-type]
        if name != "layer add":
            store[TRAFFIC].layers.add("mask", "cam1/maps.mkv")


def _film(place: Path) -> None:
    """Two cameras at one place."""
    filmed = FilmedScene.of(Cameras(), frames=30, seed=1)
    for name, picture in (("west", filmed.left), ("east", filmed.right)):
        write_pictures(place / f"{name}.mp4", map(picture, range(30)))
        assert run_command("-s", "videos", "ingest", f"{name}.mp4", "--to", "cam1").code == 0


def _add_vectors(place: Path) -> None:
    matrix = np.eye(12, 20, dtype=np.float32)
    np.save(place / "clip.npy", matrix)
    for name in ("clip.npz", "query.npz"):
        np.savez(place / name, vectors=matrix, frames=np.arange(12) * 10)
    with Store.open(place / "videos") as store:
        store[TRAFFIC].vectors.add(matrix, range(0, 120, 10), "clip")


def _shared(place: Path, example: str, url: str) -> str:
    """Put a store with two homes in the place of `videos`; return the example with its names."""
    shutil.rmtree(place / "videos")
    assert run_command("init", "shared", "--catalog", url).code == 0
    if example.startswith("vfsd join"):
        objects = str(place / "shared" / "objects")
        return re.sub(r"postgresql\S+", url, example).replace("/nfs/objects", objects)
    home = run_command("join", "videos", "--catalog", url, "--json").object["home"]
    return example.replace(" ID", f" {home}").replace("-s videos homes f", "-s shared homes f")


@pytest.mark.parametrize(
    ("name", "example"), one_in(9, EXAMPLES), ids=[text for _, text in EXAMPLES]
)
def test_example(place: Path, name: str, example: str, request: pytest.FixtureRequest) -> None:
    if name in ("join", "homes forget", "homes claim"):
        example = _shared(place, example, request.getfixturevalue("own_database"))
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
    if name.startswith("layer "):
        _add_maps(place, name)
    if name == "timeline save":
        when = ("captured", TRAFFIC, "--from", "2026-05-01T10:00:00Z")
        assert run_command("-s", "videos", *when).code == 0
    if name == "tune undo":
        _decide(place)
    if name.startswith("work "):
        assert run_command("-s", "videos", "verify", TRAFFIC, "--on", "later").code == 0
    if name == "unpin":
        assert run_command("-s", "videos", "pin", TRAFFIC).code == 0
    if name == "replace":
        policy = ("policy", "set", TRAFFIC, "original=replaceable,psnr=34")
        assert run_command("-s", "videos", *policy).code == 0
    if name == "hold remove":
        assert run_command("-s", "videos", "hold", "add", TRAFFIC, "--reason", "x").code == 0
    if name == "cameras import":
        for day in ("2026-05-01/10/gate/05.30.mp4", "gate/2026-05-01_10-05-30-250000.mp4"):
            file = place / "archive" / day
            file.parent.mkdir(parents=True)
            shutil.copy(place / "footage" / "traffic.mp4", file)
        frigate_database(place / "archive" / "frigate.db", [])
    if name.startswith("lerobot "):
        pytest.importorskip("pyarrow")
    if name == "lerobot import":
        exported = ("lerobot", "export", TRAFFIC, "-o", "robot")
        assert run_command("-s", "videos", *exported).code == 0
    if name == "restore":
        assert run_command("-s", "videos", "backup", "disk/videos").code == 0
    if "s3://bucket/backups" in example:
        pytest.importorskip("obstore")
        bucket = f"file://{place / 'bucket'}"
        example = example.replace("s3://bucket", bucket).replace("backup-20261128", "backup-2")
        if name != "backup":
            assert run_command("-s", "videos", "backup", f"{bucket}/backups").code == 0
    if name == "ingest" and "--captured 'name:" in example:
        (place / "footage" / "notes.txt").unlink()
        (place / "footage" / "2026-05-01").mkdir()
        for file in list((place / "footage").glob("*.*")):
            file.rename(place / "footage" / "2026-05-01" / f"10-00-{file.stem}{file.suffix}")
    if name == "track":
        assert (
            run_command("-s", "videos", "detect", "cam1/traffic.mp4", "--with", "motion").code == 0
        )
    if name.startswith("vectors ") or "--far" in example:
        _add_vectors(place)
    if name == "push" or example.endswith("fsck --objects"):
        pytest.importorskip("obstore")
        bucket = f"file://{place / 'bucket'}"
        example = example.replace("s3://bucket", bucket)
        if name == "fsck" or "--objects" not in example:
            assert run_command("-s", "videos", "push", "--objects", bucket).code == 0
    if name == "record":
        camera = str(place / "footage" / "traffic.mp4")
        example = re.sub(r"rtsp://\S+", camera, example).replace("3600", "1")
        example += "" if "--duration" in example else " --duration 1"
    if name == "serve":
        serve_once(shlex.split(example), place)
        return
    program, *args = shlex.split(os.path.expandvars(example))
    done = run_command(*args)
    assert program == "vfsd"
    if name == "doctor":
        assert done.code in (0, 30)  # its findings depend on the machine
    else:
        assert done.code == 0, done.err


def serve_once(words: list[str], place: Path) -> None:
    """Start a server, and end it when it has printed its address."""
    line = [sys.executable, "-m", *words, "--port", "0"]
    paths = [str(Path(__file__).resolve().parents[2]), *sys.path]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "XDG_STATE_HOME": str(place / "state")}
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, text=True, env=os.environ | environment
    ) as server:
        assert server.stdout is not None
        address = server.stdout.readline()
        server.terminate()
    assert address.startswith("http://127.0.0.1:")
    assert server.returncode == 0
