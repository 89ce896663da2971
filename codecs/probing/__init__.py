"""What a file holds, and how far it may be believed."""
