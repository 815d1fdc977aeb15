"""Thresholds of WAIT and nested WAIT."""
