"""One module per schema revision, in order of time."""
