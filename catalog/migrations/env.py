"""Alembic's entry point.

Runs the migrations on the connection that `vfsd.catalog.open_catalog` opened.
"""

from alembic import context

from vfsd.catalog.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
