"""When videos were recorded."""

import sqlalchemy as sa
from alembic import op

revision = "v7"
down_revision = "v6"

_NS = "when its first frame was recorded; null: unknown"
_CLOCK = "source of captured_ns: given, name, arrival or container"

_VIDEOS = """
CREATE VIEW v_videos AS
SELECT v_files.path AS name, videos.id AS id, physical_videos.codec AS codec,
       physical_videos.container AS container, physical_videos.width AS width,
       physical_videos.height AS height, physical_videos.frames AS frames,
       1.0 * (physical_videos.end_pts - physical_videos.first_pts)
           * physical_videos.time_base_num / physical_videos.time_base_den AS seconds,
       v_files.size AS size, v_files.mtime_ns AS mtime_ns, videos.digest AS digest,
       videos.metadata AS metadata, videos.created_ns AS created_ns,
       videos.captured_ns AS captured_ns, videos.captured_clock AS captured_clock
FROM videos
JOIN v_files ON v_files.ino = videos.ino
JOIN physical_videos ON physical_videos.video_id = videos.id
                    AND physical_videos.role = 'original'
"""


def upgrade() -> None:
    op.add_column("videos", sa.Column("captured_ns", sa.BigInteger(), comment=_NS))
    op.add_column("videos", sa.Column("captured_clock", sa.String(16), comment=_CLOCK))
    op.create_index(op.f("ix_videos_captured_ns"), "videos", ["captured_ns"])
    op.execute("DROP VIEW v_videos")
    op.execute(_VIDEOS)
