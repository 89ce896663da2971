"""Processes beside a mount: what makes tiles and views for it, what examines files, and who
has the cores first.
"""
