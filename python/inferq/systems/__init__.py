"""What serves a workload: an engine, a cluster, separate pools, a network, a fleet under control."""
