"""Sound beside pictures."""
