"""Bringing a catalog to the schema that this version of vfsd works with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfsd.errors import StoreVersionError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

REVISIONS = ("v1",)
"""Every step in `vfsd.catalog.migrations.versions`, in order; a test compares them."""
_SCRIPTS = "vfsd.catalog:migrations"
"""Alembic's folder with the steps."""


def newest() -> str:
    """The revision that this version of vfsd works with."""
    return REVISIONS[-1]


def require_known(revision: str | None) -> None:
    """Raises `StoreVersionError` for a catalog that another version of vfsd has written."""
    if revision is not None and revision not in REVISIONS:
        raise StoreVersionError(
            f"the catalog is at revision {revision}, this vfsd knows up to {newest()}",
            hint="install the version of vfsd that wrote it, or a newer one",
        )


def upgrade(connection: Connection) -> None:
    """Run the missing steps, inside the transaction of `connection`."""
    from alembic import command  # slow to import, and only needed here
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", _SCRIPTS)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
