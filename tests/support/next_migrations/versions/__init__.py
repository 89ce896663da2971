"""The real steps, by links, and one for tests."""
