"""How do results look? One style, one picture a file."""
