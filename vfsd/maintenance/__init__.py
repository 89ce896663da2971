"""Checks, backups, retention."""
