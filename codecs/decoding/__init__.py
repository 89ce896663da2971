"""From stored packets to pictures."""
