"""The first step is the real one; the second is for tests."""
