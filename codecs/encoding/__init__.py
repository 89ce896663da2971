"""From pictures to streams and files."""
