"""Cameras that see the same place: which, how they lie to each other, and keeping it once.

Pure functions of pictures; nothing in here knows stores or videos.  After VSS's joint compression
(SIGMOD 2021), with what it leaves open: when to believe a homography, and how to tell the same
time.
"""
