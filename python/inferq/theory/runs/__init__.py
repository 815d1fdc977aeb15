"""Theory beside a run."""
