"""The store as tables: Arrow streams, and SQL by DuckDB."""
