"""Readers of `config.json`: one rule per family of architectures, with its model types."""
