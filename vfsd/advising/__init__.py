"""What would pay: workloads, what was read, and what should be made because of it."""
