"""The one call that takes a workload through a system, and what it hands to the core."""
