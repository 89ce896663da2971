"""Behavior that needs a separate process: signals, pipes, terminals, bytes."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run, run_command
from tests.support.selection import one_in
from vfsd.errors import NoSpaceError

VFSD = [sys.executable, "-m", "vfsd"]
TRAFFIC = "cam1/traffic.mp4"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package importable in any working directory."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


END = "--END--"
ONE_AFTER_THE_OTHER = f"""
import json, sys
from vfsd.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    print("{END}", code, "{END}", sep="", flush=True)
"""
"""Runs command lines, as `vfsd` does: most of what it takes to start it is imports."""


def at_a_terminal(args: list[str], *, typed: bytes = b"") -> tuple[int, str]:
    """Run a command with a terminal as all its streams; return (exit code, output)."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(args, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        os.write(controller, typed)
        seen = b""
        while True:
            try:
                chunk = os.read(controller, 65536)
            except OSError:  # EIO: the other end is closed
                break
            if not chunk:
                break
            seen += chunk
    os.close(controller)
    return process.returncode, seen.decode()


@pytest.mark.parametrize(
    ("args", "code"),
    one_in(3, [(["-s", "videos", "ls"], 0), (["ls"], 2), (["-s", "nowhere", "ls"], 10)]),
)
def test_exit_code_of_the_process(place: Path, args: list[str], code: int) -> None:
    done = subprocess.run([*VFSD, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == code, done.stderr
    assert (done.stderr == "") == (code == 0)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["-s", "videos", "ls", "--nothing"], 2),
        (["-s", "videos", "info", "none"], 3),
        (["init", "footage"], 4),
        (["-s", "videos", "ingest", "footage/notes.txt"], 5),
        (["-s", "videos", "frames", TRAFFIC, "--range", "900:"], 6),
    ],
)
def test_exit_codes(place: Path, args: list[str], code: int) -> None:
    done = run_command(*args)
    assert done.code == code, done.err
    assert done.err
    assert "Traceback" not in done.err


def test_closed_pipe_is_not_an_error(place: Path) -> None:
    with subprocess.Popen(
        [*VFSD, "-s", "videos", "frames", TRAFFIC],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (141, b"")


def test_unwritable_output_is_an_error(place: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*VFSD, "-s", "videos", "ls"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == NoSpaceError.exit_code
    assert "No space left" in done.stderr


@pytest.mark.parametrize("number", one_in(2, [0, 1, 2]))
def test_closed_standard_streams(place: Path, number: int) -> None:
    """No file opened later may get the descriptor of a closed stream, least of all the catalog."""
    words = [*VFSD, "-s", str(place / "videos"), "ls", "-R"]
    script = 'n=$1; shift; eval "exec $n>&-"; "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(number), *words], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "mistake" not in done.stderr
    assert bool(done.stdout) == (number != 1)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_child_processes_have_standard_streams(number: int) -> None:
    code = """if 1:
        import os, sys
        from vfsd.cli import main
        sys.argv = ["vfsd", "--version"]
        try:
            main()
        except SystemExit:
            sys.exit(0 if all(map(os.get_inheritable, (0, 1, 2))) else 1)
    """
    script = 'n=$1; shift; eval "exec $n>&-"; "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(number), sys.executable, "-c", code], cwd=ROOT
    )
    assert done.returncode == 0


def test_interrupted_ingest_can_be_resumed(run: Run, place: Path) -> None:
    many = place / "many"
    many.mkdir()
    for number in range(80):
        shutil.copy2(place / "footage/traffic.mp4", many / f"{number:03}.mp4")
    with subprocess.Popen(
        [*VFSD, "-s", "videos", "ingest", "many"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()
    assert process.returncode == 130
    assert "not done" in said
    assert said.endswith("vfsd: interrupted\n")
    there = run("ls", "many").lines
    assert 1 <= len(there) < 80
    assert run("gc").code == 0
    assert run("fsck", "--deep").out == ""
    again = run("ingest", "many", "--dry-run", "--json").objects
    assert [o["name"] for o in again if o["status"] == "skipped"] == [f"many/{n}" for n in there]


@pytest.mark.thorough
def test_names_are_printed_as_their_bytes(place: Path) -> None:
    odd = os.fsencode("footage/") + b"caf\xe9.mp4"
    shutil.copy(b"footage/portrait.mp4", odd)
    done = subprocess.run([*VFSD, "-s", "videos", "ingest", odd], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"caf\xe9.mp4\n"), done.stderr
    done = subprocess.run([*VFSD, "-s", "videos", "find", "caf*"], capture_output=True)
    assert done.stdout == b"caf\xe9.mp4\n"


@pytest.mark.thorough
def test_raw_pixels_through_a_pipe(place: Path) -> None:
    done = subprocess.run(
        [*VFSD, "-s", "videos", "read", TRAFFIC, "-", "--frames", "0:3"], capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) == 3 * 320 * 240 * 3


# -------------------------------------------------------------------------------------- terminals


@pytest.mark.thorough
def test_colors_at_terminals_only(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = [*VFSD, "-s", "nowhere", "ls"]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in at_a_terminal(args)[1]
    assert "\x1b[" not in subprocess.run(args, capture_output=True, text=True).stderr
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in at_a_terminal(args)[1]


@pytest.mark.thorough
def test_pixels_are_not_written_to_terminals(place: Path) -> None:
    code, seen = at_a_terminal([*VFSD, "-s", "videos", "read", TRAFFIC, "-", "--at", "0"])
    assert code == 2
    assert "terminal" in seen


@pytest.mark.parametrize(("answer", "left"), one_in(2, [(b"n\n", ["cam1/"]), (b"y\n", [])]))
def test_rm_asks_before_removing_a_directory(
    run: Run, place: Path, answer: bytes, left: list[str]
) -> None:
    code, seen = at_a_terminal([*VFSD, "-s", "videos", "rm", "-r", "cam1"], typed=answer)
    assert code == 0
    assert "cam1/ with 2 files?" in seen
    assert run("ls").lines == left


PROGRAM = """
import sys, time
from vfsd.cli.output import Progress
with Progress("counting", 10, shown=sys.stderr.isatty(), delay_seconds=float(sys.argv[1])) as bar:
    for _ in range(10):
        bar.advance()
        time.sleep(0.05)
"""


def test_progress_does_not_mix_with_output_lines(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    program = PROGRAM.replace(
        "time.sleep", "with bar.hidden(): print('one', flush=True)\n        time.sleep"
    )
    code, seen = at_a_terminal([sys.executable, "-c", program, "0.1"])
    assert code == 0
    assert "counting" in seen
    before = seen.split("one\r\n")[:-1]
    assert len(before) == 10
    assert all(not text or text.endswith("\x1b[2K") for text in before)  # cleared


@pytest.mark.thorough
def test_progress_appears_with_a_delay_at_terminals_only(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    program = [sys.executable, "-c", PROGRAM]
    assert "counting" in at_a_terminal([*program, "0.1"])[1]
    assert at_a_terminal([*program, "60"])[1] == ""
    piped = subprocess.run([*program, "0.1"], capture_output=True)
    assert (piped.stdout, piped.stderr) == (b"", b"")


# ----------------------------------------------------------------------------------------- errors


def test_error_message_has_a_hint(place: Path) -> None:
    said, hint = run_command("-s", "nowhere", "ls").err.splitlines()
    assert said == f"vfsd: no store found in {place / 'nowhere'}"
    assert hint == f"  create one with `vfsd init {place / 'nowhere'}`"


def test_error_as_json(place: Path) -> None:
    for args in (["--json", "-s", "nowhere", "ls"], ["ls", "-s", "nowhere", "--json"]):
        done = run_command(*args)
        found = json.loads(done.err)
        assert list(found) == ["schema", "error", "message", "hint", "exit_code"]
        assert (found["error"], found["exit_code"]) == ("NoStoreError", done.code)


def test_debug_shows_the_traceback(place: Path) -> None:
    done = run_command("-s", "nowhere", "ls", "--debug")
    assert "Traceback" in done.err
    assert done.code == 10


@pytest.mark.thorough
def test_names_are_escaped_at_terminals_only(run: Run, place: Path) -> None:
    name = "red\x1b[31m\nline\t.mp4"
    assert run("mv", TRAFFIC, name).code == 0
    assert run("tag", name, "--add", "\x1b[7mword").code == 0
    piped = subprocess.run([*VFSD, "-s", "videos", "ls"], capture_output=True, check=True)
    assert f"{name}\n".encode() in piped.stdout
    told = subprocess.run(
        [*VFSD, "-s", "videos", "ls", "--json"], capture_output=True, check=True
    ).stdout.splitlines()
    assert name in [json.loads(line)["name"] for line in told]
    commands = (["ls"], ["ls", "-l"], ["find"], ["tag", name], ["rm", name], ["rm", name])
    lines = [["-s", "videos", *words] for words in commands]
    code, shown = at_a_terminal([sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(lines)])
    assert code == 0
    ends, shows = shown.split(END)[1::2], shown.split(END)[:-1:2]
    assert list(map(int, ends)) == [0, 0, 0, 0, 0, 3]  # it is gone
    for seen in shows:
        assert r"red\x1b[31m\nline\t.mp4" in seen
        assert "\x1b[31m\n" not in seen
        assert "\x1b[7m" not in seen
