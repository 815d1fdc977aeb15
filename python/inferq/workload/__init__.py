"""Requests that come: columns, distributions to draw them from, and traces of real services."""
