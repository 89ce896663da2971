"""Reads: plans, their execution, decoder pools and caches, and the read log."""
