"""PgBouncer in transaction mode, in front of a PostgreSQL server of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from tests.support.postgresql import PostgresqlServer

_SECONDS = 20
_PORT = 6432
"""Part of the name of the socket."""

_AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]

_SETTINGS = """
[databases]
* = host={server}
[pgbouncer]
pool_mode = transaction
unix_socket_dir = {home}
listen_addr =
listen_port = {port}
auth_type = trust
auth_file = {home}/users
logfile = {home}/log
default_pool_size = 4
max_client_conn = 200
"""


def pgbouncer_program() -> str | None:
    """Return the program; None if it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class PgBouncer:
    """A pooler with four connections to each database; `close` ends it."""

    def __init__(self, program: str, server: PostgresqlServer) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="vfsd-pgbouncer-"))
        settings = self.home / "pgbouncer.ini"
        settings.write_text(_SETTINGS.format(server=server.home, home=self.home, port=_PORT))
        (self.home / "users").write_text('"vfsd" ""\n')
        command = [program, "-q", str(settings)]
        if os.geteuid() == 0:  # it refuses to run as root
            for path in (self.home, *self.home.iterdir()):
                shutil.chown(path, "postgres")
            command = [
                "setpriv",
                "--reuid=postgres",
                "--regid=postgres",
                "--clear-groups",
                *command,
            ]
        self._process = subprocess.Popen(command, cwd=self.home)
        deadline = time.monotonic() + _SECONDS
        while not (self.home / f".s.PGSQL.{_PORT}").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("PgBouncer did not start")
            time.sleep(0.01)

    def url_of(self, url: str) -> str:
        """Return the URL through which the pooler offers the database of the server at `url`."""
        name = sa.make_url(url).database
        return f"postgresql+psycopg://vfsd@/{name}?host={self.home}&port={_PORT}"

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(_SECONDS)
        shutil.rmtree(self.home)
