"""Search for the largest load that a system sustains within an SLO."""
