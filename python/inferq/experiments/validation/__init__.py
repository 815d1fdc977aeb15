"""Validation of simulations against measured runs."""
