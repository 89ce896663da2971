"""Ingesting files and encoding new videos."""
