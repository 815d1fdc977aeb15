"""Tables baked from a database of kernel timings."""
