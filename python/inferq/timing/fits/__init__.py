"""Timing models from measured iterations."""
