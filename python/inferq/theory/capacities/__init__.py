"""Upper bounds and guaranteed rates of systems."""
