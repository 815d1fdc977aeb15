"""Comparison of systems on the same requests."""
