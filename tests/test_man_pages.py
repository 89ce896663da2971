"""The man pages are what the commands say, and read without complaints."""

from __future__ import annotations

import configparser
import shutil
import subprocess

import pytest

from scripts.make_cli_docs import commands
from scripts.make_man_pages import FOLDER, main, pages
from vfsd.mount.fuse.options import described_options, parse_options


def test_they_are_up_to_date() -> None:
    assert main(["--check"]) == 0, "run python -m scripts.make_man_pages"


def test_every_command_has_one_with_all_its_options() -> None:
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
def test_they_are_shown_without_complaints(name: str) -> None:
    programs = (["mandoc", "-T", "lint"], ["groff", "-ww", "-man", "-Tutf8"])
    there = [words for words in programs if shutil.which(words[0])]
    if not there:
        pytest.skip("neither mandoc nor groff is installed")
    for words in there:
        done = subprocess.run([*words, FOLDER / name], capture_output=True, text=True)
        complaints = done.stderr + (done.stdout if words[0] == "mandoc" else "")
        assert (done.returncode, complaints) == (0, "")


def test_they_are_installed() -> None:
    parser = configparser.ConfigParser()
    parser.read(FOLDER.parent.parent / "setup.cfg")
    listed = parser["options.data_files"]
    assert listed["share/man/man1"].strip() == "docs/man/*.1"
    assert listed["share/man/man8"].strip() == "docs/man/*.8"
