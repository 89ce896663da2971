"""Derived data: tiles, renditions, budgets, replaced originals and tuning."""
