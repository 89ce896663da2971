"""Containers: detects them, and writes MP4 and Matroska byte by byte."""
