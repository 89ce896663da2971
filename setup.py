"""Adds the man pages to a build: they are generated from the help of the commands.

Everything else is in setup.cfg.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent


class BuildMan(Command):
    """Writes the pages below the build directory, and installs them in share/man."""

    description = "generate the man pages"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = []
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_base: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_base", "build_base"))

    def get_source_files(self) -> list[str]:
        return ["scripts/make_cli_docs.py", "scripts/make_man_pages.py"]

    def run(self) -> None:
        sys.path.insert(0, str(ROOT))
        from scripts.make_man_pages import write_pages

        folder = Path(str(self.build_base)) / "man"
        pages = write_pages(folder)
        self.distribution.data_files = [
            (
                f"share/man/man{section}",
                [str(page) for page in pages if page.suffix == f".{section}"],
            )
            for section in (1, 8)
        ]


class Build(build):
    sub_commands: ClassVar = [*build.sub_commands, ("build_man", None)]


setup(cmdclass={"build": Build, "build_man": BuildMan})
