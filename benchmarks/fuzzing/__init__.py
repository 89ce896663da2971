"""What `benchmarks.fuzz` feeds with damaged input, and how."""
