"""Cameras that see the same place: finding them, and storing their common pictures once.

The method follows VSS's joint compression (SIGMOD 2021).  It adds criteria for trusting a
homography, and a test for simultaneous recordings.
"""
