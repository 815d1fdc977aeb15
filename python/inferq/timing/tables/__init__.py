"""Measured tables that come with inferq, and how they are baked."""
