"""Bringing a catalog to the schema that this version of vfsd works with."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from vfsd.errors import StoreVersionError

HEAD = "0018"
"""The newest step in `vfsd.catalog.migrations.versions`; kept true by a test."""

_KNOWN = tuple(f"{number:04}" for number in range(1, int(HEAD) + 1))


def require_known(revision: str | None) -> None:
    """Raises `StoreVersionError` for a catalog that a newer vfsd has written."""
    if revision is not None and revision not in _KNOWN:
        raise StoreVersionError(
            f"the catalog is at revision {revision}, this vfsd knows up to {HEAD}",
            hint="install the version of vfsd that wrote it, or a newer one",
        )


def upgrade(connection: Connection) -> None:
    """Run the missing steps, inside the transaction of `connection`."""
    from alembic import command  # slow to import, and only needed here
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "vfsd.catalog:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
