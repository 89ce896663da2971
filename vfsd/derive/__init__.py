"""Derived data: tiles, renditions, budgets and tuning."""
