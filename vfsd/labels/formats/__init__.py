"""Label files of other programs."""
