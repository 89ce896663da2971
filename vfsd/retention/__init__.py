"""What becomes of originals: policies, holds, and other encodings in their place."""
