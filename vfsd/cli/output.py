"""The output of commands: JSON for programs, aligned columns for people, progress on stderr.
`Progress` also defers Ctrl-C to a safe point.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import click

from vfsd.errors import UsageError

if TYPE_CHECKING:
    import rich.progress

    from vfsd.views.layout_facts import Picture


SCHEMA = 1
"""Version of the JSON of all commands. It is incremented when a key changes its meaning or is
removed.
"""


def print_json(record: Mapping[str, object]) -> None:
    """Print one object on one line."""
    click.echo(json.dumps({"schema": SCHEMA, **record}))


def use_color(stream: TextIO) -> bool:
    """Whether `stream` shows colours."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def styled(text: str, colour_name: str) -> str:
    """A word in a colour, if stdout shows colours."""
    return click.style(text, fg=colour_name) if use_color(sys.stdout) else text


def print_line(text: str) -> None:
    """Print a line of data unchanged: escape sequences may be part of a name."""
    click.echo(text, color=True)


def column_lines(rows: Iterable[Sequence[str]], alignment: str) -> Iterator[str]:
    """Rows as lines, with each column as wide as its widest cell.

    `alignment` has a ``<`` or ``>`` for every column.
    """
    kept = list(rows)
    widths = [max(map(len, column), default=0) for column in zip(*kept, strict=True)]
    for row in kept:
        cells = [
            cell.rjust(width) if side == ">" else cell.ljust(width)
            for cell, width, side in zip(row, widths, alignment, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def print_table(rows: Iterable[Sequence[str]], alignment: str) -> None:
    """Print rows as aligned columns; see `column_lines`."""
    for line in column_lines(rows, alignment):
        print_line(line)


def print_facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Print ``label  value`` lines with aligned values."""
    print_table(pairs, "<<")


def printable(name: str) -> str:
    """A name that is safe to print: escaped for a terminal, unchanged for a pipe."""
    return escape_unprintable(name) if sys.stdout.isatty() else name


def escape_unprintable(text: str) -> str:
    """Replace control characters, and bytes that are not text, by Python's escapes: \x1b, \n."""
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def print_remark(text: str) -> None:
    """Print lines for people on stderr, with control characters escaped on a terminal."""
    if sys.stderr.isatty():
        text = "\n".join(map(escape_unprintable, text.split("\n")))
    click.echo(text, err=True, color=True)


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # not UTF-8: a byte that os.fsdecode escaped
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def picture_path(out: str) -> Path:
    """The path of a picture to write.  Raises `UsageError` unless it is a PNG or JPEG file."""
    path = Path(out)
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise UsageError(
            f"the picture must be a .png or .jpg file, got {out!r}", hint="name a .png or .jpg"
        )
    return path


def write_picture(picture: Picture, path: Path, *, replace: bool) -> None:
    """Write the PNG or JPEG file `path` as a whole.  Raises `ExistsError` unless `replace`."""
    from vfsd.codecs.encoding.encoder import MIN_JPEG_QUANTISER, encode_jpeg, encode_png
    from vfsd.disk.tempfiles import atomic_file

    if path.suffix.lower() == ".png":
        data = encode_png(picture)
    else:
        data = encode_jpeg(picture, quantiser=MIN_JPEG_QUANTISER)
    with atomic_file(path, replace) as file:
        file.write(data)


def local_time(time_ns: int) -> str:
    """Unix time in the user's time zone, for people."""
    return datetime.fromtimestamp(time_ns / 1e9).strftime("%Y-%m-%d %H:%M")


def duration_text(seconds: float) -> str:
    """A duration in milliseconds, or in seconds from one second on."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


_STOPPING = b"\nvfsd: stopping; Ctrl-C again stops at once\n"


class DeferredInterrupt:
    """Within the block, Ctrl-C waits for the next `raise_if_interrupted`, or for the end.

    A second Ctrl-C interrupts at once.
    """

    def __init__(self, text: bytes = _STOPPING) -> None:
        """`text` is printed after the first one."""
        self._text = text
        self._asked = False
        self._before: Any = None

    def __enter__(self) -> DeferredInterrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if error is None:
            self.raise_if_interrupted()

    def raise_if_interrupted(self) -> None:
        """Raise `KeyboardInterrupt` if Ctrl-C was pressed."""
        if self._asked and threading.current_thread() is threading.main_thread():
            self._asked = False
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            self._asked = False
            raise KeyboardInterrupt
        self._asked = True
        if sys.stderr.isatty():
            os.write(2, self._text)  # sys.stderr may be inside a write


DELAY_SECONDS = 1.0


class Progress:
    """A progress bar that appears after a second; used as a context manager.

    `total` counts bytes (`in_bytes`) or items; with None the bar has no end. After Ctrl-C the next
    update raises `KeyboardInterrupt`; `stopping` is printed at once.
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        *,
        shown: bool,
        in_bytes: bool = False,
        delay_seconds: float = DELAY_SECONDS,
        stopping: bytes = _STOPPING,
    ) -> None:
        self._label = label
        self._total = total
        self._in_bytes = in_bytes
        self._done = 0
        self._guard = threading.Lock()
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None
        self._timer = threading.Timer(delay_seconds, self._show) if shown else None
        self._interruption = DeferredInterrupt(stopping)

    def __enter__(self) -> Progress:
        self._interruption.__enter__()
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._bar is not None:
            self._bar.stop()
        self._interruption.__exit__(kind, error, trace)

    def advance(self, count: int = 1) -> None:
        with self._guard:
            self._done += count
            self._update()

    def reach(self, done: int, total: int) -> None:
        """Set the progress to `done` of `total`."""
        with self._guard:
            self._done, self._total = done, total
            self._update()

    def step(self, what: str, done: int, total: int) -> None:
        """Set the text next to the bar, and the progress."""
        self.label(what)
        self.reach(done, total)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the bar while other lines are printed."""
        with self._guard:
            if self._bar is not None:
                self._bar.stop()
            try:
                yield
            finally:
                if self._bar is not None:
                    self._bar.start()

    def label(self, text: str) -> None:
        """Set the text next to the bar."""
        with self._guard:
            self._label = text
            self._update()

    def _update(self) -> None:
        self._interruption.raise_if_interrupted()
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, completed=self._done, total=self._total, description=self._label
            )

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        figures: ProgressColumn = MofNCompleteColumn()
        if self._in_bytes:
            figures = DownloadColumn(binary_units=True)
        bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            figures,
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        with self._guard:
            self._task = bar.add_task(self._label, total=self._total, completed=self._done)
            self._bar = bar
            bar.start()
