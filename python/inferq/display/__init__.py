"""Formatting of numbers, tables, charts and pages."""
