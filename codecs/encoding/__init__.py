"""Encodes frames, and writes them as streams, files and still images."""
