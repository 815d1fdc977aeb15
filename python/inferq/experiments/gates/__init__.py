"""Regression gates: comparison of scenarios with a committed baseline."""
