"""Stitches HEVC tiles to one stream without decoding them."""
