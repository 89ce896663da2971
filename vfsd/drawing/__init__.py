"""Layouts, curves and overlaps to look at."""
