"""Cells: encoded tiles of one segment, as tilings, renditions and joints store them."""
