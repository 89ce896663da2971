"""The context of an open store, and services over its stored bytes."""
