"""Runs operations that are killed, lose power or get an error at any of their calls.

Only forked children open a store, so that they may die and their threads end with them.  This
process itself must have the layer loaded (see `tests.fault.layer`).
"""

from __future__ import annotations

import errno
import os
import pickle
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.fault import layer
from tests.fault.aftermath import Expected, Found, examine
from tests.fault.layer import Counters, Failing, Kind
from tests.fault.operations import Operation, Place
from tests.fault.powercut import Disk, Model, marks, read_log
from tests.fault.state import State, difference, image_of, state_of
from vfsd.cli.errors import describe
from vfsd.errors import NoStoreError, VfsdError

PATIENCE = 120.0
"""Seconds that a child may take."""

_KILLED = -signal.SIGKILL
_MODELS = (Model.LEAST, Model.TORN, Model.JOURNAL, Model.TORN)
_CHANGING = (Kind.CREATE, Kind.WRITE, Kind.SIZE, Kind.NAME)

ERRORS: tuple[tuple[str, tuple[Kind, ...], int, bool], ...] = (
    ("ENOSPC", (Kind.CREATE, Kind.WRITE, Kind.SIZE), errno.ENOSPC, True),
    ("ENOSPC once", (Kind.WRITE,), errno.ENOSPC, False),
    ("EDQUOT", (Kind.CREATE, Kind.WRITE), errno.EDQUOT, True),
    ("EIO reading", (Kind.READ,), errno.EIO, False),
    ("EIO writing", _CHANGING, errno.EIO, False),
    ("EIO syncing", (Kind.SYNC,), errno.EIO, False),
    ("EMFILE", (Kind.OPEN, Kind.CREATE), errno.EMFILE, False),
)


_DONE = (
    "the store equals the backup",
    "everything of the backup is restored",
    "the backup is complete",
    "the new catalog is complete",
)
"""Words of errors that report an operation as complete except for a later step."""


@dataclass(slots=True)
class Row:
    """The results of one operation."""

    operation: str
    calls: int = 0  #: that change something
    kills: int = 0
    cuts: int = 0
    losses: int = 0
    dangling: int = 0
    orphans: int = 0
    errors: int = 0  #: injected
    clean: int = 0  #: an error of ours, or the errno, with words; or it went through all the same
    unchanged: int = 0  #: the store is as it was, or as it should be
    again: int = 0  #: the same went through afterwards
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Died:
    """The end of a child that returned nothing."""

    status: int


Progress = Callable[[Row], None]


def in_child(work: Callable[[], Any]) -> Any:
    """Run `work` in a fork of this process; return its result, or `Died`."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        status = 1
        try:
            result = pickle.dumps(work())
            with open(writing, "wb") as pipe:
                pipe.write(result)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    end = time.monotonic() + PATIENCE
    signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGABRT))
    signal.setitimer(signal.ITIMER_REAL, max(0.1, end - time.monotonic()))
    try:
        with open(reading, "rb") as pipe:
            answer = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return pickle.loads(answer) if answer and not status else Died(status)


class Campaign:
    """One operation; `folder` is where it happens, one at a time.

    Prepared stores stay there, for other operations that begin with the same.
    """

    def __init__(self, operation: Operation, folder: Path, inputs: Path, seed: int) -> None:
        self.operation = operation
        self._chance = random.Random(f"{seed} {operation.name}")
        self._place = Place(folder / "point", inputs)
        self._base = folder / operation.prepare.__name__
        self._log = folder / "log"
        self.row = Row(operation.name)
        self._prepare()

    # -- without faults

    def _prepare(self) -> None:
        operation, place = self.operation, self._place
        shutil.rmtree(place.root, ignore_errors=True)
        if not self._base.exists():
            _must(in_child(lambda: operation.prepare(place)))
            shutil.copytree(place.root, self._base, symlinks=True)
        self._restore()
        self._states: list[State] = _must(in_child(self._note_states))
        self._restore()
        self._disk, whole = Disk(place.root), Disk(place.root)
        counters = Counters()
        with open(self._log, "wb") as log:
            _must(in_child(lambda: self._run(counters, log=log.fileno())))
        self._entries = read_log(self._log)
        self._log.unlink()
        self.unseen = self._compare(whole)
        self._counters = counters
        self.row.calls = counters.changes

    def _note_states(self) -> list[State]:
        """After 0, 1, ... steps."""
        states = [self._state()]
        for _ in self.operation.work(self._place):
            states.append(self._state())
        return states

    def _state(self) -> State:
        try:
            with self._place.open() as store:
                return state_of(store)
        except NoStoreError:
            return State(frozenset(), frozenset(), frozenset())

    def _run(self, counters: Counters, **how: Any) -> None:
        layer.begin(self._place.root, counters, **how)
        for _ in self.operation.work(self._place):
            layer.mark()
        layer.end()

    def _restore(self) -> None:
        shutil.rmtree(self._place.root, ignore_errors=True)
        shutil.copytree(self._base, self._place.root, symlinks=True)

    def _compare(self, disk: Disk) -> list[str]:
        """Files that differ from the log, which means that the layer missed a call."""
        for entry in self._entries:
            disk.do(entry)
        copy = self._place.root.with_name("copy")
        disk.write_to(copy, Model.ALL, random.Random(0))
        try:
            return _unequal(self._place.root, copy)
        finally:
            shutil.rmtree(copy)

    # -- with faults

    def kill(self, points: int) -> Iterator[Row]:
        """Killed before its n-th change, for so many n, or when all is done."""
        for at in _spread(self._counters.changes + 1, points, self._chance):
            self._restore()
            counters = Counters()
            ended = in_child(partial(self._run, counters, kill_at=at))
            if ended is not None and ended != Died(_KILLED):
                self._problem(f"kill {at}", f"the operation ended with {ended}")
            self.row.kills += 1
            steps = counters.marks
            self._examine(f"kill {at}", steps, min(steps + 1, len(self._states) - 1), True)
            yield self.row

    def cut(self, points: int) -> Iterator[Row]:
        """The power is cut after the n-th change."""
        done = 0
        for number, at in enumerate(_spread(len(self._entries) + 1, points, self._chance)):
            for entry in self._entries[done:at]:
                self._disk.do(entry)
            done = at
            steps = marks(self._entries[:at])
            sure = max(
                (step + 1 for step in range(steps) if self.operation.is_durable(step)), default=0
            )
            model = _MODELS[(number + self._chance.randint(0, 1)) % len(_MODELS)]
            shutil.rmtree(self._place.root, ignore_errors=True)
            self._disk.write_to(self._place.root, model, self._chance)
            self.row.cuts += 1
            what = f"power cut {at} ({model.value})"
            self._examine(what, sure, min(steps + 1, len(self._states) - 1), False)
            yield self.row

    def _examine(
        self, what: str, first: int, last: int, has_spool: bool, *, always_again: bool = False
    ) -> None:
        number = self.row.kills + self.row.cuts + self.row.errors
        expected = Expected(self._states, first, last, has_spool)
        found = in_child(
            lambda: examine(
                self.operation,
                self._place,
                expected,
                mounts=number % 2 == 0,
                deep=number % 5 == 0,
                again=always_again or number % 3 == 0,
            )
        )
        if isinstance(found, Died):
            found = Found(losses=[f"looking at it ended with {found}"])
        self.row.losses += bool(found.losses)
        self.row.dangling += bool(found.dangling)
        self.row.orphans += bool(found.orphans)
        for problem in found.problems:
            self._problem(what, problem)

    def fail(self, points: int) -> Iterator[Row]:
        """Calls fail, `points` of them in all."""
        if not points:
            return
        chosen = [each for each in ERRORS if self._counters.seen(each[1])]
        each = max(1, points // max(1, len(chosen)))
        for name, kinds, number, on in chosen:
            for at in _spread(self._counters.seen(kinds), each, self._chance):
                self._restore()
                self._fail_once(f"{name} at {at}", Failing(kinds, at, number, on))
                yield self.row

    def _fail_once(self, what: str, failing: Failing) -> None:
        counters = Counters()
        ended = in_child(lambda: self._run_into(counters, failing))
        if not counters.hits:
            return  # not every run reaches this call
        self.row.errors += 1
        if isinstance(ended, Died):
            self._problem(what, f"the operation ended with {ended}")
            return
        message, is_clean, different = ended
        self.row.clean += is_clean
        self.row.unchanged += not different
        if not is_clean:
            self._problem(what, f"not a clean error: {message}")
        if different:
            self._problem(what, f"({message or 'no error'}) changed: {different}")
        steps = counters.marks
        before = len(self.row.problems)
        last = min(steps + 1, len(self._states) - 1)
        self._examine(what, steps, last, True, always_again=True)
        self.row.again += len(self.row.problems) == before

    def _run_into(self, counters: Counters, failing: Failing) -> tuple[str, bool, str]:
        """(the message, whether the error is in order, the differences from the expected
        store)."""
        root, place = self._place.root, self._place
        before = _image(place)
        message, is_clean, is_done = "", True, False
        try:
            self._run(counters, failing=failing)
        except Exception as error:
            layer.end()
            is_done = any(one in note for note in getattr(error, "__notes__", ()) for one in _DONE)
            message = f"{type(error).__name__}: {error}"
            is_clean = is_in_order(error, failing.errno)
            if not is_clean:
                traceback.print_exc()
        assert root.exists() or self.operation.is_init
        steps = counters.marks
        if is_done:
            done = min(steps + 1, len(self._states) - 1)
            return message, is_clean, self._state().differs(self._states[done])
        if not message or steps or self.operation.gradual or not before:
            return message, is_clean, self._unlike(steps, message)
        after = _image(place)
        is_kept = self.operation.resumed
        if is_kept or failing.kinds == (Kind.SYNC,) or failing.errno == errno.EMFILE:
            # An object whose directory could not be opened or synced is left for gc.  Other rows
            # may refer to it by now, so it may only be deleted after a look into the catalog.
            after = {name: it for name, it in after.items() if not _is_new_object(name, before)}
        return message, is_clean, difference(after, before)

    def _unlike(self, steps: int, message: str) -> str:
        """The differences that users see from the expected state after so many steps.

        A gradual operation that failed may have done a part of its step.
        """
        now = self._state()
        if not message:
            return now.differs(self._states[-1])
        loose = self.operation.loose_names(range(steps, steps + 1))
        return now.differs(self._states[steps], but=loose)

    def _problem(self, what: str, problem: str) -> None:
        self.row.problems.append(f"{self.operation.name}: {what}: {problem}")


def is_in_order(error: Exception, number: int) -> bool:
    """Whether an error is useful to a user: the message of `vfsd`, and its exit code."""
    said = describe(error)
    if not said.message.strip() or "mistake in vfsd" in (said.hint or ""):
        return False
    if isinstance(error, VfsdError):
        return True
    return isinstance(error, OSError) and error.errno == number


def _image(place: Place) -> dict[str, str]:
    return image_of(place.store) if (place.store / "catalog.sqlite3").exists() else {}


def _is_new_object(name: str, before: dict[str, str]) -> bool:
    return name.startswith("objects/") and name not in before


def _spread(count: int, points: int, chance: random.Random) -> list[int]:
    """At most so many of 0 ... count - 1: one random number out of each of as many equal parts."""
    if points >= count:
        return list(range(count))
    if not points:
        return []
    edges = [number * count // points for number in range(points + 1)]
    return [chance.randrange(*edges[number : number + 2]) for number in range(points)]


def _must(answer: Any) -> Any:
    if isinstance(answer, Died):
        raise RuntimeError(f"an undisturbed run ended with {answer}")
    return answer


def _unequal(one: Path, other: Path) -> list[str]:
    def contents(top: Path) -> dict[str, bytes | None]:
        return {
            str(path.relative_to(top)): path.read_bytes() if path.is_file() else None
            for path in top.rglob("*")
            if not path.name.endswith("-shm")
        }

    mine, theirs = contents(one), contents(other)
    missing = object()
    return sorted(
        name
        for name in mine.keys() | theirs.keys()
        if mine.get(name, missing) != theirs.get(name, missing)
    )
