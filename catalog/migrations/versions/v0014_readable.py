r"""On PostgreSQL, what people read of a catalog with SQL.

A name that is no UTF-8 made every view fail that tells names; its odd bytes are told as \377.  And
what columns mean is there as it is in the code: steps that changed it have told nobody.  SQLite
keeps none of that.
"""

from alembic import op

revision = "0014"
down_revision = "0013"

_PATHS = """
CREATE OR REPLACE VIEW v_files AS
WITH RECURSIVE walk(ino, path) AS (
    SELECT CAST(1 AS BIGINT), convert_from(''::bytea, 'UTF8')
    UNION ALL
    SELECT entries.ino, CASE WHEN walk.path = '' THEN {name} ELSE walk.path || '/' || {name} END
    FROM walk JOIN entries ON entries.parent = walk.ino
)
SELECT walk.path AS path, nodes.ino AS ino, nodes.mode AS mode, nodes.size AS size,
       nodes.mtime_ns AS mtime_ns, nodes.state AS state, nodes.reason AS reason,
       nodes.object_key AS object_key
FROM walk JOIN nodes ON nodes.ino = walk.ino
WHERE walk.path <> ''
"""
_NEXT = "[89ab][0-9a-f]"
_LETTERS = "|".join(
    (
        "[0-7][0-9a-f]",
        f"(c[2-9a-f]|d[0-9a-f]){_NEXT}",
        f"e0[ab][0-9a-f]{_NEXT}",
        f"e[1-9a-cef]({_NEXT}){{2}}",
        f"ed[89][0-9a-f]{_NEXT}",
        f"f0[9ab][0-9a-f]({_NEXT}){{2}}",
        f"f[1-3]({_NEXT}){{3}}",
        f"f48[0-9a-f]({_NEXT}){{2}}",
    )
)
"""UTF-8 in hexadecimal digits."""
_STRICT = "convert_from(entries.name, 'UTF8')"
_ANY = (
    f"CASE WHEN encode(entries.name, 'hex') ~ '^({_LETTERS})*$' THEN {_STRICT} "
    "ELSE encode(entries.name, 'escape') END"
)

_COMMENTS = (
    ("store_identity", "one", "1: there is one row only"),
    ("physical_videos", "role", "original, tiled, rendition or joined"),
    (
        "physical_videos",
        "object_key",
        "the object; null for a file indexed in place, and for what is kept in packs",
    ),
    ("segments", "profile", "the tile codec: fast, small ...; or joined-left, joined-right"),
    (
        "segments",
        "size",
        "bytes of the pack; of one that two joined segments have, this one's share",
    ),
    ("evictions", "why", "what was full: video, partner or store"),
    (
        "original_log",
        "action",
        "replaced, decayed, deleted, left, held or released; believed: the clock was",
    ),
    ("cells", "quality", "rate factor that it was encoded with; of lossless, the level"),
)


def upgrade() -> None:
    if not _is_postgresql():
        return
    op.execute(_PATHS.format(name=_ANY))
    for table, column, text in _COMMENTS:
        quoted = text.replace("'", "''")
        op.execute(f"COMMENT ON COLUMN {table}.{column} IS '{quoted}'")


def downgrade() -> None:
    if _is_postgresql():
        op.execute(_PATHS.format(name=_STRICT))


def _is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
