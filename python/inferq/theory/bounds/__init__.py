"""Bounds of a scenario with their hypotheses, and the verdict."""
