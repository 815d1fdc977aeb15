"""The layers of a model, timed on the device at hand."""
