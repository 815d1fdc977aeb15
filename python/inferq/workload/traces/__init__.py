"""Readers of traces, one format a file."""
