"""Parameter sweeps over a grid of settings."""
