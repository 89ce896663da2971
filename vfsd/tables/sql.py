"""DuckDB over a store's tables: views that are scanned when a statement reads them."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfsd.core.arrow_tables import TABLES, arrow_schema, require_columns, require_pyarrow, storable
from vfsd.errors import ExtraMissingError
from vfsd.tables.arrow import batches
from vfsd.validation import boolean

if TYPE_CHECKING:
    import duckdb
    import pyarrow

    from vfsd.api.store import Store


def connect(store: Store, *, external_access: bool = False) -> duckdb.DuckDBPyConnection:
    """A new connection with the tables of a store; see `Store.duckdb`."""
    try:
        import duckdb
    except ImportError:
        raise ExtraMissingError(
            "duckdb is not installed", hint="pip install 'vfsd[duckdb]'"
        ) from None
    require_pyarrow()
    external_access = boolean(external_access, "external_access")
    # Statements that need more memory spill there; the default is a directory in the current one.
    spill = os.path.join(tempfile.gettempdir(), f"vfsd-duckdb-{os.getpid()}")
    connection = duckdb.connect(":memory:", config={"temp_directory": spill})
    try:
        for name in TABLES:
            connection.register(name, _dataset_class()(store, name))
        if not external_access:
            for setting in _CLOSED:
                connection.execute(f"SET {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


_CLOSED = (
    # Neither files nor the network, nor extensions that would open them.
    "enable_external_access = false",
    # No variables of the calling program as tables.
    "python_enable_replacements = false",
    # Last: a statement cannot undo the others.
    "lock_configuration = true",
)


@cache
def _dataset_class() -> type[Any]:
    """The class of the views; pyarrow is imported when it is needed."""
    dataset = require_pyarrow_dataset()

    class StoreTable(dataset.Dataset):  # type: ignore[misc, name-defined]
        """A table of a store that DuckDB scans like a data set of pyarrow.

        DuckDB passes the columns and the conditions of a statement, so only these columns are
        computed, and only the videos are read that `name` may match.
        """

        def __init__(self, store: Store, table: str) -> None:
            # That of pyarrow refuses to be called.
            self._store = store
            self._table = table

        @property
        def schema(self) -> pyarrow.Schema:
            return arrow_schema(self._table)

        def scanner(
            self, columns: Sequence[str] | None = None, filter: Any = None, **options: Any
        ) -> Any:
            every = require_columns(self._table)
            wanted = every if columns is None else columns
            # More than the condition names, at worst: a word in it may be a text.
            words = set(re.findall(r"\w+", str(filter)))
            needed = [name for name in every if name in wanted or name in words]
            return dataset.Scanner.from_batches(
                batches(self._store, self._table, self._names(filter), needed),
                schema=arrow_schema(self._table, needed),
                columns=None if columns is None else list(columns),
                filter=filter,
                **{key: value for key, value in options.items() if key in _SCANNER_OPTIONS},
            )

        def _names(self, filter: Any) -> list[str] | None:
            """The videos that may satisfy a condition; None: all."""
            if filter is None or "name" not in str(filter):
                return None
            names = self._store.catalog.find().names()
            known = {storable(name): name for name in names}
            shown = dict(zip(map(str, range(len(names))), known, strict=False))
            # pyarrow leaves out the files whose partition contradicts a condition; none is opened.
            parts = dataset.FileSystemDataset.from_paths(
                list(shown),
                schema=arrow_schema(self._table),
                format=dataset.ParquetFileFormat(),
                filesystem=_local_files(),
                partitions=[dataset.field("name") == name for name in shown.values()],
            )
            return [known[shown[part.path]] for part in parts.get_fragments(filter)]

    return StoreTable


_SCANNER_OPTIONS = MappingProxyType({"batch_size": 0, "use_threads": 0, "memory_pool": 0})


def require_pyarrow_dataset() -> Any:
    """Return the module pyarrow.dataset.  Raises `ExtraMissingError`."""
    require_pyarrow()
    import pyarrow.dataset

    return pyarrow.dataset


def _local_files() -> Any:
    import pyarrow.fs

    return pyarrow.fs.LocalFileSystem()
