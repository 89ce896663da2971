"""A catalog in a file of its own, and one on PostgreSQL where a server can be started."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from tests.support.stores import new_catalog
from vfsd.catalog import Catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with new_catalog(tmp_path / "catalog.sqlite3") as opened:
        yield opened


def _postgresql_tools() -> Path | None:
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return candidates[-1] if candidates else None


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """The address of a server that listens on a socket of its own."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    tools = _postgresql_tools()
    if tools is None:
        pytest.skip("PostgreSQL is not installed")
    # PostgreSQL refuses to run as root; its own account exists where the package does.  Folders of
    # pytest are closed to other accounts, again and again by every later run.
    home = Path(tempfile.mkdtemp(prefix="vfsd-postgresql-"))
    data = home / "data"
    become = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if become:
        shutil.chown(home, "postgres")
    subprocess.run(
        [*become, str(tools / "initdb"), "-D", str(data), "-A", "trust", "-U", "vfsd", "-N"],
        check=True,
        capture_output=True,
    )
    start = [*become, str(tools / "pg_ctl"), "-D", str(data), "-w", "-l", str(home / "log")]
    options = f"-k {home} -h '' -c fsync=off"
    subprocess.run([*start, "-o", options, "start"], check=True, capture_output=True)
    yield f"postgresql+psycopg://vfsd@/postgres?host={home}"
    subprocess.run([*start, "-m", "immediate", "stop"], check=True, capture_output=True)
    shutil.rmtree(home)


@pytest.fixture
def own_database(postgresql_url: str) -> str:
    """The address of an empty database, separate from those of other tests on the server."""
    own = f"own_{uuid4().hex}"
    server = sa.create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {own}")
    server.dispose()
    return postgresql_url.replace("/postgres?", f"/{own}?")


@pytest.fixture(params=["sqlite", "postgresql"])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    """An empty catalog on SQLite or PostgreSQL."""
    if request.param == "sqlite":
        with new_catalog(tmp_path / "catalog.sqlite3") as opened:
            yield opened
        return
    with Catalog.create(request.getfixturevalue("own_database")) as opened:
        yield opened
