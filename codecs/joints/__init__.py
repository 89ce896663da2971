"""Planes of two overlapping cameras, cut and merged."""
