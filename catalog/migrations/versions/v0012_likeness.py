"""What cells have of what is read of them: gray, planes and colours, beside luma.

Of cells that are there already nobody has measured it, but it is known of those that are the
original to the bit, and of joined ones, whose figure has always been that of the worst plane.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_IDENTICAL = """
UPDATE cells SET gray = psnr, planes = psnr, colour = psnr
WHERE psnr >= 100 AND segment_id IN (
    SELECT segments.id FROM segments
    JOIN physical_videos ON physical_videos.id = segments.physical_id
    WHERE segments.profile = 'lossless' AND physical_videos.role = 'tiled'
)
"""
_JOINED = """
UPDATE cells SET planes = psnr
WHERE segment_id IN (
    SELECT id FROM segments WHERE profile IN ('joined-left', 'joined-right')
)
"""


def upgrade() -> None:
    for column in _columns():
        op.add_column("cells", column)
    op.execute(_IDENTICAL)
    op.execute(_JOINED)


def downgrade() -> None:
    for column in _columns():
        op.drop_column("cells", column.name)


def _columns() -> list[sa.Column[float]]:
    figures = {
        "gray": "dB of gray in the worst picture, as reads make it; 0: not measured",
        "planes": "the same of the worst of Y, U and V",
        "colour": "the same of the worst of R, G and B",
    }
    return [
        sa.Column(name, sa.Float(), nullable=False, server_default="0", comment=comment)
        for name, comment in figures.items()
    ]
