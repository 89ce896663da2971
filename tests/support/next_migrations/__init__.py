"""The migrations of a program that is one schema revision ahead."""
