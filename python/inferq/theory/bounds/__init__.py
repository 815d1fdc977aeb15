"""Bounds of one scenario with their hypotheses, and the verdict."""
