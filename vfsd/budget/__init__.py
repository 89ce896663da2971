"""What may be taken, what goes first, and making room."""
