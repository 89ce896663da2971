"""A PostgreSQL server of the tests' own, on a socket in a temporary folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa


def postgresql_programs() -> Path | None:
    """Return the folder with initdb and pg_ctl; None if PostgreSQL is not installed."""
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return candidates[-1] if candidates else None


@contextmanager
def running_postgresql() -> Iterator[PostgresqlServer]:
    """Yield a server; skip the test if there is no PostgreSQL."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    programs = postgresql_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    with closing(PostgresqlServer(programs)) as server:
        yield server


class PostgresqlServer:
    """A server that can be stopped, killed and started again; `close` deletes it."""

    def __init__(self, programs: Path, *, options: str = "-c fsync=off") -> None:
        """Create a database cluster and start it; `options` are those of `postgres`."""
        self._programs = programs
        library = (programs / "initdb").resolve().parent.parent / "lib" / "pg_stat_statements.so"
        self.counts_statements = library.exists()
        if self.counts_statements:
            options += " -c shared_preload_libraries=pg_stat_statements"
        self._options = options
        # PostgreSQL refuses to run as root; its own account exists where the package does.  Folders
        # of pytest are closed to other accounts, again and again by every later run.
        self.home = Path(tempfile.mkdtemp(prefix="vfsd-postgresql-"))
        self._account = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self._account:
            shutil.chown(self.home, "postgres")
        data = str(self.home / "data")
        self._run("initdb", "-D", data, "-A", "trust", "-U", "vfsd", "-N")
        self.start()

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database that every server has."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        return f"postgresql+psycopg://vfsd@/{database}?host={self.home}"

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        self._control("-o", f"-k {self.home} -h '' {self._options}", "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server. With the mode `immediate`, it stops as after a crash."""
        self._control("-m", mode, "stop")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop all processes of the server in the block; the kernel goes on to take its packets."""
        pid = int((self.home / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGSTOP)  # first, so that no process is added
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGSTOP)
        try:
            yield
        finally:
            for one in (*map(int, children), pid):
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGCONT)

    def new_database(self) -> str:
        """Create an empty database, and return its URL."""
        name = f"own_{uuid4().hex}"
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        return self.url_of(name)

    def statements(self, database: str) -> dict[str, int]:
        """Return the statements that arrived at a database since the last call, with their counts.

        Begins, commits and rollbacks are left out.  Skips the test without pg_stat_statements.
        """
        if not self.counts_statements:
            pytest.skip("PostgreSQL has no pg_stat_statements")
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")
        name = sa.make_url(database).database
        with engine.connect() as connection:
            connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            found = connection.execute(
                sa.text(
                    "SELECT query, CAST(sum(calls) AS integer) FROM pg_stat_statements "
                    "JOIN pg_database ON pg_database.oid = dbid WHERE datname = :name "
                    "AND query !~* '^(BEGIN|COMMIT|ROLLBACK)' GROUP BY query"
                ),
                {"name": name},
            ).all()
            connection.execute(
                sa.text(
                    "SELECT pg_stat_statements_reset(0, oid, 0) FROM pg_database "
                    "WHERE datname = :name"
                ),
                {"name": name},
            )
        engine.dispose()
        return {str(query): int(calls) for query, calls in found}

    def dump(self, database: str) -> str:
        """Return the statements that create the tables and rows of a database, given by its URL."""
        name = sa.make_url(database).database or ""
        command = [*self._account, self._client("pg_dump"), "-h", str(self.home)]
        done = subprocess.run(
            [*command, "-U", "vfsd", "--clean", "--if-exists", name],
            check=True,
            stdout=subprocess.PIPE,
            cwd=self.home,
        )
        return done.stdout.decode()

    def restore(self, database: str, dumped: str) -> None:
        """Replace everything in a database, given by its URL, by what `dump` returned."""
        name = sa.make_url(database).database or ""
        command = [*self._account, self._client("psql"), "-h", str(self.home), "-q"]
        subprocess.run(
            [*command, "-U", "vfsd", "-v", "ON_ERROR_STOP=1", name],
            check=True,
            input=dumped.encode(),
            stdout=subprocess.DEVNULL,
            cwd=self.home,
        )

    def _client(self, program: str) -> str:
        """Return the path of a program that is next to the server, whose name may be a link."""
        return str((self._programs / "initdb").resolve().with_name(program))

    def close(self) -> None:
        """Stop the server, and delete it."""
        self.stop()
        shutil.rmtree(self.home)

    def _control(self, *arguments: str) -> None:
        data, log = str(self.home / "data"), str(self.home / "log")
        self._run("pg_ctl", "-D", data, "-w", "-l", log, *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._account, str(self._programs / program), *arguments]
        # The server inherits the output of pg_ctl, so a pipe would never end.
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.home)
