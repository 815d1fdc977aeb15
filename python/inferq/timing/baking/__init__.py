"""Tables of iteration times, sampled from a database of measured kernels."""
