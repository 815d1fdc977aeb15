"""Conclusions from many runs: comparison, capacity, sweeps, a gate."""
