"""Migrations of the schema.  Each file in `versions` is one revision."""
