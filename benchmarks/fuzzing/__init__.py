"""The targets of `benchmarks.fuzz`, and the code that feeds them damaged input."""
