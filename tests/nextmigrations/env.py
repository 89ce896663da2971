"""Alembic's entry point: runs the steps on the connection that
`vfsd.catalog.transactions` opened."""

from alembic import context

from vfsd.catalog.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
