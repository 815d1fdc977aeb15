"""Comparison of theory and runs."""
