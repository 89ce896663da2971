"""The steps of the schema as a program has them that is one revision ahead."""
