"""What must hold of inferq. `policies/` has a file for each built-in scheduler."""
