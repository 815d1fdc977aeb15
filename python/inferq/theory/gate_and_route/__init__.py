"""The linear programs of gate-and-route."""
