"""Simulation runs: `simulate`, and runs that are fed with live requests."""
