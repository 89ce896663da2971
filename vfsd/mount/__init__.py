"""The mounted file system and its worker processes."""
