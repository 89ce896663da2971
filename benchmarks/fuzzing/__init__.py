"""The targets of `benchmarks.fuzz`, and how each is fed with damaged input."""
