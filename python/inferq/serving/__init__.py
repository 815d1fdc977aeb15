"""A simulated fleet behind real clients: the routes of an engine's server, and the core in wall time."""
