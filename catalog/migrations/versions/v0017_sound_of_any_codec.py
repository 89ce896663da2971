"""Sound of any codec: how its packets are read, and how containers describe it.

Rows that give a reason which no longer holds are removed: `vfsd verify` indexes that sound again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

_DEMUXED = """
UPDATE sounds SET access = 'demux'
WHERE physical_id IN (
    SELECT id FROM physical_videos WHERE container IN ('mpegts', 'mpegps', 'avi')
)
"""
_OUTGROWN = """
DELETE FROM sounds
WHERE packets = 0 AND (
    reason = 'its packets do not lie in the file in one piece'
    OR reason = 'not every packet has a time stamp'
    OR reason = 'its time stamps are set back on the way'
    OR reason LIKE 'no container of views takes %'
    OR reason LIKE '% files cut packets up'
    OR reason LIKE '% files do not time pictures'
)
"""


def upgrade() -> None:
    for column in _columns():
        op.add_column("sounds", column)
    op.execute(_DEMUXED)
    op.execute(_OUTGROWN)


def downgrade() -> None:
    for column in _columns():
        op.drop_column("sounds", column.name)


def _columns() -> list[sa.Column[str] | sa.Column[bytes]]:
    return [
        sa.Column(
            "access",
            sa.String(16),
            nullable=False,
            server_default="extent",
            comment="how packets are read: extent or demux",
        ),
        sa.Column(
            "matroska_codec",
            sa.String(64),
            nullable=False,
            server_default="",
            comment="CodecID in Matroska; empty: see vfsd.codecs.containers.soundentries",
        ),
        sa.Column("matroska_private", sa.LargeBinary(), comment="CodecPrivate in Matroska"),
        sa.Column("mp4_entry", sa.LargeBinary(), comment="sample entry in MP4, as a whole box"),
    ]
