"""Filesystem suites that others wrote, each on a fresh mount of a fresh store."""
