"""Putting files and pixels into a store."""
