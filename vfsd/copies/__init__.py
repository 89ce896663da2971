"""Copies of a store, and the way back."""
