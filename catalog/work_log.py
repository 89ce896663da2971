"""Orders of work, the units that they are planned in, and the log of their results.

A result is a row that is added and never changed, so processes on all hosts can add theirs at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import time_ns
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from vfsd.catalog.engine import Database
from vfsd.catalog.schema import work_orders, work_results, work_units
from vfsd.errors import NotFoundError, UsageError

BEGUN, RETRY, AGAIN = "begun", "retry", "again"
CRASHED, KILLED = "crashed", "killed"
"""Outcomes of rows that do not end a unit.  The last two are of attempts that ended their process,
or ended with it, and are added by the next one."""
DONE = frozenset({"made", "skipped", "outdated"})
"""Outcomes after which a unit has nothing left to do."""

_BATCH = 500


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """An order of work."""

    id: str
    verb: str
    spec: Mapping[str, Any]  #: the arguments of the command, for people
    units: int  #: their number
    cost: float  #: expected CPU seconds
    created_ns: int  #: Unix time
    cancelled_ns: int | None


@dataclass(frozen=True, slots=True)
class WorkResult:
    """A row of the log: the begin of an attempt, or its end."""

    number: int | None  #: of the unit; None: of all units
    attempt: str
    outcome: str
    host: str
    at_ns: int
    cpu: float | None = None  #: CPU seconds
    frames: int | None = None
    made: int | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    error: str | None = None
    exit_code: int | None = None
    id: int = 0  #: ascending in order of arrival


_RESULT = [column for column in work_results.c if column.name not in ("id", "order_id")]


class WorkLog:
    """The orders of a catalog."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, order: WorkOrder, units: Iterable[Mapping[str, Any]]) -> None:
        """Add an order with its units, numbered from 0."""
        rows = [
            {"order_id": order.id, "number": number, "unit": unit}
            for number, unit in enumerate(units)
        ]
        with self._database.writing() as connection:
            connection.execute(
                sa.insert(work_orders).values(
                    id=order.id,
                    verb=order.verb,
                    spec=order.spec,
                    units=order.units,
                    cost=order.cost,
                    created_ns=order.created_ns,
                    cancelled_ns=order.cancelled_ns,
                )
            )
            for at in range(0, len(rows), _BATCH):
                connection.execute(sa.insert(work_units), rows[at : at + _BATCH])

    def orders(self) -> list[WorkOrder]:
        """Return all orders, newest first."""
        chosen = sa.select(work_orders).order_by(work_orders.c.created_ns.desc(), work_orders.c.id)
        with self._database.reading() as connection:
            return [_order_from_row(row) for row in connection.execute(chosen)]

    def order(self, beginning: str) -> WorkOrder:
        """Return the order with that id, or the only one whose id begins with it.

        Raises `NotFoundError`, and `UsageError` if several do.
        """
        chosen = sa.select(work_orders).where(
            work_orders.c.id.startswith(beginning, autoescape=True)
        )
        with self._database.reading() as connection:
            found = (
                [_order_from_row(row) for row in connection.execute(chosen)] if beginning else []
            )
        if not found:
            raise NotFoundError(f"order {beginning!r} does not exist", hint="see `vfsd work ls`")
        if len(found) > 1:
            raise UsageError(
                f"{len(found)} orders begin with {beginning!r}", hint="give more of it"
            )
        return found[0]

    def units(self, order_id: str, part: tuple[int, int] = (0, 1)) -> dict[int, dict[str, Any]]:
        """Return units by number; of each n, one for the part (i, n)."""
        # There and back, as in 0 1 2 2 1 0: each part gets the dearest of n as often as others.
        index, parts = part
        place = work_units.c.number % (2 * parts)
        chosen = (
            sa.select(work_units.c.number, work_units.c.unit)
            .where(work_units.c.order_id == order_id, place.in_((index, 2 * parts - 1 - index)))
            .order_by(work_units.c.number)
        )
        with self._database.reading() as connection:
            return {row.number: row.unit for row in connection.execute(chosen)}

    def cancel(self, order_id: str) -> None:
        """Mark an order as cancelled: units that were not begun stay undone."""
        self._set_cancelled(order_id, time_ns())

    def is_cancelled(self, order_id: str) -> bool:
        """Return whether an order was cancelled, or no longer exists."""
        chosen = sa.select(work_orders.c.id).where(
            work_orders.c.id == order_id, work_orders.c.cancelled_ns.is_(None)
        )
        with self._database.reading() as connection:
            return connection.execute(chosen).first() is None

    def retry(self, order_id: str, numbers: Sequence[int | None], *, host: str) -> None:
        """Forget the failures of units (None: of all), and take back a cancellation."""
        now = time_ns()
        self.append(order_id, [WorkResult(one, "", RETRY, host, now) for one in numbers])
        self._set_cancelled(order_id, None)

    def remove(self, order_id: str) -> None:
        """Delete an order with its units and results."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(work_orders).where(work_orders.c.id == order_id))

    def append(self, order_id: str, results: Sequence[WorkResult]) -> None:
        """Add rows to the log.  On a server, this waits for no other writer."""
        rows = [
            {"order_id": order_id, **{column.name: getattr(one, column.name) for column in _RESULT}}
            for one in results
        ]
        if rows:
            with self._database.appending() as connection:
                connection.execute(sa.insert(work_results), rows)

    def results(
        self, order_id: str, number: int | None = None, *, after_id: int = 0
    ) -> list[WorkResult]:
        """Return the log of an order, or of one unit, in order of arrival.

        With `after_id`, only rows with higher ids.
        """
        chosen = sa.select(*_RESULT, work_results.c.id).where(
            work_results.c.order_id == order_id, work_results.c.id > after_id
        )
        if number is not None:
            mine = work_results.c.number
            chosen = chosen.where(sa.or_(mine == number, mine.is_(None)))
        with self._database.reading() as connection:
            rows = connection.execute(chosen.order_by(work_results.c.id))
            return [WorkResult(**row._mapping) for row in rows]

    def _set_cancelled(self, order_id: str, at_ns: int | None) -> None:
        changed = sa.update(work_orders).where(work_orders.c.id == order_id)
        with self._database.writing() as connection:
            connection.execute(changed.values(cancelled_ns=at_ns))


def _order_from_row(row: Row[Any]) -> WorkOrder:
    return WorkOrder(**row._mapping)
