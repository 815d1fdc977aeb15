"""What became of the requests: tables, summaries, files."""
