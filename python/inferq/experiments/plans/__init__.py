"""Search for the cheapest fleet that meets an SLO."""
