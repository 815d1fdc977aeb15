"""Rates that a system can carry at most, or surely."""
