"""Joins the planes of two overlapping cameras, and restores each camera's pictures."""
