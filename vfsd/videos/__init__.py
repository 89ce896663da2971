"""A video as its users have it: `Video`, and what it hands out."""
