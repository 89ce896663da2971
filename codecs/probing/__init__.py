"""Examines files: media description, frame table, and the trust that each deserves."""
