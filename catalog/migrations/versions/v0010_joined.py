"""Joined segments: pictures of two cameras that see the same, in packs that both refer to."""

from alembic import op

revision = "0010"
down_revision = "0009"

_BEFORE = "role IN ('original', 'tiled', 'rendition')"
_AFTER = "role IN ('original', 'tiled', 'rendition', 'joined')"


def upgrade() -> None:
    bind = op.get_bind()
    if bind.dialect.name != "sqlite":
        op.drop_constraint(op.f("ck_physical_videos_role"), "physical_videos")
        op.create_check_constraint(op.f("ck_physical_videos_role"), "physical_videos", _AFTER)
        return
    # As in revision 0002: no row breaks the new constraint, and copying the table would take along
    # what refers to it.
    version = bind.exec_driver_sql("PRAGMA schema_version").scalar_one()
    bind.exec_driver_sql("PRAGMA writable_schema = ON")
    bind.exec_driver_sql(
        "UPDATE sqlite_master SET sql = replace(sql, ?, ?) "
        "WHERE type = 'table' AND name = 'physical_videos'",
        (_BEFORE, _AFTER),
    )
    bind.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    bind.exec_driver_sql("PRAGMA writable_schema = OFF")
