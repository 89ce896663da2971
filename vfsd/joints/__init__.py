"""Cameras that overlap, and what both see kept once."""
