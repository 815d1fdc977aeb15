"""How numbers, tables, charts and pages are written."""
