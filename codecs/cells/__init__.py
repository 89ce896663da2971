"""Cells: as what tiles, renditions and joints are stored."""
