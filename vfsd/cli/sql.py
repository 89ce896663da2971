"""``vfsd sql``: a statement over the tables of a store."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define, replace_option
from vfsd.cli.output import print_json, print_table, printable
from vfsd.cli.session import Session
from vfsd.errors import ExistsError, ExtraMissingError, NoSpaceError, UsageError

if TYPE_CHECKING:
    import pyarrow

_ROWS = 1000
"""Rows printed at a time, with columns of one width."""


@define(
    "sql",
    examples=[
        'vfsd -s videos sql "SELECT name, frames, codec FROM videos ORDER BY name"',
        'vfsd -s videos sql "SELECT label, count(*) AS boxes FROM detections GROUP BY ALL" --json',
        "vfsd -s videos sql \"SELECT name, max(duration) FROM frames WHERE name LIKE 'cam1/%' "
        'GROUP BY name" --csv',
        'vfsd -s videos sql "FROM detections" --parquet boxes.parquet',
    ],
    fields={"row": "object with a value for each column of the result"},
    variants={
        "--parquet": {"path": "the file", "rows": "number of rows", "size": "bytes of the file"}
    },
    exits=[ExistsError, NoSpaceError, ExtraMissingError],
    listing=True,
)
@click.argument("statement", metavar="STATEMENT")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with a line of headings.")
@click.option("--parquet", metavar="FILE", help="Write the result to a Parquet file instead.")
@replace_option("Replace the file of --parquet.")
@click.option(
    "--external-access",
    is_flag=True,
    help="Let the statement use files and the network, also for writing.",
)
def sql(
    session: Session,
    statement: str,
    as_csv: bool,
    parquet: str | None,
    replace: bool,
    external_access: bool,
) -> None:
    """Query the tables of the store with SQL, by DuckDB.

    The tables are videos, frames, detections, reads, tiles and vectors; docs/reference/tables.md
    has their columns. They are read-only, and made while the statement reads them: only the columns
    that it needs, and only the videos that a condition on `name` may match.

    Without --external-access, a statement cannot read or write files, use the network or load
    extensions.
    """
    if as_csv and (session.json or parquet):
        raise UsageError("give one of --json, --csv and --parquet")
    if parquet is None and replace:
        raise UsageError("--replace needs --parquet")
    with session.opened(session.root()) as store:
        from vfsd.tables.sql import connect

        with connect(store, external_access=external_access) as connection:
            import duckdb

            try:
                reader = _result(connection.sql(statement))
                if reader is None:
                    session.remark("the result has no rows")
                elif parquet is not None:
                    _write_parquet(session, reader, Path(parquet), replace)
                elif session.json:
                    for row in _rows(reader):
                        print_json({"row": dict(zip(reader.schema.names, row, strict=True))})
                elif as_csv:
                    _print_csv(reader)
                else:
                    _print_table(session, reader)
            except duckdb.Error as error:
                raise _as_usage_error(error) from error


def _result(relation: Any) -> pyarrow.RecordBatchReader | None:
    """The rows as a stream; None for a statement without a result."""
    if relation is None:
        return None
    # DuckDB has renamed the method.
    make = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    reader: pyarrow.RecordBatchReader = make(65_536)
    return reader


def _as_usage_error(error: Exception) -> UsageError:
    text = str(error)
    hint = "docs/reference/tables.md has the tables and columns; `DESCRIBE detections` shows them"
    if "Permission Error" in text:
        hint = "--external-access lets the statement use files and the network"
    elif "configuration has been locked" in text:
        hint = "settings cannot be changed here; Store.duckdb(external_access=True) allows it"
    return UsageError(f"the statement failed: {text}", hint=hint)


def _rows(reader: pyarrow.RecordBatchReader) -> Iterator[tuple[Any, ...]]:
    """The rows, with values that JSON can hold."""
    for batch in reader:
        columns = [column.to_pylist() for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield tuple(map(_plain, row))


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        # JSON has no NaN and no infinity.
        return value if value - value == 0 else str(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _print_csv(reader: pyarrow.RecordBatchReader) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(reader.schema.names)
    for row in _rows(reader):
        writer.writerow("" if value is None else _text(value) for value in row)


def _print_table(session: Session, reader: pyarrow.RecordBatchReader) -> None:
    headings = [printable(name) for name in reader.schema.names]
    alignment = "".join(">" if _is_number(field.type) else "<" for field in reader.schema)
    rows: list[Sequence[str]] = [headings]
    count = 0
    for row in _rows(reader):
        count += 1
        rows.append(["-" if value is None else printable(_text(value)) for value in row])
        if len(rows) >= _ROWS:
            print_table(rows, alignment)
            rows = []
    if rows:
        print_table(rows, alignment)
    if not count:
        session.remark("the result has no rows")


def _is_number(kind: Any) -> bool:
    import pyarrow.types

    return bool(
        pyarrow.types.is_integer(kind)
        or pyarrow.types.is_floating(kind)
        or pyarrow.types.is_decimal(kind)
    )


def _write_parquet(
    session: Session, reader: pyarrow.RecordBatchReader, path: Path, replace: bool
) -> None:
    import pyarrow.parquet

    from vfsd.disk.tempfiles import atomic_file

    rows = 0
    with atomic_file(path, replace) as file:
        with pyarrow.parquet.ParquetWriter(file, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
                rows += batch.num_rows
        size = file.tell()
    session.report(
        {"path": str(path), "rows": rows, "size": size}, f"{rows} rows written to {path}"
    )
