"""The JSON of videos, labels, tiles, policies and orders: values, and a description of each key.

The commands print these records with ``--json``, and the web API returns them.
"""
