"""What can be concluded from runs? Comparison, capacity, sweeps, a gate."""
