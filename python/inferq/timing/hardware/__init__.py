"""Models and GPUs: shapes, datasheets and memory, by name."""
