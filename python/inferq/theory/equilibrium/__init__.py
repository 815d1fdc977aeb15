"""The fluid limit of an engine."""
