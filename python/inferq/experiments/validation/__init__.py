"""Measured runs beside simulated ones."""
