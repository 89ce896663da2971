"""Help, documentation and the promise that both cost nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

import vfsd.errors as errors
from scripts.make_cli_docs import PAGE, commands, main, page
from tests.cli.conftest import run_command
from vfsd.cli.command import Command
from vfsd.cli.exit_codes import error_classes

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


def test_the_page_of_commands_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m scripts.make_cli_docs"
    assert main(["--check"]) == 0


def test_the_page_has_every_command_option_and_error() -> None:
    text = page()
    for name, command in ALL.items():
        assert f"### vfsd {name}\n" in text
        for option in command.params:
            for flag in option.opts if isinstance(option, click.Option) else ():
                assert flag in text
    for kind in every_error():
        assert f"`{kind.__name__}`" in text
        assert f"\n| {kind.exit_code} | " in text


def test_the_page_begins_with_what_any_command_may_end_with() -> None:
    begin = page().partition("## Options of every command")[0]
    told = [int(code) for code in re.findall(r"^\| (\d+) \|", begin, re.MULTILINE)]
    assert told == [0, 1, 2, 7, 10, 11, 12, 13, 14, 130, 141]
    every = ", ".join(map(str, told))
    assert f"Any command may end with {every}" in run_command("help", "exit-codes").out


def test_what_help_says_of_errors_is_what_the_classes_say() -> None:
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


def test_help_on_nothing_that_is_there() -> None:
    assert run_command("help", "nothing").code == 2


def test_no_command_at_all_is_a_question() -> None:
    done = run_command()
    assert (done.code, done.out) == (2, "")
    assert "Usage: vfsd" in done.err


def test_the_version() -> None:
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
    # What a virtual environment or an editable install runs at every start is not ours.
    known = {"vfsd", "click", *sys.stdlib_module_names, "__main__", "sitecustomize"}
    foreign = {name for name in tops - known if not name.startswith("__editable__")}
    assert done.returncode == 0, done.stderr
    assert foreign <= {"_distutils_hack", "usercustomize"}
