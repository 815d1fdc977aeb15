"""The page of a run: its tables and charts."""
