"""The man pages are what the commands say, and read without complaints."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from scripts.make_cli_docs import commands
from scripts.make_man_pages import pages, write_pages
from vfsd.mount.fuse.mount_options import described_options, parse_options

ROOT = Path(__file__).resolve().parent.parent
_NO_BUILD = shutil.ignore_patterns(".venv*", ".git", "*.egg-info", "build", ".*_cache")


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
def test_they_are_shown_without_complaints(name: str, tmp_path: Path) -> None:
    programs = (["mandoc", "-T", "lint"], ["groff", "-ww", "-man", "-Tutf8"])
    there = [words for words in programs if shutil.which(words[0])]
    if not there:
        pytest.skip("neither mandoc nor groff is installed")
    write_pages(tmp_path)
    for words in there:
        done = subprocess.run([*words, tmp_path / name], capture_output=True, text=True)
        complaints = done.stderr + (done.stdout if words[0] == "mandoc" else "")
        assert (done.returncode, complaints) == (0, "")


@pytest.mark.thorough
def test_they_are_in_the_wheel(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    shutil.copytree(ROOT, tmp_path / "tree", symlinks=True, ignore=_NO_BUILD)
    program = "from setuptools.build_meta import build_wheel; print(build_wheel('..'))"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "tree", check=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = {Path(name).name for name in ZipFile(wheel).namelist() if "/share/man/" in name}
    assert installed == set(pages())


def test_a_build_makes_them_without_libraries() -> None:
    """Setuptools builds in an environment that has nothing but click."""
    program = "import sys; from scripts.make_man_pages import pages; pages(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"numpy", "av", "cv2", "sqlalchemy", "yaml", "rich"} & set(done.stdout.split())
