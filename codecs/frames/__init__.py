"""Decoded frames: their samples, colors and layouts, and conversions from and to arrays."""
