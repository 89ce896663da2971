"""Programs that measure.  Each prints a table, writes JSON with ``--json FILE``, checks the content
in the same run, and times what it compares with in the same run, interleaved.

    python -m benchmarks.NAME --help
"""
