"""One module a step, named in the order of time."""
