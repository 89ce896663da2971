"""Label formats of other programs."""
