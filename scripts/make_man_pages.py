"""Writes the man pages from the help of the commands.

python -m scripts.make_man_pages [DIR]    build/man by default

setup.py runs this for each build, so that the pages need not be committed.  Pages are in man(7):
vfsd(1), one for each command, and mount.fuse.vfsd(8).
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click

from scripts.make_cli_docs import about, commands, named_value
from vfsd import __version__
from vfsd.cli.app import cli
from vfsd.cli.command import Command, common_options
from vfsd.cli.command_table import SECTIONS
from vfsd.cli.errors import exit_codes, exit_codes_of_every_command
from vfsd.mount.fuse.mount_options import described_options

# Date of all pages; change it with a release.
_DATE = "2026-11-22"
_WIDTH = 79

_STORE = (
    "The first of these names the store: --store, the mount that a path lies in, and the "
    "environment variable VFSD_STORE.",
    "Names are paths from the root of the store, such as `cam1/a.mp4`, unless they lead into a "
    "mount.",
)
_JSON = (
    "With --json a command prints one object, or one object a line for a list.  An "
    "error is an object on standard error, with `error`, `message`, `hint` and `exit_code`.",
)
_ENVIRONMENT = {
    "VFSD_STORE": "The store, if neither --store nor a path names it.",
    "VFSD_FUSE": "The binding to libfuse: mfusepy (the default) or fusepy.",
    "VFSD_FUSE_API": "paths (the default), or inodes: one inode for each file (experimental).",
    "NO_COLOR": "If set, disables colours at a terminal.",
    "XDG_STATE_HOME": "Logs of mounts are in its directory vfsd; the default is ~/.local/state.",
    "NOTIFY_SOCKET": "Socket on which `vfsd mount -f` notifies systemd of its start and end.",
}
_FILES = {
    "~/.local/state/vfsd/NAME-ID.log": "Log of the mount of a store, unless --log names "
    "another file.",
    "/etc/fuse.conf": "Must contain user_allow_other if users other than root mount "
    "with allow_other.",
}


def pages() -> dict[str, str]:
    """Every page, by the name of its file."""
    found = {"vfsd.1": "\n".join(_main_page()) + "\n"}
    for command in commands():
        assert command.name is not None
        found[f"{_page_name(command.name)}.1"] = "\n".join(_command_page(command)) + "\n"
    return found | {"mount.fuse.vfsd.8": "\n".join(_helper_page()) + "\n"}


# ------------------------------------------------------------------------------------- pages


def _main_page() -> Iterator[str]:
    yield from _head("vfsd", 1, "a video store that is used as a directory")
    yield from (".SH SYNOPSIS", ".B vfsd", "[\\fIOPTIONS\\fR]", "\\fICOMMAND\\fR", "[\\fIARGS\\fR]")
    yield ".SH DESCRIPTION"
    yield from _text(cli.help or "")
    yield ".PP"
    yield from _paragraphs(_STORE)
    yield ".SH COMMANDS"
    found = {command.name: command for command in commands()}
    for title, names in SECTIONS.items():
        yield f".SS {_plain(title)}"
        for name in names:
            yield from _item(f"\\fB{_literal(_page_name(name))}\\fR(1)", _summary(found[name]))
    yield ".SH OPTIONS"
    yield "These options may be given before or after the name of the command."
    yield from _options(common_options())
    yield ".SH VIEWS"
    yield from _listing(_docstring("vfsd.core.view_request").splitlines())
    yield ".SH OUTPUT FOR PROGRAMS"
    yield from _paragraphs(_JSON)
    yield ".SH EXIT STATUS"
    for code, meaning in exit_codes().items():
        yield from _item(f"\\fB{code}\\fR", meaning)
    yield ".PP"
    every = ", ".join(map(str, exit_codes_of_every_command()))
    yield from _marked(f"Any command may end with {every}.")
    yield ".SH ENVIRONMENT"
    yield from _words(_ENVIRONMENT)
    yield ".SH FILES"
    yield from _words(_FILES)
    yield ".SH EXAMPLES"
    lines = ("vfsd init videos", "vfsd mount videos mnt", "cp traffic.mp4 mnt/", "vfsd ls mnt")
    yield from _listing(lines)
    yield ".SH SEE ALSO"
    yield from _see_also(["vfsd-mount(1)", "mount.fuse.vfsd(8)", "ffmpeg(1)", "fuse(4)"])


def _command_page(command: Command) -> Iterator[str]:
    name = command.name or ""
    context = click.Context(command, info_name=f"vfsd {name}", **command.context_settings)
    yield from _head(_page_name(name), 1, _summary(command).rstrip("."))
    yield ".SH SYNOPSIS"
    yield f".B {_literal(f'vfsd {name}')}"
    yield " ".join(_literal(piece) for piece in command.collect_usage_pieces(context))
    yield ".SH DESCRIPTION"
    yield from _text(command.help or "")
    common = {option.name for option in common_options()}
    own = [p for p in command.params if isinstance(p, click.Option) and p.name not in common]
    yield ".SH OPTIONS"
    yield from _options([*own, *common_options()])
    if name == "mount":
        yield ".SS Mount options"
        yield from _words(described_options())
    yield ".SH OUTPUT FOR PROGRAMS"
    yield f"With \\fB\\-\\-json\\fR, {'one object a line' if command.listing else 'one object'}:"
    yield from _words(command.fields)
    for option, fields in command.variants.items():
        yield ".PP"
        yield f"With \\fB{_literal(option)} \\-\\-json\\fR:"
        yield from _words(fields)
    if command.exits:
        yield ".SH EXIT STATUS"
        yield "In addition to the codes of every command, see \\fBvfsd\\fR(1):"
        for code in command.exits:
            yield from _item(f"\\fB{code}\\fR", exit_codes()[code])
    yield ".SH EXAMPLES"
    yield from _listing(command.examples)
    yield ".SH SEE ALSO"
    others = ["vfsd(1)"]
    if name == "mount":
        others += ["vfsd-umount(1)", "mount.fuse.vfsd(8)", "fusermount3(1)"]
    yield from _see_also(others)


def _helper_page() -> Iterator[str]:
    yield from _head("mount.fuse.vfsd", 8, "mount a store of videos, for mount(8) and fstab")
    yield ".SH SYNOPSIS"
    yield ".B mount.fuse.vfsd"
    yield "\\fISTORE\\fR \\fIDIR\\fR [\\fB\\-o\\fR \\fIWORDS\\fR] [\\fB\\-f\\fR]"
    yield ".SH DESCRIPTION"
    yield from _paragraphs(
        (
            "`mount(8)`, and systemd for mount units, run this helper for file systems of the type "
            "fuse.vfsd.  It must be in /sbin; a link suffices.  It returns when the mount answers, "
            "and leaves a process in the background, with the log described in `vfsd-mount(1)`.",
            "A stale mount at the directory, such as of a killed process, is unmounted first.",
        )
    )
    yield ".SH OPTIONS"
    yield from _item("\\fB\\-f\\fR", "Only check the mount options.")
    yield from _item("\\fB\\-s\\fR, \\fB\\-n\\fR, \\fB\\-v\\fR", "Accepted, without effect.")
    yield from _item("\\fB\\-o\\fR \\fIWORDS\\fR", "Mount options, separated by commas:")
    yield ".RS"
    yield from _words(described_options())
    yield ".RE"
    yield ".PP"
    yield from _marked("Options for mount(8) and systemd alone (nofail, x-systemd.*) are ignored.")
    yield ".SH EXIT STATUS"
    yield from _item("\\fB0\\fR", "The store is mounted, and the mount answers.")
    yield from _item("\\fB1\\fR", "The arguments or the mount options are wrong.")
    yield from _item("\\fB32\\fR", "The store could not be mounted; standard error has the reason.")
    yield ".SH FILES"
    yield from _item("\\fI/etc/fstab\\fR", "A line for a store:")
    yield from _listing(["/srv/videos  /mnt/v  fuse.vfsd  allow_other,nofail  0  0"])
    yield ".SH SEE ALSO"
    yield from _see_also(["vfsd(1)", "vfsd-mount(1)", "fstab(5)", "mount(8)"])


def _page_name(command: str) -> str:
    return f"vfsd-{command.replace(' ', '-')}"


def _summary(command: Command) -> str:
    first = inspect.cleandoc(command.help or "").split("\n\n")[0]
    return re.sub(r"\s+", " ", first).replace("`", "")


# -------------------------------------------------------------------------------------- parts


def _head(name: str, section: int, summary: str) -> Iterator[str]:
    yield '.\\" Written by scripts/make_man_pages.py; edit the code instead.'
    yield f'.TH {_literal(name).upper()} {section} {_DATE} "vfsd {__version__}" "vfsd"'
    yield ".ad l"
    yield ".SH NAME"
    yield f"{_literal(name)} \\-"
    yield from _marked(f"{summary[0].lower()}{summary[1:]}")


def _options(options: Iterable[click.Parameter]) -> Iterator[str]:
    for option in options:
        assert isinstance(option, click.Option)
        names = ", ".join(
            f"\\fB{_literal(each)}\\fR" for each in [*option.opts, *option.secondary_opts]
        )
        value = named_value(option)
        places = _literal(value).replace("|", "|\\:")  # at which a line may end
        shown = f"{names} \\fI{places}\\fR" if value else names
        yield from _item(shown, about(option))


def _words(words: Mapping[str, str]) -> Iterator[str]:
    for word, text in words.items():
        yield from _item(f"\\fB{_literal(word)}\\fR", text)


def _item(tag: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield tag
    yield from _marked(text)


def _listing(lines: Iterable[str]) -> Iterator[str]:
    yield from (".RS 4", ".nf")
    yield from (_literal(line) or "\\&" for line in lines)
    yield from (".fi", ".RE")


def _text(text: str) -> Iterator[str]:
    """A docstring: paragraphs, and those that click shows as they stand."""
    yield from _paragraphs(inspect.cleandoc(text).split("\n\n"))


def _paragraphs(paragraphs: Iterable[str]) -> Iterator[str]:
    for number, paragraph in enumerate(paragraphs):
        if paragraph.startswith("\b"):
            yield from _listing(paragraph.splitlines()[1:])
            continue
        if number:
            yield ".PP"
        yield from _marked(paragraph)


def _see_also(pages: Iterable[str]) -> Iterator[str]:
    listed = []
    for page in pages:
        name, section = page.rstrip(")").split("(")
        listed.append(f".BR {_literal(name)} ({section})")
    yield " ,\n".join(listed)


# ------------------------------------------------------------------------------ characters


def _marked(text: str) -> list[str]:
    """Lines of running text, with backquoted parts in bold."""
    parts = re.split(r"`([^`]+)`", re.sub(r"\s+", " ", text.strip()))
    shown = [
        f"\\fB{_literal(part)}\\fR" if number % 2 else _plain(part)
        for number, part in enumerate(parts)
    ]
    lines = textwrap.wrap("".join(shown), _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [_guarded(line) for line in lines] or ["\\&"]


def _plain(text: str) -> str:
    """Options in running text keep their hyphens, so that they can be copied."""
    escaped = _escaped(text)
    return re.sub(r"(?<![\w-])--?(?=\w)", lambda m: m.group().replace("-", r"\-"), escaped)


def _literal(text: str) -> str:
    """Text to be typed literally."""
    return _guarded(_escaped(text).replace("-", r"\-"))


def _escaped(text: str) -> str:
    text = text.replace("\\", r"\(rs")
    for char, name in (("~", r"\(ti"), ("^", r"\(ha"), ("'", r"\(aq"), ("`", r"\(ga")):
        text = text.replace(char, name)
    return "".join(char if ord(char) < 128 else f"\\[u{ord(char):04X}]" for char in text)


def _guarded(line: str) -> str:
    """Protect a text line that starts like a request."""
    return f"\\&{line}" if line.startswith((".", "'")) else line


def _docstring(module: str) -> str:
    """The docstring of a module without importing it: a build has no numpy."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""


def write_pages(folder: Path) -> list[Path]:
    """Write all pages into `folder`, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in pages().items():
        paths.append(folder / name)
        paths[-1].write_text(text, encoding="utf-8")
    return paths


if __name__ == "__main__":
    write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "build/man"))
