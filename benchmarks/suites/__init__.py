"""Third-party filesystem test suites, each on a fresh mount of a fresh store."""
