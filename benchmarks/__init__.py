"""Benchmark programs.  Each prints a table, writes JSON with ``--json FILE`` and checks the data
that it reads.  Alternatives are timed in the same run, interleaved.

    python -m benchmarks.NAME --help
"""
