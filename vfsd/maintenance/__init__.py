"""Maintenance of a store: fsck, scrub, backup, restore and retention."""
