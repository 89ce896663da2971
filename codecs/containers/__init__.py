"""Containers as bytes, and what goes into them."""
