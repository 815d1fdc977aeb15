"""Readers of trace formats, one format per file."""
