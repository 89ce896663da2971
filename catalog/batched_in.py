"""Conditions on any number of values: a database takes only so many in one statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa

_AT_ONCE = 500


def among(column: sa.Column[Any], values: Iterable[Any]) -> Iterator[sa.ColumnElement[bool]]:
    """Conditions, for a statement each, of which one holds where `column` is one of `values`."""
    wanted = sorted(set(values))
    for start in range(0, len(wanted), _AT_ONCE):
        yield column.in_(wanted[start : start + _AT_ONCE])
